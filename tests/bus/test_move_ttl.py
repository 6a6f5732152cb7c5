"""Queues whose ttl has not come yet: busmq writes the metadata first, and its ttl in a second command."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from penstock.bus import Bus
from penstock.bus.move import Mover, Step, Stopped
from penstock.bus.scripts import TOUCH
from tests.bus.moving import filled


@pytest.fixture
async def bus(two: list[str], servers: list["Redis"]) -> AsyncIterator[Bus]:
    async with Bus(*two, patience=30) as connected:
        yield connected


async def lives_for_ttl(redis: "Redis", ttl: int, *kinds: str) -> None:
    """Fail unless each of these keys of the queue, by default all that has messages, has the whole ``ttl``."""
    for kind in kinds or ("metadata", "messages", "msgid"):
        assert ttl - 5 < await redis.ttl(f"bus:queue:orders:{kind}") <= ttl, kind


async def without_ttl(redis: "Redis") -> None:
    """Bring the queue to where it is between the two commands in which busmq writes its metadata and its ttl."""
    for kind in ("metadata", "messages", "msgid", "toack"):
        await redis.persist(f"bus:queue:orders:{kind}")


async def test_a_queue_whose_ttl_has_not_come_yet_has_it_after_the_move(bus: Bus, servers: list["Redis"]) -> None:
    await filled(bus, "orders", 3, ttl=77)
    await without_ttl(servers[0])
    step = Step("orders", bus.instances[0], bus.instances[1])
    await Mover(bus).move(step)
    await lives_for_ttl(servers[1], 77)


async def test_a_queue_whose_ttl_has_not_come_yet_has_it_after_a_move_that_was_given_up(
    bus: Bus, servers: list["Redis"]
) -> None:
    await filled(bus, "orders", 3, ttl=77)
    await without_ttl(servers[0])
    mover = Mover(bus)
    mover.stopping = True
    with pytest.raises(Stopped):
        await mover.move(Step("orders", bus.instances[0], bus.instances[1]))
    await lives_for_ttl(servers[0], 77, "metadata", "messages")


async def test_every_call_of_a_client_gives_a_queue_the_ttl_that_has_not_come_yet(
    bus: Bus, servers: list["Redis"], two: list[str]
) -> None:
    queue = await filled(bus, "orders", 9, ttl=77)
    redis, (instance, _) = servers[0], bus.instances
    async with Bus(two[0]) as alone:
        taker = alone.queue("orders")
        await taker.attach()
        consumption = taker.consume(reliable=True, prefetch=1)
        await consumption.fetch()
        consumption.next_taken()

        async def touch() -> None:
            assert await instance.run(TOUCH, keys=[*queue.keys], ttls=[77]) == [[], []]

        async def attach() -> None:
            async with Bus(two[0]) as third:
                assert await third.queue("orders").attach()

        async def push() -> None:
            await queue.push("x")

        for call in (touch, attach, push):
            await without_ttl(redis)
            await call()
            await lives_for_ttl(redis, 77)
        await without_ttl(redis)
        read = [message.id async for message in queue.consume(remove=False, limit=8)]
        assert len(read) == 8
        assert await queue.ttl() == 77
        assert await redis.ttl("bus:queue:orders:metadata") == -1  # reading keeps nothing alive
        await queue.set_metadata({"owner": "Ada"})
        assert 70 < await redis.ttl("bus:queue:orders:metadata") <= 77
