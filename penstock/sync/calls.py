"""Methods of blocking forms, made from coroutine methods."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from penstock.sync.portal import Portal

_END: Final = object()
P = ParamSpec("P")
T = TypeVar("T")
I_co = TypeVar("I_co", covariant=True)


class Blocked(Protocol[I_co]):
    """The blocking form of ``inner``."""

    @property
    def inner(self) -> I_co:
        """What does the work."""

    @property
    def run(self) -> Portal:
        """Where it does it."""


def blocking(
    method: Callable[Concatenate[I_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocked[I_co], P], T]:
    """Return a method that calls that of ``inner`` and waits for its result."""

    @wraps(method)
    def call(self: Blocked[I_co], /, *values: P.args, **options: P.kwargs) -> T:
        return self.run(method(self.inner, *values, **options))

    return call


def iterate(values: AsyncIterator[T], run: Portal) -> Iterator[T]:
    """Yield what an asynchronous generator yields; it is closed with the loop."""
    try:
        while (value := run(_next(values))) is not _END:
            yield value
    finally:
        run.finish(partial(_close, values))


async def _next(values: AsyncIterator[Any]) -> Any:
    return await anext(values, _END)


async def _close(values: Any) -> None:
    await values.aclose()
