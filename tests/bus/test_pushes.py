"""Pushes: ids, order, batches, and what is pushed if one fails or is cancelled: BQ-23."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Full, WrongCall
from penstock.bus import Bus, Queue
from tests.bus.given import attached, take
from tests.support.harness import eventually


async def test_BQ_23_pushes_keep_their_order_whatever_pushes_them(bus: Bus) -> None:
    queue = bus.queue("foo")
    early = [queue.push(f"{number}") for number in range(3)]
    await queue.attach()
    later = queue.push_many(f"{number}" for number in range(3, 1_200))
    assert await later == [*range(4, 1_201)]
    last = [queue.push("1200"), queue.push("1201")]
    assert await asyncio.gather(*early, *last) == [1, 2, 3, 1_201, 1_202]
    assert [body for _, body in await take(queue, 1_202)] == [b"%d" % number for number in range(1_202)]


async def test_BQ_23_what_comes_before_a_value_that_is_no_message_is_pushed(bus: Bus) -> None:
    queue = await attached(bus)
    with pytest.raises(WrongCall, match="NoneType"):
        await queue.push_many(["a"] * 1_200 + [None])  # type: ignore[list-item]  # on purpose
    assert await queue.count() == 1_000


async def test_BQ_23_no_batch_is_pushed_after_one_that_failed(bus: Bus, redis: "Redis") -> None:
    """The next one is prepared while one is under way."""
    queue = await attached(bus, maxsize=700)
    with pytest.raises(Full, match="700 were pushed"):
        await queue.push_many(str(number) for number in range(2_000))
    assert await redis.get("bus:queue:foo:msgid") == b"700"


async def test_BQ_23_a_push_many_that_is_cancelled_pushes_no_further_batch(bus: Bus) -> None:
    queue = await attached(bus)
    go_on = asyncio.Event()

    async def messages() -> AsyncIterator[str]:
        for number in range(1_500):
            if number == 1_000:
                await go_on.wait()
            yield str(number)

    pushing = asyncio.ensure_future(queue.push_many(messages()))
    await eventually(lambda: _counts(queue, 1_000))
    pushing.cancel()
    await asyncio.wait({pushing})
    go_on.set()
    assert await queue.push("last") == 1_001


async def _counts(queue: Queue, many: int) -> bool:
    return await queue.count() == many


async def test_BQ_23_push_many_takes_what_comes_over_time(bus: Bus) -> None:
    async def messages() -> Any:
        for number in range(3):
            await asyncio.sleep(0)
            yield {"n": number}

    queue = await attached(bus)
    assert await queue.push_many(messages(), json=True) == [1, 2, 3]
    assert await queue.push_many([]) == []
    assert (await take(queue, 3))[2] == (3, b'{"n":2}')
