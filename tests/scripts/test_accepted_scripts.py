"""The scripts that cancel accepted requests, and read what is new of them."""

from pathlib import Path
from typing import Any

from redis.asyncio import Redis

import services.himporter.accepted
from penstock.core.script import Script

LUA = Path(services.himporter.accepted.__file__).parent / "lua"
_cancel, _news = (Script.read(LUA / f"{verb}.lua") for verb in ("cancel", "news"))


async def cancel(redis: "Redis") -> Any:
    keys = {"replies": "w:res", "list": "w:res:a", "cancelled": "w:cancelled:a"}
    return await _cancel(redis, **keys, channel="w:cancelled", id="a", note="note")


async def keep(redis: "Redis", seconds: int, name: str = "w:res:a") -> None:
    now, _ = await redis.time()
    await redis.zadd("w:res", {name: now + seconds})


async def test_a_request_is_cancelled_once_for_as_long_as_its_answer_is_kept(redis: "Redis") -> None:
    await keep(redis, 100)
    assert [await cancel(redis) for _ in range(2)] == [1, 1]
    assert await redis.lrange("w:res:a", 0, -1) == [b"note"]
    assert 95 < await redis.ttl("w:cancelled:a") <= 100


async def test_a_request_that_is_unknown_or_over_is_not_cancelled(redis: "Redis") -> None:
    assert await cancel(redis) == 0
    await keep(redis, -1)
    assert await cancel(redis) == 0
    assert await redis.keys() == [b"w:res"]


async def test_news_are_those_that_the_caller_has_not_read_of_each_list(redis: "Redis") -> None:
    for name in ("a", "b", "empty", "string"):
        await keep(redis, 100, name)
    await redis.rpush("a", *map(str, range(7, 0, -1)))
    await redis.rpush("b", "x")
    await redis.rpush("unknown", "secret")
    await redis.set("string", "x")

    async def news(seen: int) -> Any:
        lists = ["a", "b", "empty", "string", "unknown"]
        return await _news(redis, replies="w:res", lists=lists, most=3, seen=[seen, 0, 0, 0, 0])

    rest = [[b"x"], [], 0, 0]
    assert await news(0) == [[b"3", b"2", b"1"], *rest]
    assert await news(3) == [[b"6", b"5", b"4"], *rest]
    assert await news(6) == [[b"7"], *rest]
    assert await news(7) == [[], *rest]
