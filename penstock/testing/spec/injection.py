"""One run of a test with ``every``: record the points of a process, or inject a fault at one of them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final, Self

from redis.exceptions import RedisError

from penstock.testing.chaos.injection import SENT_ONCE, Kind, wait_until_happened
from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.proxy import FaultProxy, ProxyFault, Timing
from penstock.testing.sandbox import Sandbox
from penstock.testing.service_process import ServiceProcess

POLL_SECONDS: Final = 0.02
"""Seconds between two checks."""
QUIET_SECONDS: Final = 0.25
"""Seconds without a command after which a process counts as quiet."""
PACE_SECONDS: Final = 0.3
"""Seconds between two portions of messages until the fault happens."""
MEET_SECONDS: Final = 10.0
"""Time for a process to meet a point again; at most half the time limit of the step."""
Kill = Callable[[], Awaitable[None]]


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
        self._sandbox: Sandbox
        self._kill: Kill
        self._armed: asyncio.Event
        self._proxies: dict[int, FaultProxy] = {}
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    async def route(self, process: str, port: int) -> str:
        """Return the host and port to give to ``process`` for the server at ``port``."""
        if process != self.injection.process:
            return f"127.0.0.1:{port}"
        if port not in self._proxies:
            self._proxies[port] = await self._exits.enter_async_context(FaultProxy(port))
        return self._proxies[port].address

    async def begin(self, sandbox: Sandbox) -> None:
        """Record the commands of a start; all processes of ``sandbox`` have just been started."""
        self._sandbox = sandbox
        await self._quiet()
        self.record(Phase.START)

    def record(self, phase: Phase, after: str = "") -> None:
        """Record the commands of the process since the last call."""
        for host, proxy in self._named():
            self.found |= {Point(self.injection.process, phase.value, host, shape, after) for shape in proxy.seen}
            proxy.seen.clear()

    async def end(self, process: ServiceProcess) -> None:
        """Record the commands of a stop with no message in hand."""
        if self.injection.point is None and not self.injection.stops:
            self.record(Phase.FLOW)
            await process.stop()
            self.record(Phase.STOP)

    async def inject(self, process: ServiceProcess, kill: Kill, armed: asyncio.Event) -> None:
        """Bring the process to the point and inject the fault there; the process may be left dead.

        ``kill`` ends it and its registration; ``armed`` is set once messages may be pushed on.
        """
        point, kind = self.injection.point, self.injection.kind
        self._kill, self._armed = kill, armed
        if point is None or kind is None:
            self._forget()
            await process.stop()
            self.record(Phase.STOP)
            return
        proxy = next(proxy for host, proxy in self._named() if host == point.server)
        self.fault = fault = ProxyFault(point.shape, kind.timing, act=kill if kind.kills else None)
        if point.shape.startswith("EVAL"):
            await self._forget_scripts()
        phases = {
            Phase.START: self._starting,
            Phase.FLOW: self._flowing,
            Phase.STOP: self._stopping,
            Phase.RECOVER: self._recovering,
        }
        await phases[Phase(point.phase)](process, proxy, fault)
        self.met, proxy.fault = fault.happened.is_set(), None
        if kind is Kind.KILL_BEFORE and Phase(point.phase) is Phase.FLOW and self.met:
            self._forget()
            await process.start()
            await self._quiet()
            self.record(Phase.RECOVER, point.shape)

    async def pace(self) -> None:
        """Wait up to ``PACE_SECONDS`` for the fault: some replies come only with the next message."""
        if self.fault:
            await wait_until_happened(self.fault, PACE_SECONDS)

    async def _starting(self, process: ServiceProcess, proxy: FaultProxy, fault: ProxyFault) -> None:
        await process.stop()
        proxy.fault = fault
        self._armed.set()
        await process.start()
        await wait_until_happened(fault, self.timeout)

    async def _flowing(self, process: ServiceProcess, proxy: FaultProxy, fault: ProxyFault) -> None:
        """Restart the process for commands that it sends only once, with its first message."""
        if str(fault.shape).startswith(SENT_ONCE):
            await process.stop()
            self._forget()
            await process.start()
            await self._quiet()
        proxy.fault = fault
        self._armed.set()
        await wait_until_happened(fault, self.timeout)

    async def _stopping(self, process: ServiceProcess, proxy: FaultProxy, fault: ProxyFault) -> None:
        """Stop the process with messages in hand and without: its commands depend on that."""
        proxy.fault = fault
        await process.stop()
        self._armed.set()
        if not fault.happened.is_set():
            proxy.fault = None
            self._forget()
            await process.start()
            await self._quiet()
            proxy.fault = fault
            await process.stop()

    async def _recovering(self, process: ServiceProcess, proxy: FaultProxy, fault: ProxyFault) -> None:
        after = self.injection.point.after if self.injection.point else ""
        proxy.fault = first = ProxyFault(after, Timing.BEFORE, act=self._kill)
        self._armed.set()
        if not await wait_until_happened(first, self.timeout / 2):
            await self._kill()
        proxy.fault = fault
        await process.start()
        await wait_until_happened(fault, self.timeout / 2)

    async def _quiet(self) -> None:
        """Wait until the process has sent a command and then been quiet, for at most half of ``timeout``."""
        count, loop = 0, asyncio.get_running_loop()
        since = loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.timeout / 2):
                while not count or loop.time() - since < QUIET_SECONDS:
                    if (seen := sum(len(proxy.seen) for proxy in self._proxies.values())) != count:
                        count, since = seen, loop.time()
                    await asyncio.sleep(POLL_SECONDS)

    async def _forget_scripts(self) -> None:
        """Flush all scripts, since a process sends the source only to a server without it."""
        for host in self._sandbox.servers:
            with suppress(RedisError):
                await self._sandbox.client(f"{host}/0").script_flush()

    def _forget(self) -> None:
        for proxy in self._proxies.values():
            proxy.seen.clear()

    def _named(self) -> list[tuple[str, FaultProxy]]:
        """Return the proxies, each with the name of its server in the settings."""
        servers = {server.port: host for host, server in self._sandbox.servers.items()}
        return [(servers[port], proxy) for port, proxy in self._proxies.items()]
