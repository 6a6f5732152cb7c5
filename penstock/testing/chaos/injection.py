"""A fault at a point: the process is brought there, and the connection is cut, or the process killed."""

import asyncio
from contextlib import suppress
from enum import Enum
from typing import Final

from penstock.testing.chaos.lane import BURST, LOOK, QUIET, Stage
from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.proxy import Blow, Gate, Moment
from penstock.testing.sandbox import ServiceProcess

REACH: Final = 12.0
"""Seconds in which a point is met, or is not: longer than from one renewal of a registration to the next."""
ONCE: Final = ("CLIENT", "HELLO", "AUTH", "SELECT", "EVAL ", "SCRIPT", "INFO")
"""How commands begin that a process may send once only."""


class Kind(Enum):
    """What happens at a point."""

    CUT_BEFORE = "cut before the command"
    CUT_AFTER = "cut before the reply"
    KILL_BEFORE = "kill -9 before the command"
    KILL_AFTER = "kill -9 before the reply"

    @property
    def moment(self) -> Moment:
        return Moment.BEFORE if self in (Kind.CUT_BEFORE, Kind.KILL_BEFORE) else Moment.AFTER

    @property
    def kills(self) -> bool:
        return self in (Kind.KILL_BEFORE, Kind.KILL_AFTER)


async def struck_at(stage: Stage, number: int, point: Point, kind: Kind) -> bool:
    """Push messages of account ``number`` before and after it. Returns whether the process came to that point."""

    async def kill() -> None:
        await stage.kill(point.process)

    blow = Blow(point.shape, kind.moment, act=kill if kind.kills else None)
    gate = stage.gates[point.process][point.server]
    if point.shape.startswith("EVAL"):
        await _forget_scripts(stage)
    if point.after:
        await stage.interrupted(point, number)
        gate.blow = blow
        await stage.revive(point.process)
        await _met(stage, number, blow)
    else:
        await _PHASES[Phase(point.phase)](stage, number, stage.processes[point.process], gate, blow)
    gate.blow = None
    await stage.revive(point.process)
    await stage.push(number, BURST)
    return blow.struck.is_set()


async def _starting(stage: Stage, number: int, process: ServiceProcess, gate: Gate, blow: Blow) -> None:
    await process.stop()
    await stage.push(number, BURST)
    gate.blow = blow
    await process.start()
    await _met(stage, number, blow)


async def _flowing(stage: Stage, number: int, process: ServiceProcess, gate: Gate, blow: Blow) -> None:
    """What makes a connection or a script known happens once, with the first message that a process gets."""
    if str(blow.shape).startswith(ONCE):
        await process.stop()
        await process.start()
        await stage.started(process.name)
    gate.blow = blow
    await stage.push(number, 1 + BURST)
    await _met(stage, number, blow)


async def _stopping(stage: Stage, number: int, process: ServiceProcess, gate: Gate, blow: Blow) -> None:
    """What it asks for depends on what it has in hand: nothing, or something."""
    for many, wait in ((1 + BURST, 0.0), (0, QUIET), (1 + BURST, LOOK / 4), (0, QUIET)):
        if many:
            await stage.push(number, many)
        await asyncio.sleep(wait)
        gate.blow = blow
        await process.stop()
        if blow.struck.is_set():
            return
        gate.blow = None
        await process.start()
        await stage.started(process.name)


async def _met(stage: Stage, number: int, blow: Blow) -> None:
    """Some commands come only with a message, others only now and then."""
    for _ in range(round(REACH)):
        if await struck(blow, 1):
            return
        if str(blow.shape).startswith("EVAL "):
            await _forget_scripts(stage)
        await stage.push(number, 1)


async def _forget_scripts(stage: Stage) -> None:
    """A script's source is sent only to a server that does not know it, and another process may have told it."""
    for server in stage.servers:
        await stage.command(server, "SCRIPT", "FLUSH")


async def struck(blow: Blow, seconds: float) -> bool:
    """Whether it falls in so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await blow.struck.wait()
    return blow.struck.is_set()


_PHASES: Final = {Phase.START: _starting, Phase.FLOW: _flowing, Phase.STOP: _stopping}
