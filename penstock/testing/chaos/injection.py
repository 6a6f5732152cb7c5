"""Injection of a fault at a point: bring the process there, then cut its connection or kill it."""

import asyncio
from contextlib import suppress
from enum import Enum
from typing import Final

from penstock.testing.chaos.lane import BURST_SIZE, POLL_SECONDS, QUIET_SECONDS, Lane
from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.proxy import FaultProxy, ProxyFault, Timing
from penstock.testing.service_process import ServiceProcess

MEET_SECONDS: Final = 12.0
"""Seconds to wait for a process to meet a point: longer than the time between two renewals of a registration."""
SENT_ONCE: Final = ("CLIENT", "HELLO", "AUTH", "SELECT", "EVAL ", "SCRIPT", "INFO")
"""Prefixes of commands that a process may send only once."""


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


async def inject_at(lane: Lane, number: int, point: Point, kind: Kind) -> bool:
    """Inject a fault amid messages of account ``number``. Return False if the process did not meet the point."""

    async def kill() -> None:
        await lane.kill(point.process)

    fault = ProxyFault(point.shape, kind.timing, act=kill if kind.kills else None)
    proxy = lane.proxies[point.process][point.server]
    if point.shape.startswith("EVAL"):
        await _forget_scripts(lane)
    if point.after:
        await lane.kill_at(point, number)
        proxy.fault = fault
        await lane.revive(point.process)
        await _met(lane, number, fault)
    else:
        await _PHASES[Phase(point.phase)](lane, number, lane.processes[point.process], proxy, fault)
    proxy.fault = None
    await lane.revive(point.process)
    await lane.push(number, BURST_SIZE)
    return fault.happened.is_set()


async def _starting(lane: Lane, number: int, process: ServiceProcess, proxy: FaultProxy, fault: ProxyFault) -> None:
    await process.stop()
    await lane.push(number, BURST_SIZE)
    proxy.fault = fault
    await process.start()
    await _met(lane, number, fault)


async def _flowing(lane: Lane, number: int, process: ServiceProcess, proxy: FaultProxy, fault: ProxyFault) -> None:
    """Restart the process for commands that it sends only once, with its first message."""
    if str(fault.shape).startswith(SENT_ONCE):
        await process.stop()
        await process.start()
        await lane.wait_until_started(process.name)
    proxy.fault = fault
    await lane.push(number, 1 + BURST_SIZE)
    await _met(lane, number, fault)


async def _stopping(lane: Lane, number: int, process: ServiceProcess, proxy: FaultProxy, fault: ProxyFault) -> None:
    """Stop the process with messages in hand and without: its commands depend on that."""
    burst = 1 + BURST_SIZE
    for many, wait in ((burst, 0.0), (0, QUIET_SECONDS), (burst, POLL_SECONDS / 4), (0, QUIET_SECONDS)):
        if many:
            await lane.push(number, many)
        await asyncio.sleep(wait)
        proxy.fault = fault
        await process.stop()
        if fault.happened.is_set():
            return
        proxy.fault = None
        await process.start()
        await lane.wait_until_started(process.name)


async def _met(lane: Lane, number: int, fault: ProxyFault) -> None:
    """Wait for the fault and push a message each second: some commands come only with one, others only now and then."""
    for _ in range(round(MEET_SECONDS)):
        if await wait_until_happened(fault, 1):
            return
        if str(fault.shape).startswith("EVAL "):
            await _forget_scripts(lane)
        await lane.push(number, 1)


async def _forget_scripts(lane: Lane) -> None:
    """Flush all scripts, since a process sends the source only if no other one has loaded the script."""
    for server in lane.servers:
        await lane.command(server, "SCRIPT", "FLUSH")


async def wait_until_happened(fault: ProxyFault, seconds: float) -> bool:
    """Return True if ``fault`` happens within ``seconds``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await fault.happened.wait()
    return fault.happened.is_set()


_PHASES: Final = {Phase.START: _starting, Phase.FLOW: _flowing, Phase.STOP: _stopping}
