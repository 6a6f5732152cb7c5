"""A fault at a point: the process is brought there, and the connection is cut, or the process killed."""

import asyncio
from contextlib import suppress
from enum import Enum
from typing import Final

from penstock.testing.chaos.lane import BURST_SIZE, POLL_SECONDS, QUIET_SECONDS, Lane
from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.proxy import FaultProxy, ProxyFault, Timing
from penstock.testing.sandbox import ServiceProcess

MEET_SECONDS: Final = 12.0
"""Seconds in which a point is met, or is not: longer than from one renewal of a registration to the next."""
SENT_ONCE: Final = ("CLIENT", "HELLO", "AUTH", "SELECT", "EVAL ", "SCRIPT", "INFO")
"""How commands begin that a process may send once only."""


class Kind(Enum):
    """What happens at a point."""

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
    """Push messages of account ``number`` before and after it. Returns whether the process came to that point."""

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
    """What makes a connection or a script known happens once, with the first message that a process gets."""
    if str(fault.shape).startswith(SENT_ONCE):
        await process.stop()
        await process.start()
        await lane.wait_until_started(process.name)
    proxy.fault = fault
    await lane.push(number, 1 + BURST_SIZE)
    await _met(lane, number, fault)


async def _stopping(lane: Lane, number: int, process: ServiceProcess, proxy: FaultProxy, fault: ProxyFault) -> None:
    """What it asks for depends on what it has in hand: nothing, or something."""
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
    """Some commands come only with a message, others only now and then."""
    for _ in range(round(MEET_SECONDS)):
        if await wait_until_happened(fault, 1):
            return
        if str(fault.shape).startswith("EVAL "):
            await _forget_scripts(lane)
        await lane.push(number, 1)


async def _forget_scripts(lane: Lane) -> None:
    """A script's source is sent only to a server that does not know it, and another process may have told it."""
    for server in lane.servers:
        await lane.command(server, "SCRIPT", "FLUSH")


async def wait_until_happened(fault: ProxyFault, seconds: float) -> bool:
    """Whether it falls in so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await fault.happened.wait()
    return fault.happened.is_set()


_PHASES: Final = {Phase.START: _starting, Phase.FLOW: _flowing, Phase.STOP: _stopping}
