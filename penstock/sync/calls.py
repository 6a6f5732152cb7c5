"""Calls of asynchronous code that take more than waiting for one coroutine."""

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.base.errors import WrongCall
from penstock.core.batches import MAX_MESSAGES
from penstock.sync.portal import Portal

_END: Final = object()
T = TypeVar("T")


async def called(call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns, called in the event loop, or the result of the future that it returns."""
    found = call()
    return await found if inspect.iscoroutine(found) or asyncio.isfuture(found) else found


def iterate(values: AsyncIterator[T], run: Portal, wrap: Callable[[T], T]) -> Iterator[T]:
    """Yield what an asynchronous generator yields, each wrapped; it is closed with the loop."""
    try:
        while (value := run(_next(values))) is not _END:
            yield wrap(value)
    finally:
        run.finish(partial(_close, values))


async def _next(values: AsyncIterator[Any]) -> Any:
    return await anext(values, _END)


async def _close(values: Any) -> None:
    await values.aclose()


@contextmanager
def entered(manager: AbstractAsyncContextManager[T], run: Portal) -> Iterator[T]:
    """Enter and leave an asynchronous context manager."""
    value = run(_enter(manager))
    try:
        yield value
    finally:
        run(_leave(manager))


async def _enter(manager: AbstractAsyncContextManager[T]) -> T:
    return await manager.__aenter__()


async def _leave(manager: AbstractAsyncContextManager[Any]) -> None:
    await manager.__aexit__(None, None, None)


def feed(call: Callable[[Any], Coroutine[Any, Any, T]], values: Iterable[Any] | AsyncIterable[Any], run: Portal) -> T:
    """Return the result of ``call(values)``; what is no collection is iterated in this thread, and may take long."""
    if isinstance(values, AsyncIterable | list | tuple | dict | bytes | str):
        return run(call(values))
    each, feeding = iter(values), _Feeding()
    task = run(feeding.begin(call))
    try:
        while run(feeding.asked.get()):
            run.loop.call_soon_threadsafe(feeding.batches.put_nowait, [*islice(each, MAX_MESSAGES)])
        result: T = run(called(lambda: task))
        return result
    finally:
        run.finish(partial(_cancel, task))


class _Feeding:
    """Values on their way from a thread to a coroutine in the event loop."""

    def __init__(self) -> None:
        self.asked = asyncio.Queue[bool]()
        """Gets True for each batch that is wanted, False at the end."""
        self.batches = asyncio.Queue[list[Any]]()

    async def begin(self, call: Callable[[Any], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
        """Begin the call."""
        task = asyncio.create_task(call(self._values()))
        task.add_done_callback(lambda _: self.asked.put_nowait(False))
        return task

    async def _values(self) -> AsyncIterator[Any]:
        self.asked.put_nowait(True)
        while batch := await self.batches.get():
            for value in batch:
                yield value
            self.asked.put_nowait(True)


async def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def check_outbox(outbox: object) -> None:
    """Raise ``WrongCall`` for what is no data directory."""
    if not isinstance(outbox, str | Path | None):
        raise WrongCall("outbox: expected a data directory, since an Outbox belongs to another event loop")
