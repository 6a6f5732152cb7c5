"""What is under way: a reply is lost, or comes after `stop` was called."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Unconfirmed
from penstock.bus import Bus
from penstock.bus.waker import wakers_of
from tests.bus.given import attached, blocked, replies_lost, take
from tests.support.harness import eventually


async def test_a_push_whose_reply_is_lost_is_unconfirmed_and_the_next_ones_are_pushed(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus)
    async with replies_lost(redis):
        lost = queue.push("lost")
        later = [queue.push(each) for each in ("a", "b")]
        await eventually(lambda: blocked(redis))
    with pytest.raises(Unconfirmed):
        await lost
    assert await asyncio.gather(*later) == [1, 2]
    assert await take(queue, 2) == [(1, b"a"), (2, b"b")]
    await queue.detach()


@pytest.mark.parametrize("mode", [{}, {"reliable": True}, {"reliable": True, "exclusive": True}], ids=str)
@pytest.mark.parametrize("stopped", [False, True], ids=["goes on", "stopped"])
async def test_messages_are_taken_after_the_reply_of_a_call_for_them_was_lost(
    bus: Bus, redis: "Redis", mode: dict[str, Any], *, stopped: bool
) -> None:
    """The call was not executed, so nothing is missing, whether the loop goes on or is stopped meanwhile."""
    queue, producer = await attached(bus), await attached(bus)
    consumption, taken = queue.consume(**mode), list[bytes]()

    async def loop() -> None:
        async for message in consumption:
            taken.append(message.body)

    running = asyncio.create_task(loop())
    await eventually(lambda: consumption.runs)
    await producer.push("a")
    await eventually(lambda: taken)
    if mode:
        await queue.ack(1)
    async with replies_lost(redis):
        wakers_of(queue.instance)[queue.available].ring()
        await eventually(lambda: blocked(redis))
        stopping = asyncio.create_task(queue.stop() if stopped else asyncio.sleep(0))
        await asyncio.sleep(0)
    await stopping
    await producer.push_many(["b", "c"])
    if stopped:
        await running
        assert taken == [b"a"]
        assert await take(producer, 2) == [(2, b"b"), (3, b"c")]
    else:
        await eventually(lambda: len(taken) == 3)
        await queue.stop()
        await running
        assert taken == [b"a", b"b", b"c"]


async def test_what_is_taken_after_stop_was_called_goes_back(bus: Bus, redis: "Redis") -> None:
    queue, producer, taken = await attached(bus), await attached(bus), list[bytes]()
    consumption = queue.consume()

    async def loop() -> None:
        async for message in consumption:
            taken.append(message.body)

    running = asyncio.create_task(loop())
    await eventually(lambda: consumption.runs)
    await producer.push("a")
    await eventually(lambda: taken)
    await redis.rpush("bus:queue:foo:messages", "2", "b")
    await redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    wakers_of(queue.instance)[queue.available].ring()
    await eventually(lambda: blocked(redis))
    stopping = asyncio.create_task(queue.stop())
    await asyncio.sleep(0)
    await redis.execute_command("CLIENT", "UNPAUSE")
    await asyncio.gather(stopping, running)
    assert (taken, await take(producer, 1)) == ([b"a"], [(2, b"b")])
