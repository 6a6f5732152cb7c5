"""What blocking forms share whose async ones are entered with ``async with`` and have ``stop``."""

import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from penstock.base.errors import WrongCall
from penstock.base.stop_signals import StopSignals
from penstock.sync.portal import Portal


class Stoppable(Protocol):
    """What is entered."""

    def stop(self) -> None:
        """End every loop."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave it."""


I = TypeVar("I", bound=Stoppable)  # noqa: E741


class Entered(ABC, Generic[I]):
    """Enters what ``_open`` returns in a thread of its own, and calls its ``stop`` at ``stop_signals``."""

    def __init__(self, stop_signals: Iterable[signal.Signals]) -> None:
        self._signals = StopSignals(stop_signals, self.stop)
        self._inner: I
        self._portal: Portal | None = None

    @abstractmethod
    async def _open(self) -> I:
        """Return what is entered, entered."""

    @property
    def portal(self) -> Portal:
        """Return what runs coroutines. Raise ``WrongCall`` if it is not entered."""
        if self._portal is None:
            name = type(self).__name__
            raise WrongCall(f"expected `with {name}(...) as {name.lower()}:` around this call")
        return self._portal

    def __enter__(self) -> Self:
        self._signals.check()
        try:
            self._portal = Portal()
            self._inner = self.portal(self._open())
            self._signals.enter()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._signals.leave()
            if self.portal.is_here:  # a forked child has nothing to leave
                self.portal(self._inner.__aexit__(kind, error, trace))
        finally:
            self._close()

    def _close(self) -> None:
        self._signals.leave()
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    def stop(self) -> None:
        """End every loop: after what is in hand, or at once if it waits."""
        if self._portal is not None and self._portal.is_here:
            self._portal.loop.call_soon_threadsafe(self._inner.stop)
