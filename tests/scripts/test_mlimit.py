"""mlimit: messages pass at a rate, all together or by a field, and the others wait, or go where the settings say."""

import asyncio
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from common.context import Context
from penstock.base.encoding import decoded
from penstock.base.keys import Keys
from penstock.core.link import is_full
from services.mlimit import delay
from services.mlimit.request import reader
from services.mlimit.service import run
from services.mlimit.settings import Settings
from tests.support.clock import Span
from tests.support.harness import eventually
from tests.support.in_process import audited, context_of, running
from tests.support.scripted import failing

KEYS = Keys("rate")
NAMES: dict[str, Any] = {"redis": "redis://h", "redis_namespace": "rate", "in_": "in", "pending": "pending"}
HOUR = 3_600_000_000
"""In us."""


def settings(**more: Any) -> Settings:
    return Settings(**{**NAMES, "out": "out", "rate": 1_000, **more})


async def texts(redis: Any, name: str) -> list[str]:
    """Return the messages of a list as text, oldest first."""
    return [*map(decoded, reversed(await redis.lrange(name, 0, -1)))]


async def metric(redis: Any, name: str) -> dict[str, int]:
    return {field.decode(): int(value) for field, value in (await redis.hgetall(KEYS.metric(name))).items()}


async def taken(redis: Any) -> bool:
    return not await redis.exists("in", "pending:1")


async def all_out(redis: Any) -> bool:
    return not await redis.exists("in", "pending:1", KEYS.waiting)


async def server_time(redis: Any) -> float:
    seconds, micros = await redis.time()
    return int(seconds) + int(micros) / 1e6


def said(user: str, number: int, **more: Any) -> str:
    return json.dumps({"user": user, "n": number, **more})


async def numbers_of(redis: Any, user: str) -> list[int]:
    found = map(json.loads, await texts(redis, "out"))
    return [each["n"] for each in found if each["user"] == user]


async def test_fifteen_messages_at_ten_a_second_take_at_least_half_a_second(redis: Any) -> None:
    messages = [f"message {number}" for number in range(15)]
    counts: list[tuple[float, int]] = []

    async def sampled() -> bool:
        many = await redis.llen("out")
        counts.append((await server_time(redis), many))
        return counts[-1][1] == len(messages)

    begun = await server_time(redis)
    await redis.lpush("in", *messages)
    async with running(redis, settings(rate=10), run):
        await eventually(sampled)
    assert await server_time(redis) - begun >= 0.5
    assert all(count <= 10 + 10 * (at - begun) for at, count in counts)
    assert len({count for _, count in counts}) > 5, "they did not come one by one"
    assert await texts(redis, "out") == messages
    assert (await audited(redis, settings())).messages == 15


@pytest.mark.parametrize("by", ["all", "field"])
async def test_a_message_waits_for_its_token_without_polling(redis: Any, by: str) -> None:
    more = {"field": "user"} if by == "field" else {}
    await redis.lpush("in", said("a", 0), said("a", 1))
    async with running(redis, settings(rate=1, by=by, **more), run):
        await eventually(lambda: has(redis, 1))
        before = (await redis.info("stats"))["total_commands_processed"]
        scripts = await script_calls(redis)
        await eventually(lambda: has(redis, 2))
        after = await script_calls(redis)
    assert after - scripts <= 5
    assert (await redis.info("stats"))["total_commands_processed"] > before


async def script_calls(redis: Any) -> int:
    stats = await redis.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name.startswith("cmdstat_eval"))


async def has(redis: Any, count: int) -> bool:
    """Return whether ``out`` holds that many, waiting a little, since the test counts commands."""
    await asyncio.sleep(0.05)  # timing: between two looks
    return int(await redis.llen("out")) >= count


async def test_what_waits_stays_in_in_in_order_and_a_stop_does_not_wait_for_it(redis: Any) -> None:
    await redis.lpush("in", *"abcdefgh")
    chosen = settings(rate=0.001, burst=3)
    async with running(redis, chosen, run):
        await eventually(lambda: has(redis, 3))
    assert (await texts(redis, "out"), await texts(redis, "in")) == (["a", "b", "c"], ["d", "e", "f", "g", "h"])
    await audited(redis, chosen)
    bucket = float(await redis.get(KEYS.bucket))
    await redis.set(KEYS.bucket, f"{bucket - 2_000_000_000:.0f}")
    async with running(redis, chosen, run, id="2"):
        await eventually(lambda: has(redis, 5))
    assert (await texts(redis, "out"), await texts(redis, "in")) == ([*"abcde"], [*"fgh"])


async def test_instances_share_one_bucket_which_expires_by_itself(redis: Any) -> None:
    await redis.lpush("in", *map(str, range(50)))
    chosen = settings(rate=0.001, burst=30)
    async with running(redis, chosen, run), running(redis, chosen, run, id="2"):
        await eventually(lambda: has(redis, 30))
        assert await redis.llen("in") + await redis.llen("pending:1") + await redis.llen("pending:2") == 20
    assert 29_000 < await redis.ttl(KEYS.bucket) <= 30_000
    await audited(redis, chosen)


async def test_a_clock_that_was_set_back_delays_messages_by_a_burst_at_most(redis: Any) -> None:
    seconds, micros = await redis.time()
    await redis.set(KEYS.bucket, seconds * 1_000_000 + micros + HOUR)
    await redis.lpush("in", "a")
    async with running(redis, settings(rate=10, burst=2), run):
        await eventually(lambda: all_out(redis))


async def test_by_field_too_a_clock_that_was_set_back_delays_messages_by_a_burst_at_most(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait already, too: their times, and that of their bucket, are an hour ahead.

    What comes is taken before any of them is moved, and must not overtake them.
    """
    release = delay.Delay.release

    async def later(delaying: delay.Delay) -> None:
        await eventually(lambda: taken(redis))
        await release(delaying)

    monkeypatch.setattr(delay.Delay, "release", later)
    seconds, micros = await redis.time()
    ahead = seconds * 1_000_000 + micros + HOUR
    chosen = settings(rate=10, burst=2, **BY_USER)
    waiting = {f"{place:016d}{said('a', place)}": ahead + place * 100_000 for place in (1, 2, 3)}
    await redis.zadd(KEYS.waiting, waiting)
    await redis.hset(KEYS.held, KEYS.waiting, 3)
    bucket = KEYS.bucket_of(reader("field", "user")(said("a", 0).encode()).bucket)
    await redis.set(bucket, ahead + 500_000)
    await redis.lpush("in", said("a", 4))
    async with running(redis, chosen, run):
        await eventually(lambda: all_out(redis))
    assert await texts(redis, "out") == [said("a", number) for number in (1, 2, 3, 4)]


async def test_a_rate_of_a_hundred_thousand_is_met_in_few_moves(redis: Any) -> None:
    for first in range(0, 40_000, 1_000):
        await redis.lpush("in", *map(str, range(first, first + 1_000)))
    await redis.config_resetstat()
    begun = await server_time(redis)
    async with running(redis, settings(rate=100_000, burst=2_000, batch=1_000), run):
        await eventually(lambda: all_out(redis))
    assert await server_time(redis) - begun >= 0.38
    assert (await redis.info("commandstats"))["cmdstat_rpop"]["calls"] < 4_000
    assert await texts(redis, "out") == [*map(str, range(40_000))]


BY_USER = {"by": "field", "field": "user"}


async def test_a_noisy_user_does_not_delay_others_and_each_ones_messages_stay_in_order(redis: Any) -> None:
    noise = [said("noisy", number) for number in range(300)]
    await redis.lpush("in", *noise, said("calm", 0), said("calm", 1))
    chosen = settings(rate=1, burst=2, **BY_USER)
    began = await server_time(redis)
    async with running(redis, chosen, run):
        await eventually(lambda: taken(redis))
        assert await numbers_of(redis, "calm") == [0, 1]
        assert len(await numbers_of(redis, "noisy")) < 300
        audit = await audited(redis, chosen)
        assert audit.pending[KEYS.waiting] > 0
        await redis.lpush("in", said("noisy", 300))
        await eventually(lambda: taken(redis))
    ttl = max([await redis.pttl(key) async for key in redis.scan_iter(f"{KEYS.bucket}:*")]) / 1000
    assert ttl == 301 - Span(0, await server_time(redis) - began), "until it is full again"
    for entry in await redis.zrange(KEYS.waiting, 0, -1):
        await redis.zincrby(KEYS.waiting, -HOUR, entry)
    async with running(redis, chosen, run, id="2"):
        await eventually(lambda: all_out(redis))
    assert await numbers_of(redis, "noisy") == [*range(301)]
    assert (await metric(redis, "limited"))["count"] == 299
    assert (await audited(redis, chosen)).messages == 303


async def test_equal_messages_wait_each_for_itself(redis: Any) -> None:
    await redis.lpush("in", *[said("a", 1)] * 50)
    async with running(redis, settings(rate=500, burst=1, **BY_USER), run):
        await eventually(lambda: all_out(redis))
    assert await numbers_of(redis, "a") == [1] * 50


async def test_whoever_removes_what_waits_is_found_out(redis: Any) -> None:
    chosen = settings(rate=0.001, burst=1, **BY_USER)
    await redis.lpush("in", *(said("a", number) for number in range(4)))
    async with running(redis, chosen, run):
        await eventually(lambda: taken(redis))
    await redis.delete(KEYS.waiting)
    with pytest.raises(AssertionError, match="3 messages were taken and not settled, and gone"):
        await audited(redis, chosen)


async def test_a_message_that_would_get_its_token_after_its_deadline_is_a_dead_letter_and_takes_none(
    redis: Any,
) -> None:
    now = await server_time(redis)
    messages = [
        said("a", 0),
        said("a", 1, deadline=now + 60),
        said("a", 2, deadline=now + 10_000),
        said("b", 3, deadline=now - 1),
    ]
    await redis.lpush("in", *messages)
    chosen = settings(rate=0.01, burst=1, **BY_USER)
    async with running(redis, chosen, run):
        await eventually(lambda: taken(redis))
        (waiting,) = await redis.zrange(KEYS.waiting, 0, -1, withscores=True)
    assert json.loads(waiting[0][16:])["n"] == 2
    assert waiting[1] / 1e6 == Span(now, await server_time(redis)) + 100
    letters = [json.loads(letter) for letter in await texts(redis, KEYS.dead)]
    assert [(json.loads(each["message"])["n"], each["reason"]) for each in letters] == [(1, "expired"), (3, "expired")]
    await audited(redis, chosen)


@pytest.mark.parametrize("over", ["drop", "dead", "list"])
async def test_messages_over_the_limit_go_where_the_settings_say(redis: Any, over: str) -> None:
    more = {"over_list": "surplus"} if over == "list" else {}
    chosen = settings(rate=0.001, burst=2, over=over, **BY_USER, **more)
    await redis.lpush("in", *(said("a", number) for number in range(5)), said("b", 0))
    async with running(redis, chosen, run):
        await eventually(lambda: taken(redis))
    assert (await numbers_of(redis, "a"), await numbers_of(redis, "b")) == ([0, 1], [0])
    letters = [json.loads(letter) for letter in await texts(redis, KEYS.dead)]
    dead = [(json.loads(each["message"])["n"], each["reason"]) for each in letters]
    surplus = [json.loads(each)["n"] for each in await texts(redis, "surplus")]
    assert dead == ([(number, "rateLimit") for number in (2, 3, 4)] if over == "dead" else [])
    assert surplus == ([2, 3, 4] if over == "list" else [])
    assert (await metric(redis, "dropped")).get("in", 0) == (3 if over == "drop" else 0)
    assert await metric(redis, "limited") == {"count": 3}
    await audited(redis, chosen)


def request(number: int, user: str, **more: Any) -> str:
    headers = [["host", "example.org"], ["x-user", user], ["x-user", "another"]]
    return json.dumps(
        {"id": f"1-{number:x}", "replyTo": "web:res:1", "method": "GET", "path": "/", **more, "headers": headers}
    )


async def test_requests_over_the_limit_of_a_header_are_answered_429_with_retry_after(redis: Any) -> None:
    chosen = settings(
        rate=0.01, burst=1, by="header", field="X-User", over="answer", reply_lists=["web:res:*"], reply_expire=30
    )
    now = await server_time(redis)
    named = request(4, "a", replyTo="", meta={"id": "1-4", "replyTo": "web:res:2"})
    late, stranger = request(5, "c", deadline=now - 1), request(6, "a", replyTo="other:list")
    nameless = request(7, "a", replyTo="web:res:\ud800")
    requests = [
        request(1, "a"),
        request(2, "a"),
        request(3, "b"),
        named,
        late,
        stranger,
        nameless,
        "no request",
        "no request 2",
    ]
    await redis.lpush("in", *requests)
    async with running(redis, chosen, run):
        await eventually(lambda: taken(redis))
    assert await texts(redis, "out") == [requests[0], requests[2], requests[7]]
    (answer,) = map(json.loads, await texts(redis, "web:res:1"))
    retry = dict(map(tuple, answer["headers"]))["retry-after"]
    assert (answer["id"], answer["meta"], answer["status"]) == ("1-2", {"id": "1-2"}, 429)
    assert 90 <= int(retry) <= 100
    (answer,) = map(json.loads, await texts(redis, "web:res:2"))
    assert answer["id"] == "1-4"
    assert 0 < await redis.ttl("web:res:1") <= 30
    letters = [json.loads(letter) for letter in await texts(redis, KEYS.dead)]
    assert {each["message"]: each["reason"] for each in letters} == {
        late: "expired",
        stranger: "rateLimit",
        nameless: "rateLimit",
        "no request 2": "rateLimit",
    }
    assert not await redis.exists("other:list")
    await audited(redis, chosen)


async def test_over_the_limit_of_all_messages_may_be_dropped_too(redis: Any) -> None:
    await redis.lpush("in", *"abcd")
    async with running(redis, settings(rate=0.001, burst=2, over="drop"), run):
        await eventually(lambda: taken(redis))
    assert await texts(redis, "out") == ["a", "b"]


WAYS = {"all": {}, "field": BY_USER, "drop": {"over": "drop"}}


@pytest.mark.parametrize("way", WAYS)
async def test_a_full_server_loses_nothing(redis: Any, fill: Any, way: str) -> None:
    await redis.lpush("in", "a", "b", "c")
    chosen = settings(**WAYS[way])
    await fill()
    context = context_of(redis, chosen)
    task = asyncio.ensure_future(run(context))
    await eventually(lambda: refused_or_done(context, task, redis))
    context.stop()
    await context.wake()
    await asyncio.wait({task})
    assert task.exception() is None or is_full(task.exception())
    await redis.config_set("maxmemory", 0)
    await context.reset()
    async with running(redis, chosen, run):
        await eventually(lambda: all_out(redis))
    assert await texts(redis, "out") == ["a", "b", "c"]


async def refused_or_done(context: Context[Settings], task: "asyncio.Future[None]", redis: Any) -> bool:
    return context.outage.server_is_full or task.done() or await all_out(redis)


async def test_a_batch_that_changed_while_it_was_read_is_read_again(redis: Redis) -> None:
    await redis.lpush("pending:1", said("a", 1))
    chosen = settings(**BY_USER)
    context = context_of(redis, chosen)
    settle_by = context.settle_by

    async def adopting(*positional: Any, **named: Any) -> Any:
        if not await redis.exists("adopted"):
            await redis.set("adopted", 1)
            await redis.rpush("pending:1", said("a", 0))
        return await settle_by(*positional, **named)

    context.settle_by = adopting  # type: ignore[method-assign]
    task = asyncio.ensure_future(run(context))
    await eventually(lambda: all_out(redis))
    context.stop()
    await context.wake()
    await task
    assert await numbers_of(redis, "a") == [0, 1]
    await context.reset()


async def test_a_message_with_which_the_script_fails_is_buried_and_holds_up_no_other(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where messages wait in the server, the script is one of mlimit's own."""
    held = "call('LRANGE', pending, -#places, -1)"
    monkeypatch.setattr(delay, "_delay", failing("mlimit/delay_batch", "local waits = call('ZCARD'", held))
    await redis.lpush("in", said("a", 1), said("bad", 2), said("a", 3))
    chosen = settings(by="field", field="user")
    async with running(redis, chosen, run):
        await eventually(lambda: has(redis, 2))
        await eventually(lambda: all_out(redis))
    assert await numbers_of(redis, "a") == [1, 3]
    (letter,) = map(json.loads, await redis.lrange(KEYS.dead, 0, -1))
    assert (json.loads(letter["message"]), letter["reason"]) == ({"user": "bad", "n": 2}, "poison")
    await audited(redis, chosen)
