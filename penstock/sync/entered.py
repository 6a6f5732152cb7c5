"""Blocking twins that are entered, as their asynchronous ones with ``async with``."""

import signal
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from penstock.base.errors import WrongCall
from penstock.base.stop_signals import StopSignals
from penstock.sync.portal import Portal
from penstock.sync.twin import Host, Twin


class Entered(Twin):
    """Enters ``inner`` in a thread of its own, and stops it at ``stop_signals``.

    ``again`` makes another one for the next ``with``, which knows nothing of the former; by default it is the same.
    """

    def __init__(
        self,
        inner: Any,
        stop_signals: Iterable[signal.Signals] = (),
        *,
        again: Callable[[], Any] | None = None,
        host: type[Host] = Host,
    ) -> None:
        super().__init__(inner, host(type(self).__name__))
        self._signals, self._again = StopSignals(stop_signals, self._stop), again
        self._was_entered = False

    @property
    def run(self) -> Portal:
        """Run a coroutine, such as ``request.touch(60)``, and return its result."""
        return self._host.run

    def __enter__(self) -> Self:
        """Begin. Raise ``WrongCall`` inside of another ``with``."""
        if self._host.portal is not None:
            raise WrongCall("it is connected already: expected one `with` at a time")
        self._signals.check()
        if self._again and self._was_entered:
            self._inner, self._host = self._again(), Host(type(self).__name__)
        self._was_entered = True
        try:
            self._host.portal = Portal()
            self._host.run(self._inner.__aenter__())
            self._signals.enter()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and close all connections."""
        try:
            self._signals.leave()
            if self._host.run.is_here:  # a forked child has nothing to leave
                self._host.run(self._inner.__aexit__(kind, error, trace))
        finally:
            self._close()

    def _close(self) -> None:
        self._signals.leave()
        portal, self._host.portal = self._host.portal, None
        if portal is not None:
            portal.close()

    def _stop(self) -> None:
        portal = self._host.portal
        if portal is not None and portal.is_here:
            portal.loop.call_soon_threadsafe(self._inner.stop)
