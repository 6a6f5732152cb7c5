"""penstock done: end a message by hand, as its worker would."""

import json
from pathlib import Path

from redis.asyncio import Redis

from tests.support.commandline import penstock
from tests.support.harness import Service, eventually
from tests.support.tracked import delayed, in_flight, policy, tombstone

TRACK = {"redis_namespace": "demo", "in": "in", "pending": "pending", "out": "work"}
WATCH = {"redis_namespace": "watch", "watch": ["demo"]}


async def test_a_message_in_flight_is_ended_by_its_xid_and_counted_as_done(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    async def is_in_flight() -> bool:
        return await redis.zcard("demo:message:deadlines") == 2

    with (
        Service("mdispatch", tmp_path / "a.log", redis=redis_url, **TRACK),
        Service("monitor", tmp_path / "b.log", redis=redis_url, **WATCH),
    ):
        await redis.lpush("in", '{"meta": {"id": "one"}}', '{"meta": {"id": "two"}}')
        await eventually(is_in_flight)
        result = await penstock("done", "demo", "two", "--wait", "30", redis=redis_url)
        assert (result.status, result.error, result.text) == (0, "", "message 2 of demo is done\n")
        assert await redis.hget("demo:metrics:done", "count") == b"1"
        assert await redis.zrange("demo:message:deadlines", 0, -1) == [b"1"]
        again = await penstock("done", "demo", "two", redis=redis_url)
        assert again.status == 1
        assert again.error == (
            "penstock: message two of demo is not in flight, so it cannot be ended: "
            "`penstock explain demo two` says where it is\n"
        )


async def test_without_a_monitor_it_says_so_and_the_word_stays(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await in_flight(redis, "3")
    result = await penstock("done", "demo", "3", "--wait", "0.1", redis=redis_url)
    assert (result.status, result.error) == (1, "")
    assert result.text == ("pushed to demo:done: no monitor has taken it within 0.1 s; it stays there until one does\n")
    assert [json.loads(word) for word in await redis.lrange("demo:done", 0, -1)] == [{"id": 3}]
    unwaited = await penstock("done", "demo", "3", "--wait", "0", "--json", redis=redis_url)
    assert unwaited.status == 0
    assert unwaited.json == {"namespace": "demo", "id": "3", "ended": False, "list": "demo:done"}


async def test_one_that_waits_for_another_attempt_can_be_ended_and_a_dead_one_cannot(
    redis: Redis, redis_url: str
) -> None:
    await policy(redis)
    await delayed(redis, "4", attempt=1)
    await tombstone(redis, "5", "b")
    assert (await penstock("done", "demo", "4", "--wait", "0", redis=redis_url)).status == 0
    dead = await penstock("done", "demo", "5", redis=redis_url)
    assert dead.status == 1
    assert "is not in flight, so it cannot be ended" in dead.error
    assert await redis.llen("demo:done") == 1
