"""A queue that Node's busmq uses while it is moved to another server."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from penstock.bus import Bus
from penstock.bus.move import Mover
from tests.bus.node import Program, node
from tests.support.harness import eventually


@pytest.fixture
async def program() -> AsyncIterator[Program]:
    async with node() as started:
        yield started


async def move(bus: Bus) -> Mover:
    mover, errors = Mover(bus, target=bus.instances[1]), list[Exception]()
    await mover.run(await mover.plan(), lambda _, error: errors.append(error) if error else None)
    assert errors == []
    return mover


async def test_what_node_pushes_before_during_and_after_a_move_arrives_once_and_a_new_client_finds_the_queue(
    two: list[str], program: Program
) -> None:
    taken = list[str]()
    async with Redis.from_url(two[0]) as source, Redis.from_url(two[1]) as target, Bus(*two, patience=30) as bus:
        async with program.peer("push", "foo", two, ttl=60) as old:  # by the sum of its key at the first server
            await old.expect("attached")
            queue = bus.queue("foo")
            await queue.attach()
            assert queue.instance is bus.instances[0]
            queue.on("message", lambda message: taken.append(str(message)))
            sending = [asyncio.create_task(old.send(f"message {number}")) for number in range(400)]
            await old.expect("pushed", 20)
            moved = await move(bus)
            assert moved.moved.queues == 1
            await asyncio.gather(*sending)
            await old.send("late")

            async def all_pushed() -> bool:
                return len([event for event in old.events if event[0] == "pushed"]) == 401

            await eventually(all_pushed)
            await move(bus)
            await queue.consume()

            async def all_taken() -> bool:
                if await source.llen("bus:queue:foo:messages"):
                    await move(bus)
                return len(taken) >= 401

            await eventually(all_taken)
            assert sorted(taken) == sorted([*(f"message {number}" for number in range(400)), "late"])
            assert await source.exists("bus:queue:foo:metadata") == 0
        async with program.peer("push", "foo", two, ttl=60) as new:
            assert await new.expect("attached") == (True,)
            await new.send("new")

            async def new_taken() -> bool:
                return taken[-1] == "new"

            await eventually(new_taken)
        assert await target.exists("bus:queue:foo:metadata") == 1
        assert await source.exists("bus:queue:foo:messages") == 0
