"""What tests of a bus with an outbox share: queues, pushes, and what has been delivered."""

from typing import Any

from redis.asyncio import Redis

from penstock.bus import Bus, Queue
from penstock.testing.server import EmbeddedServer
from tests.support.harness import eventually


async def attached(bus: Bus, name: str = "orders", **options: Any) -> Queue:
    queue = bus.queue(name)
    await queue.attach(**{"ttl": 300, **options})
    return queue


async def push(queue: Queue, *numbers: int) -> list[int]:
    return [await queue.push(str(number)) for number in numbers]


async def delivered(bus: Bus) -> None:
    await eventually(lambda: not bus.waiting)


async def content(server: EmbeddedServer, name: str = "orders") -> list[int]:
    """Return the bodies of a queue, oldest first; check that their ids are those of a queue."""
    async with Redis.from_url(server.url) as redis:
        words = await redis.lrange(f"bus:queue:{name}:messages", 0, -1)
    ids = [int(each) for each in words[::2]]
    assert ids == [*range(1, len(ids) + 1)]
    return [int(each) for each in words[1::2]]
