"""Injection of a fault at a point: bring the process there, then cut its connection or kill it."""

import asyncio
from enum import Enum

from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.proxy import ProxyFault, Timing
from penstock.testing.chaos.subject import (
    BURST_SIZE,
    MEET_SECONDS,
    POLL_SECONDS,
    QUIET_SECONDS,
    SENT_ONCE,
    Messages,
    Subject,
    wait_until_happened,
)


class Kind(Enum):
    """The kind of fault at a point."""

    CUT_BEFORE = "cut before the command"
    CUT_AFTER = "cut before the reply"
    KILL_BEFORE = "kill -9 before the command"
    KILL_AFTER = "kill -9 before the reply"

    @property
    def timing(self) -> Timing:
        return Timing.BEFORE if self in (Kind.CUT_BEFORE, Kind.KILL_BEFORE) else Timing.AFTER

    @property
    def kills(self) -> bool:
        return self in (Kind.KILL_BEFORE, Kind.KILL_AFTER)


class PointFault:
    """The fault of ``kind`` at ``point`` of ``subject``; it is tried for ``timeout`` seconds."""

    def __init__(
        self, subject: Subject, point: Point, kind: Kind, messages: Messages, timeout: float = MEET_SECONDS
    ) -> None:
        self._subject, self._point, self._messages, self._timeout = subject, point, messages, timeout
        self._proxy = subject.proxies[point.server]
        self.fault = ProxyFault(point.shape, kind.timing, act=subject.kill if kind.kills else None)

    async def inject(self) -> bool:
        """Return False if the process did not meet the point. It may be left dead."""
        if self._point.shape.startswith("EVAL"):
            await self._subject.forget_scripts()
        phases = {
            Phase.START: self._starting,
            Phase.FLOW: self._flowing,
            Phase.STOP: self._stopping,
            Phase.RECOVER: self._recovering,
        }
        await phases[Phase(self._point.phase)]()
        self._proxy.fault = None
        return self.fault.happened.is_set()

    async def _starting(self) -> None:
        await self._subject.process.stop()
        await self._messages(BURST_SIZE)
        self._proxy.fault = self.fault
        await self._subject.process.start()
        await self._met()

    async def _flowing(self) -> None:
        """Restart the process for commands that it sends only once, with its first message."""
        if self._point.shape.startswith(SENT_ONCE):
            await self._subject.process.stop()
            await self._subject.start()
        self._proxy.fault = self.fault
        await self._messages(1 + BURST_SIZE)
        await self._met()

    async def _stopping(self) -> None:
        """Stop the process with messages in hand and without: its commands depend on that."""
        burst = 1 + BURST_SIZE
        for many, wait in ((burst, 0.0), (0, QUIET_SECONDS), (burst, POLL_SECONDS / 4), (0, QUIET_SECONDS)):
            if many:
                await self._messages(many)
            await asyncio.sleep(wait)
            self._proxy.fault = self.fault
            await self._subject.process.stop()
            if self.fault.happened.is_set():
                return
            self._proxy.fault = None
            await self._subject.start()

    async def _recovering(self) -> None:
        await self._subject.kill_at(self._point, self._messages)
        self._proxy.fault = self.fault
        await self._subject.process.start()
        await self._met()

    async def _met(self) -> None:
        """Wait for the fault, with a message each second: some commands come only with one or now and then."""
        for _ in range(max(1, round(self._timeout))):
            if await wait_until_happened(self.fault, 1):
                return
            if self._point.shape.startswith("EVAL "):
                await self._subject.forget_scripts()
            await self._messages(1)
