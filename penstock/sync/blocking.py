"""What every object of a blocking bus does: made from the asynchronous one, call by call."""

import inspect
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from penstock.bus.consumption import Dispatcher
from penstock.bus.service import CONCURRENCY
from penstock.sync.handlers import Handlers
from penstock.sync.portal import Portal


class Host(Protocol):
    """A blocking bus, as its objects see it."""

    handlers: Handlers

    @property
    def run(self) -> Portal:
        """Run a coroutine, and return its result."""

    def wrap(self, value: Any) -> Any:
        """Return ``value`` so that it blocks, if it is an object of the bus or a loop over messages."""


class Blocking:
    """An object of the bus: each call waits for its result, and each loop over messages is a ``for``.

    Handlers run in a thread, one after the other, those of ``serve`` side by side in as many threads as its
    ``concurrency``; they may call the bus.
    """

    def __init__(self, inner: Any, bus: Host) -> None:
        self._inner, self._bus = inner, bus
        self._threads: Executor | None = None
        """Those of a service."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not inspect.ismethod(value):
            return self._bus.wrap(value)

        def call(*values: Any, **options: Any) -> Any:
            values, options = tuple(map(_unwrap, values)), {key: _unwrap(each) for key, each in options.items()}
            handlers = [each for each in (*values, *options.values()) if callable(each)]
            if handlers:
                values, options = self._in_threads(value, values, options)
            result = self._bus.run(_result(partial(value, *values, **options)))
            return handlers[0] if handlers and callable(result) else self._bus.wrap(result)

        return call

    def _in_threads(
        self, method: Callable[..., Any], values: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of ``method``, with a handler that runs in a thread."""
        bound = inspect.signature(method).bind(*values, **options)
        handler = bound.arguments.get("handler")
        if handler is None:
            return values, options
        if method.__name__ == "serve":
            self._threads = ThreadPoolExecutor(options.get("concurrency", CONCURRENCY), "penstock-service")
            bound.arguments["handler"] = self._bus.handlers.answering(handler, self._threads)
        else:
            bound.arguments["handler"] = self._bus.handlers.in_turn(handler)
        return bound.args, bound.kwargs

    def __bytes__(self) -> bytes:
        return bytes(self._inner)

    def __str__(self) -> str:
        return str(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)


def _unwrap(value: Any) -> Any:
    return value._inner if isinstance(value, Blocking) else value


async def _result(call: Callable[[], Any]) -> Any:
    result = call()
    return await result if inspect.isawaitable(result) and not isinstance(result, Dispatcher) else result
