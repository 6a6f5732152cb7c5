"""The script that keeps an importer's list of answers and removes those of the dead."""

from pathlib import Path
from typing import Any

from redis.asyncio import Redis

import services.himporter.service
from penstock.core.script import Script

_keep = Script.read(Path(services.himporter.service.__file__).parent / "lua" / "keep_replies.lua")


async def keep(redis: "Redis", name: str = "w:res:1", stale: list[Any] | None = None, linger: int = 100) -> Any:
    return await _keep(redis, replies="w:res", list=name, stale=stale or [], expire=60, linger=linger)


async def test_a_list_in_use_expires_with_its_importer(redis: "Redis") -> None:
    await redis.lpush("w:res:1", "answer")
    assert await keep(redis) == []
    assert 50 < await redis.ttl("w:res:1") <= 60
    assert await keep(redis) == []
    assert await redis.zrange("w:res", 0, -1) == [b"w:res:1"]


async def test_a_list_of_a_dead_importer_is_removed_by_the_second_call_unless_it_lives_again(redis: "Redis") -> None:
    await keep(redis, "w:res:1", linger=-1)
    await redis.lpush("w:res:1", "late")
    stale = await keep(redis, "w:res:2")
    assert stale == [b"w:res:1"]
    await keep(redis, "w:res:1")
    assert await keep(redis, "w:res:2", stale) == []
    assert await redis.exists("w:res:1")
    await keep(redis, "w:res:1", linger=-1)
    assert await keep(redis, "w:res:2", stale) == []
    assert await redis.zrange("w:res", 0, -1) == [b"w:res:2"]
    assert not await redis.exists("w:res:1")


async def test_a_full_server_keeps_lists_too(redis: "Redis", fill: Any) -> None:
    await keep(redis)
    await fill()
    assert await keep(redis) == []


async def test_lists_without_an_importer_go_too(redis: "Redis") -> None:
    """Those of requests that got 202: nobody renews them."""
    await redis.zadd("w:res", {f"w:res:{number}": 1 for number in range(100, 350)})
    await redis.lpush("w:res:349", "answer")
    stale: list[Any] = []
    for expected in (100, 100, 50, 0):
        stale = await keep(redis, stale=stale)
        assert len(stale) == expected
    assert await redis.keys() == [b"w:res"]
