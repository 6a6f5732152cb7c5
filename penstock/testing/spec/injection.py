"""One run of a test with ``every``: record the points of a process, or inject a fault at one of them."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, Self

from penstock.testing.chaos.injection import Kind, PointFault
from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.proxy import ProxyFault
from penstock.testing.chaos.subject import Subject, wait_until_happened
from penstock.testing.sandbox import Sandbox

PACE_SECONDS: Final = 0.3
"""Seconds between two portions of messages until the fault happens."""
MEET_SECONDS: Final = 10.0
"""Time for a process to meet a point again; at most half the time limit of the step."""


@dataclass(frozen=True)
class PointInjection:
    """The fault at index ``place`` of step ``step`` (from 0), injected at ``point``; without a point, a recording.

    With ``stops``, it records the commands of a stop at that time, and of the next start.
    """

    step: int
    place: int
    process: str
    point: Point | None = None
    kind: Kind | None = None
    stops: bool = False

    def __str__(self) -> str:
        if self.kind:
            return f"{self.kind.value}: {self.point}"
        return f"{self.process} is stopped" if self.stops else "nothing is broken"


class Injector:
    """Carries out an ``injection`` with a proxy between its process and each server.

    ``found`` are the points recorded; ``met`` is True if the process met the point of the injection.
    """

    def __init__(self, injection: PointInjection) -> None:
        self.injection, self.found = injection, set[Point]()
        self.met = injection.point is None
        self.timeout = MEET_SECONDS
        self.fault: ProxyFault | None = None
        """The fault to inject, None until ``inject``."""
        self.subject: Subject
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    def watch(self, sandbox: Sandbox) -> None:
        """Take the process of ``sandbox``, which is not open yet."""
        self.subject = Subject(self.injection.process, sandbox)

    async def route(self, process: str, server: str, port: int) -> str:
        """Return the host and port to give to ``process`` for a server."""
        if process != self.injection.process:
            return f"127.0.0.1:{port}"
        return await self.subject.way(server, port, self._exits)

    async def begin(self) -> None:
        """Record the commands of a start; all processes have just been started."""
        await self.subject.wait_until_quiet(self.timeout / 2)
        self.found |= self.subject.seen(Phase.START)

    async def end(self) -> None:
        """Record the commands of a stop with no message in hand."""
        if self.injection.point is None and not self.injection.stops:
            self.found |= self.subject.seen(Phase.FLOW)
            await self._stop()

    async def inject(self, armed: asyncio.Event) -> None:
        """Bring the process to the point and inject the fault there; the process may be left dead.

        ``armed`` is set once messages may be pushed on.
        """
        point, kind = self.injection.point, self.injection.kind
        if point is None or kind is None:
            self.subject.forget()
            await self._stop()
            return

        async def go_on(_: int) -> None:
            armed.set()

        fault = PointFault(self.subject, point, kind, go_on, self.timeout)
        self.fault = fault.fault
        self.met = await fault.inject()
        if kind is Kind.KILL_BEFORE and Phase(point.phase) is Phase.FLOW and self.met:
            await self.subject.start(self.timeout / 2)
            self.found |= self.subject.seen(Phase.RECOVER, point.shape)

    async def _stop(self) -> None:
        await self.subject.process.stop()
        self.found |= self.subject.seen(Phase.STOP)

    async def pace(self) -> None:
        """Wait up to ``PACE_SECONDS`` for the fault: some replies come only with the next message."""
        if self.fault:
            await wait_until_happened(self.fault, PACE_SECONDS)
