"""penstock shovel: messages move from list to list, once and in order."""

import asyncio
import re

import pytest
from redis.asyncio import Redis

from tests.cli.given import left, push
from tests.cli.shovel.moving import ReplyGate, assert_moved, keys, messages_with_trouble, shovel, shoveling, wait_for
from tests.reliability.two_servers import assert_same
from tests.support.commandline import AWKWARD, ended
from tests.support.harness import eventually

pytestmark = pytest.mark.slow


async def test_twenty_thousand_messages_of_any_bytes_are_moved_in_order(
    redis: Redis, there: Redis, redis_url: str, there_url: str
) -> None:
    messages = [b"", b"\0", b"\xff\xfe", bytes(range(256)), b"x" * 3_000_000, *messages_with_trouble()]
    await push(redis, messages)
    result = await shovel(redis_url, "in", there_url, "out")
    assert (result.status, result.error) == (0, "")
    size = sum(map(len, messages))
    assert re.fullmatch(
        rf"moved 20,005 messages \({size:,} bytes\) from in to out in [\d.]+ s \([\d,]+/s\)\n", result.text
    )
    await assert_moved(redis, there, messages)


async def is_empty(redis: Redis, name: str) -> bool:
    return not await redis.llen(name)


async def test_what_is_pushed_meanwhile_stays_unless_it_goes_on_until_empty(
    redis: Redis, there: Redis, redis_url: str, gate: ReplyGate
) -> None:
    messages, later = messages_with_trouble(), [b"later"]
    for words in ([], ["--until-empty"]):
        await push(redis, messages)
        async with shoveling(redis_url, "in", gate.url, "out", *words) as process:
            await wait_for(gate.closed)
            await eventually(lambda: is_empty(redis, "in"))
            await asyncio.sleep(0.2)  # timing: time to end wrongly, with batches in transit, since nothing follows
            await push(redis, later)
            gate.open()
            assert (await ended(process))[0] == 0
        assert await left(redis) == ([] if words else later)
        assert_same(await left(there, "out"), messages + (later if words else []))
        await there.delete("out")
        await redis.delete("in")
        gate.closed.clear()


@pytest.mark.parametrize("words", [["--limit", "3"], ["--limit", "3", "--until-empty"], ["--limit", "3", "--copy"]])
async def test_no_more_than_the_limit(
    redis: Redis, there: Redis, redis_url: str, there_url: str, words: list[str]
) -> None:
    messages = [b"%d" % number for number in range(10)]
    await push(redis, messages)
    assert (await shovel(redis_url, "in", there_url, "out", *words)).status == 0
    assert await left(there, "out") == messages[:3]
    assert await left(redis) == (messages if "--copy" in words else messages[3:])
    assert (await keys(redis), await keys(there)) == ([b"in"], [b"out"])


async def test_it_pushes_to_the_new_end_of_what_is_there(
    redis: Redis, there: Redis, redis_url: str, there_url: str
) -> None:
    await push(there, [b"first"], "out")
    for message in (b"second", b"third"):
        await push(redis, [message])
        await shovel(redis_url, "in", there_url, "out")
    await assert_moved(redis, there, [b"first", b"second", b"third"])


async def test_the_other_list_may_be_on_the_same_server(redis: Redis, redis_url: str) -> None:
    await push(redis, [b"one", b"two"])
    assert (await shovel(redis_url, "in", redis_url, "out")).status == 0
    assert await left(redis, "out") == [b"one", b"two"]
    other = redis_url.removesuffix("/0") + "/1"
    assert (await shovel(redis_url, "out", other, "out")).status == 0
    assert await keys(redis) == []
    assert (await shovel(other, "out", redis_url, "out", "--copy")).status == 0
    assert await left(redis, "out") == [b"one", b"two"]


@pytest.mark.parametrize("name", AWKWARD)
async def test_lists_may_have_any_name(redis: Redis, there: Redis, redis_url: str, there_url: str, name: str) -> None:
    await push(redis, [b"one"], name)
    assert (await shovel(redis_url, name, there_url, name)).status == 0
    assert await left(there, name) == [b"one"]
    assert (await keys(redis), await keys(there)) == ([], [name.encode()])


async def test_the_list_here_need_not_have_a_name_in_utf8(
    redis: Redis, there: Redis, redis_url: str, there_url: str
) -> None:
    await push(redis, [b"one"], b"\xff")  # type: ignore[arg-type]
    assert (await shovel(redis_url, b"\xff", there_url, "out")).status == 0
    await assert_moved(redis, there, [b"one"])
    await push(redis, [b"one"])
    refused = await shovel(redis_url, "in", there_url, b"\xff")
    assert (refused.status, await keys(redis)) == (2, [b"in"])
    assert "is not UTF-8" in refused.error
