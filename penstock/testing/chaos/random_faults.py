"""Faults by chance: what is done to a composition while messages go through it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from penstock.testing.chaos.injection import REACH, struck
from penstock.testing.chaos.lane import BURST, Stage
from penstock.testing.chaos.proxy import Blow, Gate, Moment

HOLD: Final = 1.0
"""Seconds that a condition lasts that passes by itself."""


@dataclass
class Scene:
    """What a fault by chance has to do with."""

    stage: Stage
    number: int
    chance: random.Random
    only: str | None = None

    @property
    def process(self) -> str:
        return self.only or self.chance.choice(sorted(self.stage.processes))

    @property
    def gates(self) -> list[Gate]:
        return list(self.stage.gates[self.process].values())

    @property
    def server(self) -> str:
        return self.chance.choice(sorted(self.stage.servers))

    async def wait(self) -> None:
        """A moment, so that it happens anywhere in the flow."""
        await asyncio.sleep(self.chance.uniform(0, 0.1))


async def terminated(scene: Scene) -> None:
    process = scene.process
    await scene.wait()
    await scene.stage.restarted(process)


async def killed(scene: Scene) -> None:
    process = scene.process
    await scene.wait()
    await scene.stage.kill(process)
    await scene.stage.revive(process)


async def server_restarted(scene: Scene) -> None:
    server = scene.server
    await scene.wait()
    await scene.stage.restart_server(server)


async def scripts_flushed(scene: Scene) -> None:
    await scene.wait()
    await scene.stage.command(scene.server, "SCRIPT", "FLUSH")


async def paused(scene: Scene) -> None:
    await scene.wait()
    await scene.stage.command(scene.server, "CLIENT", "PAUSE", int(HOLD * 1000), "ALL")


async def full(scene: Scene) -> None:
    server = scene.server
    await scene.wait()
    await scene.stage.command(server, "CONFIG", "SET", "maxmemory", "1")
    await asyncio.sleep(HOLD)
    await scene.stage.command(server, "CONFIG", "SET", "maxmemory", "0")


async def slow(scene: Scene) -> None:
    gates = scene.gates
    for gate in gates:
        gate.delay = scene.chance.uniform(0.02, 0.2)
    await scene.stage.push(scene.number, BURST)
    await asyncio.sleep(HOLD)
    for gate in gates:
        gate.delay = 0


async def swallowed(scene: Scene) -> None:
    gate = scene.chance.choice(scene.gates)
    blow = Blow(None, scene.chance.choice(list(Moment)), swallows=True)
    await scene.wait()
    gate.blow = blow
    await scene.stage.push(scene.number, BURST)
    await struck(blow, REACH)
    gate.blow = None


async def wrong_type(scene: Scene) -> None:
    end = scene.chance.choice(scene.stage.lists())
    await scene.wait()
    mend = await scene.stage.spoil(end)
    await scene.stage.push(scene.number, 1)
    await asyncio.sleep(HOLD)
    await mend()


WRONG_TYPE: Final = "wrong type"
FAULTS: Final[dict[str, Callable[[Scene], Awaitable[None]]]] = {
    "SIGTERM": terminated,
    "kill -9": killed,
    "server restart": server_restarted,
    "SCRIPT FLUSH": scripts_flushed,
    "CLIENT PAUSE": paused,
    "maxmemory": full,
    "slow link": slow,
    "swallowed packet": swallowed,
    WRONG_TYPE: wrong_type,
}
PAIRED: Final = ("SIGTERM", "kill -9", "SCRIPT FLUSH", "CLIENT PAUSE", "slow link", "server restart")
"""Faults that may happen two at once."""
