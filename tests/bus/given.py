"""What tests of the bus share: an attached queue, messages taken from it, waiting, and counting calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from penstock.bus import Bus, Message, Queue, Service
from penstock.bus.federation import FederatedQueue


async def attached(bus: Bus, *messages: bytes | str, name: str = "foo", **options: Any) -> Queue:
    """Return a queue of ``bus``, attached, with ``messages``."""
    queue = bus.queue(name)
    await queue.attach(**options)
    await queue.push_many(messages)
    return queue


async def take(queue: Queue | FederatedQueue, many: int, **options: Any) -> list[tuple[int, bytes]]:
    """Consume ``many`` messages and leave the loop."""
    taken = list[Message]()
    async for message in queue.consume(**options):
        taken.append(message)
        if len(taken) == many:
            break
    await queue.stop()
    return [(each.id, each.body) for each in taken]


async def calls(redis: "Redis", *commands: str) -> int:
    """Return how often the server has executed ``commands``, by default scripts."""
    found = await redis.info("commandstats")
    return sum(found.get(f"cmdstat_{each}", {}).get("calls", 0) for each in commands or ("evalsha", "eval"))


async def settled(redis: "Redis", *commands: str) -> int:
    """Return as ``calls`` does once no more come, for three looks in a row."""
    found = [-1, -2, -3]
    while len(set(found[-3:])) > 1:
        found.append(await calls(redis, *commands))
        await asyncio.sleep(0.05)
    return found[-1]


def keep_alive(bus: Bus) -> None:
    """Let the turn of all queues come to be kept alive, as it does each third of their ttl."""
    for instance in bus.instances:
        bus._alive.hurry(instance)


def lose_patience(bus: Bus, seconds: float) -> None:
    """Let calls wait for ``seconds`` from now on: what was to succeed before had all the time of a slow machine."""
    bus._patience.seconds = seconds


def heard(emitter: Any, *but: str) -> list[tuple[Any, ...]]:
    """Return a list that gets all events of ``emitter`` from now on, with their values, except those in ``but``."""
    events = list[tuple[Any, ...]]()
    for event in emitter.EVENTS - set(but):
        emitter.on(event, lambda *values, event=event: events.append((event, *values)))
    return events


async def requester(bus: Bus, name: str = "echo") -> Service:
    service = bus.service(name)
    await service.connect()
    return service


async def provider(bus: Bus, handler: Any = None, name: str = "echo", **options: Any) -> Service:
    service = bus.service(name)
    await service.serve(handler, **options)
    return service


@asynccontextmanager
async def replies_lost(redis: "Redis") -> AsyncIterator[None]:
    """Let the server execute no writes while the block runs, and then end all connections before they are executed."""
    await redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        yield
        await redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    finally:
        await redis.execute_command("CLIENT", "UNPAUSE")


async def blocked(redis: "Redis") -> int:
    return int((await redis.info("clients"))["blocked_clients"])
