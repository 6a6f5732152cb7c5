"""What blocking forms share whose async ones are entered with ``async with`` and have ``stop``."""

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from penstock.errors import WrongCall
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
        self._signals = dict.fromkeys(stop_signals, cast(Any, None))
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
        if self._signals and threading.current_thread() is not threading.main_thread():
            raise WrongCall("stop_signals: only the main thread of a program gets signals")
        try:
            self._portal = Portal()
            self._inner = self.portal(self._open())
            for number in self._signals:
                self._signals[number] = signal.signal(number, self._stop_or_end)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._restore_signals()
            if self.portal.is_here:  # a forked child has nothing to leave
                self.portal(self._inner.__aexit__(kind, error, trace))
        finally:
            self._close()

    def _close(self) -> None:
        self._restore_signals()
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    def _restore_signals(self) -> None:
        for number, former in self._signals.items():
            if former is not None:
                signal.signal(number, former)
                self._signals[number] = None

    def _stop_or_end(self, number: int, _: FrameType | None) -> None:
        """Stop; in a forked child, in which nothing is to be stopped, do what the signal did before."""
        if self._portal is not None and not self._portal.is_here:
            self._restore_signals()
            signal.raise_signal(number)
        else:
            self.stop()

    def stop(self) -> None:
        """End every loop: after what is in hand, or at once if it waits."""
        if self._portal is not None and self._portal.is_here:
            self._portal.loop.call_soon_threadsafe(self._inner.stop)
