"""The script that pushes a request whose answer is fetched later."""

from pathlib import Path
from typing import Any

from redis.asyncio import Redis

import services.himporter.accepted
from penstock.core.script import Script

_accept = Script.read(Path(services.himporter.accepted.__file__).parent / "lua" / "accept.lua")


async def accept(redis: "Redis", name: str = "w:res:a", most: int = 2) -> Any:
    metrics = {metric: metric for metric in ("taken", "settled", "delivered")}
    return await _accept(
        redis, replies="w:res", out="out", list=name, note="n", message="m", keep=100, most=most, **metrics
    )


async def test_a_request_is_pushed_and_the_list_for_its_answer_kept_in_mind(redis: "Redis") -> None:
    assert await accept(redis) == 1
    assert await redis.lrange("out", 0, -1) == [b"m"]
    counts = {metric: await redis.hgetall(metric) for metric in ("taken", "settled", "delivered")}
    both = {b"count": b"1", b"out": b"1"}
    assert counts == {"taken": both, "settled": {b"count": b"1"}, "delivered": both}
    seconds, _ = await redis.time()
    assert 95 <= float(await redis.zscore("w:res", "w:res:a") or 0) - seconds <= 101
    assert await redis.lrange("w:res:a", 0, -1) == [b"n"]
    assert 95 <= await redis.ttl("w:res:a") <= 100


async def test_no_more_than_may_be_kept_are_accepted(redis: "Redis") -> None:
    assert [await accept(redis, f"w:res:{number}") for number in range(3)] == [1, 1, 0]
    assert (await redis.llen("out"), await redis.zcard("w:res")) == (2, 2)
