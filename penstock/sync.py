"""Lists without async: the same names, blocking, for scripts and web frameworks.

An event loop in a thread of its own does the work; a call waits for its result. So leases are renewed, and connections
watched, while the program computes.
"""

import asyncio
import signal
import threading
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from penstock.errors import WrongCall
from penstock.lists import consumer as _consumer
from penstock.lists import server as _server
from penstock.lists import work as _work
from penstock.lists.consumer import PREFETCH, SIZE, Consumer, Message
from penstock.lists.server import Payload
from penstock.lists.work import Request

__all__ = ["List", "Lists", "Message", "Portal", "Request", "Work"]
T = TypeVar("T")


class Portal:
    """An event loop in a thread: ``portal(coroutine)`` returns its result, or raises what it raised."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="penstock", daemon=True)
        self._thread.start()
        self._last = set[asyncio.Task[None]]()

    def __call__(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for ``coroutine``; cancel it, and wait for its end, if this thread is interrupted meanwhile."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise WrongCall("a blocking call in the event loop would wait for ever: use penstock.lists there")
        tasks, done = list[asyncio.Task[T]](), threading.Event()

        def start() -> None:
            tasks.append(self.loop.create_task(coroutine))
            tasks[0].add_done_callback(lambda _: done.set())

        self.loop.call_soon_threadsafe(start)
        try:
            done.wait()
        except BaseException:
            self.loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            done.wait()
            raise
        return tasks[0].result()

    def finish(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``call`` for a generator that ends, perhaps in the garbage collector of any thread or after ``close``."""
        if threading.current_thread() is self._thread:
            self._last.add(self.loop.create_task(call()))
        elif not self.loop.is_closed():
            self(call())

    def close(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Lists:
    """As ``penstock.lists.Lists``: ``with Lists("redis://localhost:6379/0") as lists: lists["in"].push("x")``."""

    def __init__(
        self,
        url: str,
        *,
        patience: float | None = 60.0,
        lease: float = 30.0,
        stop_signals: Iterable[signal.Signals] = (),
    ) -> None:
        self._options: dict[str, Any] = {"url": url, "patience": patience, "lease": lease}
        self._signals = dict.fromkeys(stop_signals, cast(Any, None))
        self._lists: _server.Lists
        self.run: Portal
        """Run a coroutine, such as ``request.touch(60)``, and return its result."""

    def __enter__(self) -> Self:
        self.run = Portal()

        async def enter() -> _server.Lists:
            return await _server.Lists(**self._options).__aenter__()

        self._lists = self.run(enter())
        for number in self._signals:
            self._signals[number] = signal.signal(number, lambda *_: self.stop())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._signals.items():
            signal.signal(number, former)
        try:
            self.run(self._lists.__aexit__(kind, error, trace))
        finally:
            self.run.close()

    def __getitem__(self, name: Payload) -> "List":
        return List(self._lists[name], self.run)

    def stop(self) -> None:
        """End every loop over messages: after the message in hand, or at once if it waits for one."""
        self.run.loop.call_soon_threadsafe(self._lists.stop)

    def work(self, namespace: str, source: Payload | None = None) -> "Work":
        """Return the requests of the mdispatch with this namespace."""
        return Work(self._lists.work(namespace, source), self.run)


class List:
    """As ``penstock.lists.List``."""

    def __init__(self, one: _server.List, run: Portal) -> None:
        self._list, self._run = one, run

    def push(self, message: Payload) -> None:
        """Push one message."""
        self._run(self._list.push(message))

    def push_many(self, messages: Iterable[Payload] | AsyncIterable[Payload]) -> int:
        """Push all of ``messages``, oldest first, in batches; return how many."""
        return self._run(self._list.push_many(messages))

    def messages(self, *, prefetch: int = PREFETCH, size: int = SIZE) -> Iterator[Message]:
        """Take messages: ``for message in orders.messages():``, and then ``with message:`` around its handling."""

        async def consumer() -> Consumer:
            return self._list.consumer(prefetch, size)

        return _messages(self._run(consumer()), self._run)


class Work:
    """As ``penstock.lists.Work``."""

    def __init__(self, work: _work.Work, run: Portal) -> None:
        self._work, self._run = work, run

    def requests(self, *, prefetch: int = PREFETCH, size: int = SIZE) -> Iterator[Request]:
        """Take requests: ``for request in work.requests():``, and then ``with request:``."""
        consumer = self._run(self._work.consumer(prefetch, size))
        return cast(Iterator[Request], _messages(consumer, self._run))


def _messages(consumer: _consumer.Consumer, run: Portal) -> Iterator[Message]:
    try:
        while batch := run(consumer.batch()):
            for message in batch:
                yield consumer.hand_out(message)
                if consumer.ends_batch() or (consumer.is_due() and not run(consumer.settle())):
                    break
    finally:
        run.finish(consumer.leave)
