"""An event loop in a thread, for callers without one."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from penstock.errors import WrongCall

LOOK_SECONDS: Final = 1.0
"""Seconds after which a call that waits looks whether the thread still works."""
T = TypeVar("T")


class Portal:
    """An event loop in a thread: ``portal(coroutine)`` returns its result, or raises what it raised."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="penstock", daemon=True)
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
        tasks, done = list[asyncio.Task[T]](), threading.Event()

        def start() -> None:
            tasks.append(self.loop.create_task(coroutine))
            tasks[0].add_done_callback(lambda _: done.set())

        self.loop.call_soon_threadsafe(start)
        try:
            self._wait(done)
        except BaseException:
            if self._works:
                self.loop.call_soon_threadsafe(lambda: tasks[0].cancel())
                self._wait(done)
            raise
        return tasks[0].result()

    def finish(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``call`` for a generator that ends, perhaps in the garbage collector of any thread or after ``close``."""
        if threading.current_thread() is self._thread:
            self._last.add(self.loop.create_task(call()))
        elif self._works:
            self(call())

    @property
    def _works(self) -> bool:
        """Return False once nothing is done any more: closed, at the end of the interpreter, or in a forked child."""
        alive = self._thread.is_alive() and not self.loop.is_closed() and not sys.is_finalizing()
        return alive and os.getpid() == self._process

    def _wait(self, done: threading.Event) -> None:
        while not done.wait(LOOK_SECONDS):
            if not self._works:
                raise WrongCall("the thread that does the work has ended")

    def close(self) -> None:
        """End the thread."""
        if not self._works:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
