"""penstock touch and its script: more time for a message in flight, never less."""

import asyncio
import re
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import WrongType
from penstock.base.keys import Keys
from penstock.tracking.record import touch
from tests.support.clock import Span
from tests.support.commandline import AWKWARD, penstock
from tests.support.tracked import KEYS, delayed, event, events, in_flight, now, policy, tombstone, write


async def deadline_of(redis: Redis, id: str = "3", keys: Keys = KEYS) -> float:
    """Return the deadline; check that record and sorted set agree."""
    score, (field,) = await redis.zscore(keys.deadlines, id), await redis.hmget(keys.message(id), "deadline")
    assert score == pytest.approx(float(field or 0), abs=1e-3)
    return float(score or 0)


async def test_the_deadline_moves_to_the_given_seconds_from_now(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await in_flight(redis, left=5)
    began = await now(redis)
    result = await penstock("touch", "demo", "3", "7200", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    time_left = "(2 h 0|1 h 59) min from now"  # the latter on a busy machine
    assert re.fullmatch(
        rf"message 3 of demo has until \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC, {time_left}\n", result.text
    )
    assert await deadline_of(redis) == Span(began, await now(redis)) + 7200
    assert await redis.hget("demo:metrics:touched", "count") == b"1"


async def test_without_seconds_it_is_the_message_timeout_of_the_policy(redis: Redis, redis_url: str) -> None:
    await policy(redis, messageTimeout=500)
    await in_flight(redis, left=5)
    began = await now(redis)
    output = (await penstock("touch", "demo", "3", "--json", redis=redis_url)).json
    ended = await now(redis)
    assert (output["namespace"], output["id"]) == ("demo", "3")
    assert output["seconds"] == 500 - Span(0, ended - began)
    assert output["deadline"] == Span(began, ended) + 500
    assert await deadline_of(redis) == output["deadline"]


async def test_a_deadline_is_never_shortened(redis: Redis) -> None:
    await policy(redis)
    await in_flight(redis, left=300)
    deadline = await deadline_of(redis)
    assert await touch(redis, KEYS, "3", 5) == pytest.approx(deadline, abs=1e-3)
    assert await deadline_of(redis) == pytest.approx(deadline, abs=1e-3)


async def test_an_overdue_message_that_has_not_timed_out_yet_can_be_touched(redis: Redis) -> None:
    await policy(redis)
    await in_flight(redis, left=-3)
    began = await now(redis)
    await touch(redis, KEYS, "3", 0.5)
    assert await deadline_of(redis) == Span(began, await now(redis)) + 0.5


async def test_the_record_and_that_of_its_xid_outlive_what_may_follow(redis: Redis) -> None:
    await policy(redis, messageExpire=60)
    await in_flight(redis)
    began = await now(redis)
    await touch(redis, KEYS, "3", 100.5)
    for key in (KEYS.message("3"), KEYS.xid("a")):
        ttl = await redis.pttl(key) / 1000
        assert ttl == 161 - Span(0, 1 + await now(redis) - began), "60 s after the deadline, in whole seconds"
    await redis.expire(KEYS.message("3"), 1000)
    await redis.persist(KEYS.xid("a"))
    await touch(redis, KEYS, "3", 100)
    assert await redis.ttl(KEYS.message("3")) > 900, "never shortened"
    assert await redis.ttl(KEYS.xid("a")) == -1


async def test_an_event_is_written(redis: Redis) -> None:
    await policy(redis)
    began = await now(redis)
    await in_flight(redis, age=65, attempt=2, delivered=f"{began - 5:.3f}")
    await touch(redis, KEYS, "3", 30)
    (fields,) = await events(redis)
    ended = await now(redis)
    assert int(fields.pop(b"at")) / 1000 == Span(began, ended)
    assert float(fields.pop(b"seconds")) == Span(0, ended - began) + 5, "since the last delivery"
    assert fields == {
        b"event": b"touched", b"id": b"3", b"xid": b"a", b"queue": b"out", b"service": b"2", b"attempt": b"2",
    }  # fmt: skip


async def test_events_are_bounded_and_may_be_none(redis: Redis) -> None:
    await policy(redis, eventCapacity=100)
    await in_flight(redis)
    for _ in range(400):
        await touch(redis, KEYS, "3", 30)
    assert await redis.xlen(KEYS.events) < 300
    await redis.delete(KEYS.events)
    await policy(redis, eventCapacity=0)
    await touch(redis, KEYS, "3", 30)
    assert await redis.exists(KEYS.events) == 0


async def test_what_is_not_in_flight_has_no_deadline(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await delayed(redis, "4", "late")
    await tombstone(redis, "5", "dead")
    await redis.zadd(KEYS.deadlines, {"6": 1})  # its record has expired
    before = await redis.zrange(KEYS.deadlines, 0, -1, withscores=True)
    for id in ("4", "5", "6", "7", "late", "dead"):
        result = await penstock("touch", "demo", id, "30", redis=redis_url)
        assert (result.status, result.out) == (1, b"")
        assert result.error == (
            f"penstock: message {id} of demo is not in flight, so it has no deadline to move: "
            f"`penstock explain demo {id}` says where it is\n"
        )
    assert await redis.zrange(KEYS.deadlines, 0, -1, withscores=True) == before
    assert await redis.exists("demo:metrics:touched", KEYS.events, KEYS.message("6"), KEYS.message("7")) == 0


async def test_the_xid_will_do_and_means_the_oldest(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    for id in ("7", "8"):
        await in_flight(redis, id, "a b", left=5)
    younger = await deadline_of(redis, "8")
    assert (await penstock("touch", "demo", "a b", "900", redis=redis_url)).status == 0
    assert await deadline_of(redis, "7") > younger + 800
    assert await deadline_of(redis, "8") == younger


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e9", "soon"])
async def test_a_time_that_is_none_is_a_wrong_call(redis: Redis, redis_url: str, seconds: str) -> None:
    await policy(redis)
    await in_flight(redis)
    result = await penstock("touch", "demo", "3", seconds, redis=redis_url)
    assert result.status == 2
    assert await redis.exists("demo:metrics:touched") == 0


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e300])
async def test_the_function_refuses_it_as_well(redis: Redis, seconds: float) -> None:
    with pytest.raises(ValueError, match="is no time to give"):
        await touch(redis, KEYS, "3", seconds)


@pytest.mark.parametrize("words", [[], ["demo"]])
async def test_a_namespace_and_an_id_must_be_named(words: list[str]) -> None:
    assert (await penstock("touch", *words)).status == 2


async def test_a_namespace_that_tracks_nothing_is_a_failure(redis: Redis, redis_url: str) -> None:
    unknown = await penstock("touch", "demo", "3", redis=redis_url)
    assert "no service has registered in the namespace demo" in unknown.error
    await write(redis, "demo:lists", out="out")
    hop = await penstock("touch", "demo", "3", redis=redis_url)
    assert (hop.status, hop.out) == (1, b"")
    assert "messages of demo are not tracked: demo:policy, which mdispatch writes, has no policy" in hop.error


@pytest.mark.parametrize("key", ["demo:events", "demo:metrics:touched", "demo:message:deadlines", "demo:message:xid:a"])
async def test_a_key_of_another_type_is_reported_before_anything_is_written(redis: Redis, key: str) -> None:
    await policy(redis)
    await in_flight(redis, left=5)
    before = await redis.hget(KEYS.message("3"), "deadline")
    await redis.delete(key)
    await redis.set(key, "text")
    with pytest.raises(WrongType, match=f"{key} holds a string, expected a"):
        await touch(redis, KEYS, "3", 900)
    assert await redis.hget(KEYS.message("3"), "deadline") == before


async def test_many_who_touch_at_once_leave_the_latest_deadline(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await in_flight(redis)
    began = await now(redis)
    async with Redis.from_url(redis_url) as other:
        await asyncio.gather(
            *(touch(client, KEYS, "3", 4000 + step) for step in range(50) for client in (redis, other))
        )
    assert await deadline_of(redis) == Span(began, await now(redis)) + 4049
    assert await redis.hget("demo:metrics:touched", "count") == b"100"


@pytest.mark.parametrize("namespace", AWKWARD)
async def test_names_may_be_any(redis: Redis, redis_url: str, namespace: str) -> None:
    keys, xid = Keys(namespace), "\x1b ünï:next:{x}*"
    await policy(redis, keys)
    await in_flight(redis, "3", xid, keys=keys)
    await in_flight(redis, "4", xid, keys=keys)
    began = await now(redis)
    result = await penstock("touch", namespace, xid, "7200", redis=redis_url)
    assert result.status == 0
    assert "\x1b" not in result.text
    assert await deadline_of(redis, "3", keys) >= began + 7200


async def test_the_script_is_what_any_client_can_send(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await in_flight(redis, left=5)
    await event(redis, "registered")
    result = await penstock("touch", "demo", "3", "900", "--script")
    call, hint, *body = result.text.splitlines()
    assert hint == "-- XID is what this prints: redis-cli hget demo:message:3 xid"
    found = re.fullmatch(r"-- redis-cli --eval touch.lua (.*) , 3 900", call)
    assert found
    names = found[1].replace("XID", "a").split()
    arguments: list[Any] = [*names, "3", "900"]
    began = await now(redis)
    reply = await redis.eval("\n".join(body), len(names), *arguments)
    assert float(reply) == Span(began, await now(redis)) + 900
    assert await deadline_of(redis) == pytest.approx(float(reply), abs=1e-3)
    assert await redis.ttl("demo:message:xid:a") > 800
    assert "'with space:policy'" in (await penstock("touch", "with space", "--script")).text
