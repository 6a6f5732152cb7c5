"""penstock bury."""

import re

from redis.asyncio import Redis

from tests.support.commandline import penstock
from tests.support.tracked import bury, counted, left, letter, policy


async def test_buried_letters_are_gone_for_good(redis: Redis, redis_url: str) -> None:
    await bury(redis, letter("1"), letter("2"), letter("3"), b"not JSON")
    (strange,) = [id for id in await left(redis) if id.startswith("@")]
    result = await penstock("bury", "demo", "2", strange, redis=redis_url)
    assert (result.status, result.text, result.error) == (0, "buried 2 letters\n", "")
    assert await left(redis) == ["3", "1"]
    assert await counted(redis, "buried") == 2
    again = await penstock("bury", "demo", "2", "1", "--json", redis=redis_url)
    assert (again.status, again.json) == (
        1, {"namespace": "demo", "buried": 1, "problems": ["no such dead letter: 2"]},
    )  # fmt: skip
    assert await redis.exists("in") == 0


async def test_all_are_buried_only_by_those_who_say_yes(redis: Redis, redis_url: str) -> None:
    await bury(redis, letter("1"), letter("2", reason="failed"), letter("3", reason="failed"))
    words = ["bury", "demo", "--all", "--reason", "failed"]
    asked = await penstock(*words, redis=redis_url)
    assert (asked.status, asked.out) == (2, b"")
    assert "2 of 3 letters would be deleted permanently: pass --yes to confirm" in asked.error
    assert await left(redis) == ["3", "2", "1"]
    assert (await penstock(*words, "--yes", redis=redis_url)).text == "buried 2 letters\n"
    assert await left(redis) == ["1"]


async def test_letters_are_buried_on_a_server_whose_memory_is_full(redis: Redis, redis_url: str) -> None:
    """A full server is when burying is needed; reviving must wait."""
    await policy(redis)
    await bury(redis, *(letter(str(number)) for number in range(1000)))
    await redis.config_set("maxmemory", 1)
    try:
        refused = await penstock("revive", "demo", "3", redis=redis_url)
        result = await penstock("bury", "demo", "--all", "--yes", redis=redis_url)
    finally:
        await redis.config_set("maxmemory", 0)
    assert refused.status == 1
    assert re.search("out of memory|OOM", refused.error), "Redis 6.2 wraps it"
    assert (result.status, result.text) == (0, "buried 1,000 letters\n")
    assert await redis.exists("in", "demo:dead") == 0
