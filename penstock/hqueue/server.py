"""The queues of one service over HTTP: connections, and the end of all loops."""

import asyncio
import signal
from collections.abc import Iterable
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from penstock.base.log import Log
from penstock.base.stop_signals import StopSignals
from penstock.core.consumer import Consumers
from penstock.core.patience import HURRY_SECONDS
from penstock.hqueue.http import Http
from penstock.hqueue.queue import Queue

if TYPE_CHECKING:
    import httpx

_log: Final = Log("penstock.hqueue")


class Queues:
    """The queues of one hqueue: ``async with Queues("http://localhost:8080") as queues: await queues["a"].add(1)``.

    ``token`` is what `penstock token add` has printed, or refers to it as @FILE or env:NAME. ``patience`` is how long
    (s) a call waits while the service is away, before it raises ``Unavailable``; None waits without end, as loops over
    tasks do. ``stop_signals``, e.g. ``[signal.SIGTERM]``, call ``stop``. ``transport`` is one of httpx, e.g. with
    certificates of your own.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        patience: float | None = 60.0,
        stop_signals: Iterable[signal.Signals] = (),
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        self.http = Http(url, token, patience, transport)
        self.consumers = Consumers(_log, "async with Queues(...) as queues:")
        """Those that take tasks now."""
        self._signals = StopSignals(stop_signals, self.stop)

    def __repr__(self) -> str:
        return f"<queues of {self.http.url}>"

    def __getitem__(self, service: str) -> Queue:
        return Queue(self.http, self.consumers, service)

    @property
    def stopping(self) -> bool:
        """Return whether a stop signal has come, or ``stop`` was called: loops end after the task in hand."""
        return self.consumers.stopping

    async def __aenter__(self) -> Self:
        self._signals.check()
        await self.http.open()
        self.http.hurry = inf
        await self.consumers.__aenter__()
        self._signals.enter(asyncio.get_running_loop())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signals.leave()
        self.stop()  # loops of other tasks end
        try:
            await self.consumers.__aexit__()
        finally:
            await self.http.close()

    def stop(self) -> None:
        """End every loop over tasks: after the task in hand, or at once if it waits for one."""
        self.http.hurry = HURRY_SECONDS
        self.consumers.stop()
