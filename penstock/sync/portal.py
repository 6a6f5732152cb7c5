"""An event loop in a thread, for callers without one."""

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from penstock.base.errors import WrongCall
from penstock.core.tasks import begin

LOOK_SECONDS: Final = 1.0
"""Seconds after which a call that waits looks whether the thread still works."""
T = TypeVar("T")


class Portal:
    """An event loop in a thread: ``portal(coroutine)`` returns its result, or raises what it raised.

    An exception that a signal handler raises meanwhile (Ctrl-C, a time limit) cancels the coroutine, waits for its end,
    and goes on. The thread ends with ``close``, or when nobody has the portal any more.
    """

    def __init__(self) -> None:
        self.loop, self._running = asyncio.new_event_loop(), _taken()
        self._thread = threading.Thread(target=_run, args=(self.loop, self._running), name="penstock", daemon=True)
        self._end = weakref.finalize(self, _stop, self.loop)
        self._end.atexit = False
        self._thread.start()
        self._last = set[asyncio.Task[None]]()
        self._process = os.getpid()

    def __call__(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for ``coroutine``; cancel it, and wait for its end, if this thread is interrupted meanwhile."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise WrongCall(
                "a blocking call in the event loop would wait for ever: use penstock.lists or penstock.bus there"
            )
        if not self._works:
            coroutine.close()
            raise WrongCall("the thread that does the work has ended, or is another process's: enter `with` here")
        call = _Call(coroutine)
        try:
            self.loop.call_soon_threadsafe(call.begin, self.loop)
            self._wait(call)
        except BaseException as error:
            if self._works:
                self.loop.call_soon_threadsafe(call.give_up)
                self._wait(call)
            if isinstance(error, RuntimeError) and self.loop.is_closed():  # just now
                raise _Ended from None
            raise
        try:
            return call.result()
        except asyncio.CancelledError:
            if self._end.alive:
                raise
            raise _Ended from None  # by another thread, which has closed the portal

    def finish(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``call`` for a generator that ends, perhaps in the garbage collector of any thread or after ``close``."""
        if threading.current_thread() is self._thread:
            self._last.add(begin(call()))
        elif self._works:
            with suppress(_Ended):
                self(call())

    @property
    def _works(self) -> bool:
        """Return False once nothing is done any more: closed, at the end of the interpreter, or in a forked child.

        ``Thread.is_alive`` and ``join`` take a thread for ended that runs, if they are interrupted.
        """
        return self.is_here and not self.loop.is_closed() and not sys.is_finalizing()

    @property
    def is_here(self) -> bool:
        """Return False in a forked child, which has no such thread."""
        return os.getpid() == self._process

    def _wait(self, call: "_Call[Any]") -> None:
        while not call.wait(LOOK_SECONDS):
            if not self._works:
                raise _Ended

    def close(self) -> None:
        """End the thread."""
        if self._works:
            self._end()
        while self._works:
            self._running.acquire(timeout=LOOK_SECONDS)


class _Ended(WrongCall):
    """The portal was closed while a call was waiting."""

    def __init__(self) -> None:
        super().__init__("the thread that does the work has ended")


class _Call(Generic[T]):
    """One coroutine for the event loop; what happens in the caller's thread may end between any two steps.

    So the waiter uses no ``threading.Event``: an exception inside its ``wait`` may leave its lock taken for ever.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._has_ended = False
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._running = _taken()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; in the loop, as all that follows but ``wait`` and ``result``."""
        self._task = loop.create_task(self._coroutine)
        self._task.add_done_callback(self._note_end)

    def give_up(self) -> None:
        """Cancel; if it has not begun, it never will."""
        if self._task is not None:
            self._task.cancel()
        else:
            self._coroutine.close()
            self._end()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, but no longer than ``seconds``; return whether it has come."""
        if not self._has_ended:  # else an interrupted wait may have taken the lock
            self._running.acquire(timeout=seconds)
        return self._has_ended

    def result(self) -> T:
        """Return the result of the coroutine, or raise what it raised."""
        assert self._task
        return self._task.result()

    def _note_end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # the caller may not ask for it any more
        self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._running.release()


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _run(loop: asyncio.AbstractEventLoop, running: threading.Lock) -> None:
    """Run ``loop`` until it is stopped; cancel what is under way then. Release ``running`` at the end."""
    try:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
        running.release()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)
