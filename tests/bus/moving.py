"""What tests of moved queues share: queues, a move, what the servers have, load, and moves that are killed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.bus import Bus, Queue
from penstock.bus.move import Mover, Step
from penstock.core.instance import Instance
from penstock.core.script import Script


async def filled(bus: Bus, name: str, many: int, server: int = 0, **options: Any) -> Queue:
    """Create a queue on one server, whatever the placement."""
    async with Bus(bus.instances[server].url) as alone:
        queue = alone.queue(name)
        await queue.attach(**options)
        await queue.push_many(str(number) for number in range(1, many + 1))
    found = bus.queue(name)
    await found.attach()
    assert found.instance is bus.instances[server]
    return found


async def move(bus: Bus, target: int = 1, pattern: str = "*") -> Mover:
    mover = Mover(bus, target=bus.instances[target])
    errors = list[Exception]()
    await mover.run(await mover.plan(pattern), lambda _, error: errors.append(error) if error else None)
    if errors:
        raise errors[0]
    return mover


async def state(redis: "Redis", name: str) -> dict[str, Any]:
    """Return all that a server has of a queue."""
    prefix = f"bus:queue:{name}:"
    return {
        "metadata": await redis.hgetall(prefix + "metadata"),
        "messages": await redis.lrange(prefix + "messages", 0, -1),
        "toack": await redis.lrange(prefix + "toack", 0, -1),
        "msgid": await redis.get(prefix + "msgid"),
        "lease": await redis.get(prefix + "consumer"),
    }


async def left_behind(servers: list["Redis"]) -> list[bytes]:
    """Return the keys of moves but the notes of those that have ended."""
    keys = [bytes(key) for redis in servers for key in await redis.keys("bus:moving:*")]  # type: ignore[arg-type]  # bytes
    return [key for key in keys if not key.endswith(b":arrival")]


@asynccontextmanager
async def under_load(two: list[str], names: list[str], many: int) -> AsyncIterator[dict[str, list[str]]]:
    """Push ``many`` messages to each queue and take them, both in a bus of their own, while the block runs."""
    got: dict[str, list[str]] = {name: [] for name in names}
    async with Bus(*two, patience=30) as giver, Bus(*two, patience=30) as taker:

        async def push(name: str) -> None:
            queue = giver.queue(name)
            await queue.attach()
            for number in range(many):
                await queue.push(f"{name} {number}")

        async def take(name: str, place: int) -> None:
            queue = taker.queue(name)
            await queue.attach()
            reliable = place % 2 == 0
            async for message in queue.consume(reliable=reliable, exclusive=reliable):
                got[name].append(str(message))
                if reliable:
                    await message.ack()
                if len(got[name]) == many:
                    return

        tasks = [asyncio.create_task(push(name)) for name in names]
        tasks += [asyncio.create_task(take(name, place)) for place, name in enumerate(names)]
        yield got
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)


class Killed(BaseException):
    """Stands for kill -9: no handler of a move runs its course."""


def interrupted(monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool) -> Callable[[], bool]:
    """Kill the client that runs script ``at`` of a move, before or after the server does; tell whether it was."""
    run, calls = Instance.run, 0

    async def counted(self: Instance, script: Script, **named: Any) -> Any:
        nonlocal calls
        if calls > at:  # what is dead does nothing
            raise Killed
        calls += 1
        if calls > at and not after:
            raise Killed
        result = await run(self, script, **named)
        if calls > at:
            raise Killed
        return result

    monkeypatch.setattr(Instance, "run", counted)
    return lambda: calls > at


class Killable(Mover):
    """A mover that dies after a number of calls, alone: the clients of the same process live."""

    def __init__(self, bus: Bus, at: int) -> None:
        super().__init__(bus)
        self._left = at

    async def move(self, step: Step) -> None:
        await super().move(Step(step.name, self.dying(step.source), self.dying(step.target)))  # type: ignore[arg-type]

    def dying(self, instance: Instance) -> "Dying":
        proxy = Dying(instance, self)
        self._by_address = {address: proxy if each is instance else each for address, each in self._by_address.items()}  # type: ignore[misc]
        return proxy


class Dying:
    """One server as a mover that is to die sees it."""

    def __init__(self, instance: Instance, mover: Killable) -> None:
        self.url, self.address, self.confirms = instance.url, instance.address, instance.confirms
        self._instance, self._mover = instance, mover

    async def run(self, script: Script, **named: Any) -> Any:
        self._mover._left -= 1
        if self._mover._left < 0:
            raise Killed
        return await self._instance.run(script, **named)

    async def command(self, name: str, *words: Any) -> Any:
        if self._mover._left < 0:
            raise Killed
        return await self._instance.command(name, *words)
