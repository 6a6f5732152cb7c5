"""``penstock.lists``: a worker takes tracked requests, and reports what became of them in the settling transaction."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from penstock import sync
from penstock.base.errors import Stale, Unsuitable, WrongCall
from penstock.base.log import Log
from penstock.lists import Lists, Request
from tests.support.harness import PATIENCE, eventually
from tests.support.hop import Start


@pytest.fixture
async def lists(redis: "Redis", redis_url: str) -> AsyncIterator[Lists]:
    async with Lists(redis_url, lease=PATIENCE) as opened:
        yield opened


async def serve(lists: Lists, many: int, handle: Callable[[Request], object], source: str | None = None) -> None:
    """Handle ``many`` requests."""
    async for request in lists.work("demo", source).requests():
        with request:
            handle(request)
        many -= 1
        if many == 0:
            break


async def entries(redis: "Redis", name: str) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        while [key async for key in redis.scan_iter("*:consumer*")]:
            await asyncio.sleep(0.01)
    return await reports_in(redis, name)


async def reports_in(redis: "Redis", name: str, least: int = 0) -> list[Any]:
    """Return the reports, once there are ``least``."""
    async with asyncio.timeout(PATIENCE):
        while await redis.llen(name) < least:
            await asyncio.sleep(0.01)
    found = [json.loads(each) for each in (await redis.lrange(name, 0, -1))[::-1]]
    for each in found:
        assert 0 <= each.get("meta", each).pop("work") < 10, "each report says how long the work took"
    return found


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
    begun = asyncio.Event()

    async def hang() -> None:
        async for request in lists.work("demo").requests():
            with request:
                begun.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await asyncio.wait_for(begun.wait(), PATIENCE)
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


async def test_a_touch_whose_connection_is_lost_waits_for_another_one(
    redis: "Redis", lists: Lists, start: Start
) -> None:
    hop = await start()
    await hop.push(b"1")
    async for request in lists.work("demo").requests():
        with request:
            before = request.deadline or 0.0
            await redis.client_pause(600_000, all=False)
            touched = asyncio.create_task(request.touch(500))
            await eventually(partial(_is_held, redis))
            await lists.redis.connection_pool.disconnect()
            await redis.client_unpause()
        break
    assert (await touched or 0.0) > before + 400


async def _is_held(redis: "Redis") -> bool:
    return bool((await redis.info("clients"))["blocked_clients"])


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
    while await redis.exists("demo:done"):
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


async def test_an_error_that_no_log_can_write_is_reported(redis: "Redis", lists: Lists, start: Start) -> None:
    """The text of an error is often a part of the message, which may be anything."""
    hop = await start()
    await hop.push(b'{"meta": {"id": 1}, "item": "\\ud800"}', b'{"meta": {"id": 2}}')

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise TypeError

    def handle(request: Request) -> None:
        raise ValueError(request.json()["item"]) if request.meta["id"] == 1 else Unspeakable

    await serve(lists, 2, handle)
    first, second = await entries(redis, "demo:done")
    assert first["error"] == "ValueError: \\ud800"
    assert "Unspeakable" in second["error"]


async def test_an_answer_that_is_no_json_fails_the_request(redis: "Redis", lists: Lists, start: Start) -> None:
    hop = await start()
    await hop.push(b'{"meta": {"id": 1}}')
    await serve(lists, 1, lambda request: request.answer({"v": float("nan")}))
    assert "not JSON compliant" in (await entries(redis, "demo:done"))[0]["error"]
    assert await entries(redis, "res") == []


async def test_a_failure_is_reported_before_it_is_logged(
    redis: "Redis", lists: Lists, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = await start()
    await hop.push(b"1")

    def fails(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Log, "warning", fails)
    with pytest.raises(KeyboardInterrupt):
        await serve(lists, 1, lambda _: 1 // 0)
    assert "ZeroDivisionError" in (await entries(redis, "demo:done"))[0]["error"]


async def test_a_log_names_no_values_of_the_handlers_variables(lists: Lists, start: Start) -> None:
    hop = await start()
    await hop.push(b"1")

    def handle(_: Request) -> None:
        password = "hunter2"
        raise ValueError(len(password))

    with capture_logs() as log:
        await serve(lists, 1, handle)
    (line,) = [each for each in log if each["event"] == "request failed"]
    assert "ValueError: 7" in line["exception"]
    assert "hunter2'" not in line["exception"]


async def test_a_record_of_another_type_is_a_request_without_one(redis: "Redis", lists: Lists, start: Start) -> None:
    hop = await start()
    await hop.push(b"17", b"18", b"19")
    await redis.hset(hop.keys.xid("19"), mapping={"id": "abc", "last": "abc"})
    await redis.delete(hop.keys.xid("17"))
    await redis.lpush(hop.keys.xid("17"), "x")
    await redis.hset(hop.keys.message("2"), "attempt", "many")
    seen = list[tuple[str, str | None, int]]()
    await serve(lists, 3, lambda request: seen.append((request.xid, request.id, request.attempt)))
    assert seen == [("17", None, 1), ("18", "2", 1), ("19", None, 1)]


ONCE = b'{"meta": {"id": "post-%d", "replyTo": "to:a", "attempts": 1}}'


async def held_by_a_dead_worker(redis: "Redis", redis_url: str, many: int) -> None:
    """Have a worker take ``many`` requests and die, and let its lease end."""
    lists = await Lists(redis_url).__aenter__()
    source: Any = (await lists.work("demo").consumer(many, 1_000_000)).source
    holding = source.holding
    assert len(await holding.take(many) or ()) == many
    await holding.raw.close()
    await lists.__aexit__(None, None, None)
    await redis.zadd("out:consumers", {holding.id: 1})


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "sync"])
async def test_what_must_not_be_done_twice_is_given_up_when_its_worker_has_died(
    redis: "Redis", redis_url: str, lists: Lists, start: Start, *, blocking: bool
) -> None:
    hop = await start()
    first, last = [ONCE % 1, b'{"meta": {"id": "get-1"}}', ONCE % 2], [b'{"meta": {"id": "get-2"}}', ONCE % 3]
    await hop.push(*first)
    await held_by_a_dead_worker(redis, redis_url, len(first))
    await hop.push(*last)
    seen = list[str]()
    if blocking:
        await asyncio.to_thread(handle_blocking, redis_url, 3, seen)
    else:
        await serve(lists, 3, lambda request: seen.append(request.xid))
    assert seen == ["get-1", "get-2", "post-3"], "the third one had no worker before"
    reports = await reports_in(redis, "demo:done", 5)
    words = "its worker has died, and it must not be done twice"
    assert reports == [
        {"id": 1, "attempt": 1, "error": words, "retry": False},
        {"id": 2, "attempt": 1},
        {"id": 3, "attempt": 1, "error": words, "retry": False},
        *({"id": 4, "attempt": 1}, {"id": 5, "attempt": 1}),
    ]
    await hop.finish()
    await hop.sweep()
    errors = [json.loads(each) for each in await hop.held("to:a")]
    assert [(each["meta"]["id"], each["error"]["reason"]) for each in errors] == [
        *(("post-1", "failed"), ("post-2", "failed")),
    ]


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "sync"])
async def test_what_has_become_a_dead_letter_while_it_waited_behind_another_list_is_not_handed_out(
    redis: "Redis", redis_url: str, lists: Lists, start: Start, *, blocking: bool
) -> None:
    hop = await start(attempts=1)

    async def balance(*messages: bytes) -> None:
        await hop.push(*messages)
        for _ in messages:
            assert await redis.lmove("out", "balanced", "RIGHT", "LEFT")

    await balance(b"1", b"2")
    await hop.check_taken()
    await hop.advance(20)
    await hop.sweep()
    assert [each["reason"] for each in await hop.letters()] == ["timeout", "timeout"]
    await balance(b"2", b"3")  # somebody has sent the second one again
    seen = list[str]()
    with capture_logs() as log:
        if blocking:
            await asyncio.to_thread(handle_blocking, redis_url, 3, seen, "balanced")
        else:
            await serve(lists, 3, lambda request: seen.append(request.xid), "balanced")
    assert seen == ["2", "2", "3"], "two copies of 2, of which one is in flight"
    reports = await reports_in(redis, "demo:done", 3)
    assert [each.get("id", each.get("xid")) for each in reports] == [3, 3, 4]
    assert [line for line in log if line["event"].startswith("dropped")] == [
        {"event": "dropped requests that have ended", "namespace": "demo", "requests": 1, "log_level": "info"}
    ]
    assert await redis.llen("balanced") == 0
    await hop.finish()
    assert await hop.in_flight() == []


def handle_blocking(redis_url: str, many: int, seen: list[str], source: str | None = None) -> None:
    with sync.Lists(redis_url, lease=PATIENCE) as lists:
        for request in lists.work("demo", source).requests():
            with request:
                seen.append(request.xid)
            if len(seen) == many:
                break


async def test_with_one_attempt_for_all_nothing_goes_from_a_dead_worker_to_another(
    redis: "Redis", redis_url: str, lists: Lists, start: Start
) -> None:
    hop = await start(attempts=1)
    await hop.push(b"1")
    await held_by_a_dead_worker(redis, redis_url, 1)
    await hop.push(b"2")
    seen = list[str]()
    await serve(lists, 1, lambda request: seen.append(request.xid))
    assert seen == ["2"]
    assert [each.get("retry") for each in await reports_in(redis, "demo:done", 2)] == [False, None]
