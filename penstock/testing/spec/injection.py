"""One run of a test with ``every``: record the points of a process, or inject a fault at one of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final, Self

from redis.exceptions import RedisError

from penstock.testing.chaos.injection import ONCE, Kind, struck
from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.proxy import Blow, Gate, Moment
from penstock.testing.sandbox import Sandbox, ServiceProcess

LOOK: Final = 0.02
"""Seconds between two looks."""
QUIET: Final = 0.25
"""Seconds without a command after which a process has nothing more to ask for."""
PACE: Final = 0.3
"""Seconds between two parts of the messages, as long as the point is not struck."""
PATIENCE: Final = 10.0
"""Seconds until a process counts as not coming to a point again; half of what the step may take, if that is less."""


@dataclass(frozen=True)
class PointInjection:
    """The fault at ``place`` of step ``step``, counted from 0, made at ``point``; without a point, the run records.

    ``stops``: it records what the process asks for when it is stopped at that time, and starts again.
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
    """Carries out an ``injection``; there is a gate between its process and each server.

    ``found`` are the points that were recorded; ``met`` is whether the process came to that of the injection.
    """

    def __init__(self, injection: PointInjection) -> None:
        self.injection, self.found = injection, set[Point]()
        self.met = injection.point is None
        self.patience = PATIENCE
        self.blow: Blow | None = None
        """What is to fall, once the point is armed."""
        self._sandbox: Sandbox
        self._gates: dict[int, Gate] = {}
        self._exits = AsyncExitStack()
        self._phases: Mapping[Phase, Callable[[ServiceProcess, Gate, Blow, Kill, asyncio.Event], Awaitable[None]]] = {
            Phase.START: self._starting,
            Phase.FLOW: self._flowing,
            Phase.STOP: self._stopping,
            Phase.RECOVER: self._recovering,
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    async def route(self, process: str, port: int) -> str:
        """Return host and port that the process is given for the server at ``port``."""
        if process != self.injection.process:
            return f"127.0.0.1:{port}"
        if port not in self._gates:
            self._gates[port] = await self._exits.enter_async_context(Gate(port))
        return self._gates[port].address

    async def begin(self, sandbox: Sandbox) -> None:
        """Note what the process asks for at its start; all of ``sandbox`` have been started."""
        self._sandbox = sandbox
        await self._quiet()
        self.record(Phase.START)

    def record(self, phase: Phase, after: str = "") -> None:
        """Note what the process has asked for since the last call."""
        for host, gate in self._named():
            self.found |= {Point(self.injection.process, phase.value, host, shape, after) for shape in gate.seen}
            gate.seen.clear()

    async def end(self, process: ServiceProcess) -> None:
        """Note what the process asks for when it is stopped with nothing in hand."""
        if self.injection.point is None and not self.injection.stops:
            self.record(Phase.FLOW)
            await process.stop()
            self.record(Phase.STOP)

    async def happen(self, process: ServiceProcess, kill: "Kill", armed: asyncio.Event) -> None:
        """Bring the process to the point and inject the fault there; the process may be left dead.

        ``kill`` ends it, and its registration with it; ``armed`` is set when messages may go on.
        """
        point, kind = self.injection.point, self.injection.kind
        if point is None or kind is None:
            self._forget()
            await process.stop()
            self.record(Phase.STOP)
            return
        gate = next(gate for host, gate in self._named() if host == point.server)
        self.blow = blow = Blow(point.shape, kind.moment, act=kill if kind.kills else None)
        if point.shape.startswith("EVAL"):
            await self._forget_scripts()
        await self._phases[Phase(point.phase)](process, gate, blow, kill, armed)
        self.met, gate.blow = blow.struck.is_set(), None
        if kind is Kind.KILL_BEFORE and Phase(point.phase) is Phase.FLOW and self.met:
            self._forget()
            await process.start()
            await self._quiet()
            self.record(Phase.RECOVER, point.shape)

    async def pace(self) -> None:
        """Wait for the blow for a moment: some replies come only with the next message."""
        if self.blow:
            await struck(self.blow, PACE)

    async def _starting(self, process: ServiceProcess, gate: Gate, blow: Blow, _: "Kill", armed: asyncio.Event) -> None:
        await process.stop()
        gate.blow = blow
        armed.set()
        await process.start()
        await struck(blow, self.patience)

    async def _flowing(self, process: ServiceProcess, gate: Gate, blow: Blow, _: "Kill", armed: asyncio.Event) -> None:
        """What makes a connection or a script known is sent once, with the first message that a process gets."""
        if str(blow.shape).startswith(ONCE):
            await process.stop()
            self._forget()
            await process.start()
            await self._quiet()
        gate.blow = blow
        armed.set()
        await struck(blow, self.patience)

    async def _stopping(self, process: ServiceProcess, gate: Gate, blow: Blow, _: "Kill", armed: asyncio.Event) -> None:
        """What it asks for depends on whether it has something in hand."""
        gate.blow = blow
        await process.stop()
        armed.set()
        if not blow.struck.is_set():
            gate.blow = None
            self._forget()
            await process.start()
            await self._quiet()
            gate.blow = blow
            await process.stop()

    async def _recovering(
        self, process: ServiceProcess, gate: Gate, blow: Blow, kill: "Kill", armed: asyncio.Event
    ) -> None:
        after = self.injection.point.after if self.injection.point else ""
        gate.blow = first = Blow(after, Moment.BEFORE, act=kill)
        armed.set()
        if not await struck(first, self.patience / 2):
            await kill()
        gate.blow = blow
        await process.start()
        await struck(blow, self.patience / 2)

    async def _quiet(self) -> None:
        """Wait until the process has asked for something, and then for nothing more, as long as patience lasts."""
        count, loop = 0, asyncio.get_running_loop()
        since = loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience / 2):
                while not count or loop.time() - since < QUIET:
                    if (seen := sum(len(gate.seen) for gate in self._gates.values())) != count:
                        count, since = seen, loop.time()
                    await asyncio.sleep(LOOK)

    async def _forget_scripts(self) -> None:
        """A script's source is sent only to a server that does not know it."""
        for host in self._sandbox.servers:
            with suppress(RedisError):
                await self._sandbox.client(f"{host}/0").script_flush()

    def _forget(self) -> None:
        for gate in self._gates.values():
            gate.seen.clear()

    def _named(self) -> list[tuple[str, Gate]]:
        """Return the gates, each with what its server is called in the settings."""
        servers = {server.port: host for host, server in self._sandbox.servers.items()}
        return [(servers[port], gate) for port, gate in self._gates.items()]


Kill = Callable[[], Awaitable[None]]
