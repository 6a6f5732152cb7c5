"""The blocking bus: connects, and wraps what the asynchronous one returns. Its types are in bus.pyi."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from penstock import bus as _bus
from penstock.base.errors import WrongCall
from penstock.sync.blocking import Blocking
from penstock.sync.handlers import Handlers
from penstock.sync.objects import KINDS
from penstock.sync.portal import Portal

_END: Final = object()


class Bus(Blocking):
    """As ``penstock.bus.Bus``: ``with Bus("redis://localhost:6379") as bus: bus.queue("in").attach()``.

    ``outbox`` is a data directory: an ``Outbox`` belongs to an event loop of the caller.
    """

    def __init__(self, *urls: str, **options: Any) -> None:
        if not isinstance(options.get("outbox", ""), str | Path | None):
            raise WrongCall("outbox: expected a data directory, since an Outbox belongs to another event loop")
        super().__init__(_bus.Bus(*urls, **options), self)
        self._portal: Portal | None = None
        self.handlers = Handlers(self.wrap)

    @property
    def run(self) -> Portal:
        """Run a coroutine, and return its result."""
        if self._portal is None:
            raise WrongCall("expected `with Bus(...) as bus:` around this call")
        return self._portal

    def __enter__(self) -> Self:
        if self._portal is not None:
            raise WrongCall("the bus is connected already")
        self._portal = Portal()
        self.handlers.start()
        try:
            self.run(self._inner.connect())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.run.is_here:  # a forked child has nothing to leave
                self.run(self._inner.disconnect())
        finally:
            self._close()

    def wrap(self, value: Any) -> Any:
        """Return ``value`` so that it blocks, if it is an object of the bus or a loop over messages."""
        kind = type(value)
        if kind.__module__.startswith("penstock.bus.") and kind.__name__ in KINDS:
            return KINDS[kind.__name__](value, self)
        return self._iterate(value) if isinstance(value, AsyncIterator) else value

    def _close(self) -> None:
        run, self._portal = self.run, None
        run.close()
        self.handlers.stop()

    def _iterate(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        run = self.run
        try:
            while (value := run(_next(values))) is not _END:
                yield self.wrap(value)
        finally:
            run.finish(partial(_close, values))


async def _next(values: AsyncIterator[Any]) -> Any:
    return await anext(values, _END)


async def _close(values: Any) -> None:
    await values.aclose()
