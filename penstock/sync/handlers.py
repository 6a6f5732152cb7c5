"""Handlers of a blocking bus, plain functions that are called in threads."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from penstock.base.errors import WrongCall
from penstock.sync.twin import Host, wrap

_END: Final = object()


class Handlers(Host):
    """What the objects of a blocking bus share: also the thread that calls handlers, and what they are called by."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._thread = ThreadPoolExecutor(1, "penstock-handlers")
        self.found: WeakValueDictionary[Any, Callable[..., Any]] = WeakValueDictionary()
        """What calls each handler, for ``off``, as long as an object of the bus has it."""

    def in_turn(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a coroutine function that calls ``handler`` in the thread of all handlers, in turn."""
        _check_plain(handler)
        if inspect.isgeneratorfunction(handler):
            raise WrongCall("a handler of an event yields nothing: only one of `serve` may")
        found = self.found.get(handler)
        if found is None:
            found = self.found[handler] = self._call(handler, self._thread)
        return found

    def answering(self, handler: Callable[..., Any], concurrency: int) -> Callable[..., Any]:
        """Return what calls the ``handler`` of a service in one of as many threads."""
        _check_plain(handler)
        threads = ThreadPoolExecutor(concurrency, "penstock-service")
        return self._parts(handler, threads) if inspect.isgeneratorfunction(handler) else self._call(handler, threads)

    def _call(self, handler: Callable[..., Any], threads: Executor) -> Callable[..., Any]:
        async def call(*values: Any) -> Any:
            here = partial(_call_plainly, handler, *self._wrapped(values))
            return await asyncio.get_running_loop().run_in_executor(threads, here)

        return call

    def _parts(self, handler: Callable[..., Any], threads: Executor) -> Callable[..., Any]:
        async def parts(*values: Any) -> AsyncIterator[Any]:
            loop, found, taken = asyncio.get_running_loop(), handler(*self._wrapped(values)), None
            try:
                while (part := await (taken := loop.run_in_executor(threads, next, found, _END))) is not _END:
                    yield part
            finally:
                if taken is not None and not taken.cancelled():  # else its thread may be in the generator still
                    await loop.run_in_executor(threads, found.close)

        return parts

    def _wrapped(self, values: tuple[Any, ...]) -> list[Any]:
        return [wrap(value, self) for value in values]


def _check_plain(handler: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler):
        raise WrongCall("a handler of a blocking bus is a plain function")


def _call_plainly(handler: Callable[..., Any], *values: Any) -> Any:
    try:
        return handler(*values)
    except StopIteration as error:  # which no future can hold: who waits for it would wait for ever
        raise RuntimeError("the handler raised StopIteration") from error
