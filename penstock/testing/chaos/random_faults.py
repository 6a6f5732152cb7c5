"""Random faults, injected while messages flow through a composition."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from penstock.testing.chaos.lane import Lane
from penstock.testing.chaos.proxy import FaultProxy, ProxyFault, Timing
from penstock.testing.chaos.subject import BURST_SIZE, MEET_SECONDS, Subject, wait_until_happened

HOLD_SECONDS: Final = 1.0
"""Duration of a fault that ends by itself."""


@dataclass
class FaultContext:
    """What a random fault needs; ``only`` is the process to choose, None for any."""

    lane: Lane
    number: int
    rng: random.Random
    only: str | None = None

    @property
    def subject(self) -> Subject:
        return self.lane.subjects[self.only or self.rng.choice(sorted(self.lane.subjects))]

    @property
    def proxies(self) -> list[FaultProxy]:
        return list(self.subject.proxies.values())

    @property
    def server(self) -> str:
        return self.rng.choice(sorted(self.lane.servers))

    async def wait(self) -> None:
        """Wait for up to 0.1 s, so that the fault happens anywhere in the flow."""
        await asyncio.sleep(self.rng.uniform(0, 0.1))


async def terminated(context: FaultContext) -> None:
    process = context.subject.process
    await context.wait()
    await process.stop()
    await process.start()


async def killed(context: FaultContext) -> None:
    subject = context.subject
    await context.wait()
    await subject.kill()
    await subject.process.start()


async def server_restarted(context: FaultContext) -> None:
    server = context.server
    await context.wait()
    await context.lane.restart_server(server)


async def scripts_flushed(context: FaultContext) -> None:
    await context.wait()
    await context.lane.command(context.server, "SCRIPT", "FLUSH")


async def paused(context: FaultContext) -> None:
    await context.wait()
    await context.lane.command(context.server, "CLIENT", "PAUSE", int(HOLD_SECONDS * 1000), "ALL")


async def full(context: FaultContext) -> None:
    server = context.server
    await context.wait()
    await context.lane.command(server, "CONFIG", "SET", "maxmemory", "1")
    await asyncio.sleep(HOLD_SECONDS)
    await context.lane.command(server, "CONFIG", "SET", "maxmemory", "0")


async def slow(context: FaultContext) -> None:
    proxies = context.proxies
    for proxy in proxies:
        proxy.delay = context.rng.uniform(0.02, 0.2)
    await context.lane.push(context.number, BURST_SIZE)
    await asyncio.sleep(HOLD_SECONDS)
    for proxy in proxies:
        proxy.delay = 0


async def swallowed(context: FaultContext) -> None:
    proxy = context.rng.choice(context.proxies)
    fault = ProxyFault(None, context.rng.choice(list(Timing)), swallows=True)
    await context.wait()
    proxy.fault = fault
    await context.lane.push(context.number, BURST_SIZE)
    await wait_until_happened(fault, MEET_SECONDS)
    proxy.fault = None


async def wrong_type(context: FaultContext) -> None:
    end = context.rng.choice(context.lane.lists())
    await context.wait()
    mend = await context.lane.spoil(end)
    await context.lane.push(context.number, 1)
    await asyncio.sleep(HOLD_SECONDS)
    await mend()


WRONG_TYPE: Final = "wrong type"
FAULTS: Final[dict[str, Callable[[FaultContext], Awaitable[None]]]] = {
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
"""Faults of which two may happen at once."""
