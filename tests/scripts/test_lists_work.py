"""``penstock.lists``: a worker takes tracked requests, and reports what became of them in the settling transaction."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from penstock.errors import Stale, Unsuitable, WrongCall
from penstock.lists import Lists, Request
from tests.hop import Start


@pytest.fixture
async def lists(redis: "Redis", redis_url: str) -> AsyncIterator[Lists]:
    async with Lists(redis_url, lease=5) as opened:
        yield opened


async def serve(lists: Lists, many: int, handle: Callable[[Request], object]) -> None:
    """Handle ``many`` requests."""
    async for request in lists.work("demo").requests():
        with request:
            handle(request)
        many -= 1
        if many == 0:
            break


async def entries(redis: "Redis", name: str) -> list[Any]:
    async with asyncio.timeout(10):
        while [key async for key in redis.scan_iter("*:consumer*")]:
            await asyncio.sleep(0.01)
    return [json.loads(each) for each in (await redis.lrange(name, 0, -1))[::-1]]


async def test_a_request_that_ends_is_done_by_id_and_attempt(redis: "Redis", lists: Lists, start: Start) -> None:
    hop = await start()
    await hop.push(b"17", b'{"meta": {"id": "order-7"}, "item": "tea"}', b"plain")
    seen = list[tuple[Any, ...]]()
    await serve(lists, 3, lambda request: seen.append((request.xid, request.attempt, request.meta, request.id)))
    assert seen[0] == ("17", 1, {}, "1")
    assert seen[1] == ("order-7", 1, {"id": "order-7"}, "2")
    assert await entries(redis, "demo:done") == [{"id": number, "attempt": 1} for number in (1, 2, 3)]
    await hop.monitors[0].finisher.take(1)
    await hop.monitors[0].finisher.deliver()
    assert await redis.zcard(hop.keys.deadlines) == 0


async def test_an_answer_goes_to_res_and_no_done_beside_it(redis: "Redis", lists: Lists, start: Start) -> None:
    hop = await start()
    await hop.push(b'{"meta": {"id": "price-1"}}', b'{"meta": {"id": 5}}')
    await serve(lists, 2, lambda request: request.answer({"price": 7, "meta": {"unit": "EUR"}}))
    assert await entries(redis, "res") == [
        {"price": 7, "meta": {"unit": "EUR", "id": "price-1", "attempt": 1}},
        {"price": 7, "meta": {"unit": "EUR", "id": 5, "attempt": 1}},
    ]
    assert await entries(redis, "demo:done") == []


async def test_failures_are_reported_and_the_loop_goes_on(redis: "Redis", lists: Lists, start: Start) -> None:
    hop = await start()
    await hop.push(b"1", b"2", b"3")

    def handle(request: Request) -> None:
        if request.body == b"1":
            request.fail("no tea", retry=False)
        elif request.body == b"2":
            request.also_push("results", "half")
            raise ValueError("no milk")

    with capture_logs() as log:
        await serve(lists, 3, handle)
    assert await entries(redis, "demo:done") == [
        {"id": 1, "attempt": 1, "error": "no tea", "retry": False},
        {"id": 2, "attempt": 1, "error": "ValueError: no milk"},
        {"id": 3, "attempt": 1},
    ]
    assert [line["event"] for line in log] == ["request failed"]
    assert await redis.exists("results") == 0, "results of a request that failed are dropped"


async def test_a_cancelled_request_goes_back_and_nothing_is_reported(
    redis: "Redis", lists: Lists, start: Start
) -> None:
    hop = await start()
    await hop.push(b"1")

    async def hang() -> None:
        async for request in lists.work("demo").requests():
            with request:
                await asyncio.sleep(60)

    task = asyncio.create_task(hang())
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.wait({task})
    assert await entries(redis, "demo:done") == []
    assert await redis.lrange("out", 0, -1) == [b"1"]


async def test_a_touch_moves_the_deadline_unless_another_attempt_is_under_way(
    redis: "Redis", lists: Lists, start: Start
) -> None:
    hop = await start()
    await hop.push(b"1")
    async for request in lists.work("demo").requests():
        with request:
            before = request.deadline
            assert before
            deadline = await request.touch(500)
            assert deadline == request.deadline
            assert deadline is not None
            assert deadline > before + 400
            await redis.hset(hop.keys.message("1"), "attempt", 2)
            with pytest.raises(Stale):
                await request.touch(900)
            await redis.delete(hop.keys.message("1"))
            assert await request.touch() is None
        break


async def test_a_message_without_a_record_is_done_by_its_xid(redis: "Redis", lists: Lists, start: Start) -> None:
    await start()
    await redis.lpush("out", b'{"meta": {"id": "unknown"}}')
    await serve(lists, 1, lambda request: None)
    assert await entries(redis, "demo:done") == [{"xid": "unknown"}]


async def test_each_of_several_requests_with_one_xid_is_done(redis: "Redis", lists: Lists, start: Start) -> None:
    hop = await start()
    await hop.push(b"7", b"7", b"7")
    await serve(lists, 3, lambda request: None)
    await entries(redis, "demo:done")
    for _ in range(3):
        await hop.finish()
    assert await redis.zcard(hop.keys.deadlines) == 0


async def test_what_cannot_be_is_refused(redis: "Redis", lists: Lists, start: Start) -> None:
    with pytest.raises(Unsuitable, match="nowhere is no namespace of mdispatch"):
        async for _ in lists.work("nowhere").requests():
            pass
    hop = await start()
    await hop.push(b"1")

    def handle(request: Request) -> None:
        with pytest.raises(WrongCall, match=r"without meta\.id cannot be answered"):
            request.answer({})
        request.fail("a")
        with pytest.raises(WrongCall, match="one outcome"):
            request.fail("b")

    await serve(lists, 1, handle)
    assert (await entries(redis, "demo:done"))[0]["error"] == "a"
