"""penstock shovel --copy: the list stays as it is."""

import random

import pytest
from redis.asyncio import Redis

from penstock.transfer.copy import Copy, Overtaken
from tests.cli.given import left, push
from tests.cli.shovel.moving import HALFWAY, ReplyGate, keys, messages_with_trouble, shovel, shoveling, wait_for
from tests.reliability.two_servers import assert_same
from tests.support.commandline import ended

pytestmark = pytest.mark.slow


async def test_a_copy_leaves_the_list_as_it_is(redis: Redis, there: Redis, redis_url: str, there_url: str) -> None:
    messages = [b"", b"\xff\0", b"x" * 3_000_000, *messages_with_trouble()]
    await push(redis, messages)
    result = await shovel(redis_url, "in", there_url, "out", "--copy")
    assert (result.status, result.error) == (0, "")
    assert result.text.startswith("copied 20,003 messages (")
    assert_same(await left(redis), messages)
    assert_same(await left(there, "out"), messages)
    assert (await keys(redis), await keys(there)) == ([b"in"], [b"out"])


@pytest.mark.parametrize("words", [[], ["--until-empty"]])
async def test_a_copy_is_not_disturbed_by_what_is_pushed_or_taken_meanwhile(
    redis: Redis, there: Redis, redis_url: str, gate: ReplyGate, words: list[str]
) -> None:
    messages, later = messages_with_trouble(40_000, size=1_000), [b"later %d" % number for number in range(5_000)]
    await push(redis, messages)
    async with shoveling(redis_url, "in", gate.url, "out", "--copy", *words) as process:
        await wait_for(gate.closed)
        await push(redis, later)
        await redis.rpop("in", 3_000)
        gate.open()
        status, err = await ended(process)
    assert (status, err) == (0, "penstock: 3,000 messages were taken from the list meanwhile: they are in the copy\n")
    assert_same(await left(there, "out"), messages + (later if words else []))
    assert_same(await left(redis), (messages + later)[3_000:])


async def test_a_copy_that_is_overtaken_says_so(redis: Redis, there: Redis, redis_url: str, gate: ReplyGate) -> None:
    messages = messages_with_trouble(40_000, size=1_000)
    await push(redis, messages)
    async with shoveling(redis_url, "in", gate.url, "out", "--copy") as process:
        await wait_for(gate.closed)
        await redis.rpop("in", 39_990)
        gate.open()
        status, err = await ended(process)
    assert status == 1
    assert "copied to out before this: " in err
    assert "have been taken from the list" in err
    copied = await left(there, "out")
    assert_same(copied, messages[: len(copied)])
    assert await keys(there) == [b"out"]


async def test_messages_that_are_all_the_same_and_are_taken_are_counted(
    redis: Redis, there: Redis, redis_url: str, gate: ReplyGate
) -> None:
    await push(redis, [HALFWAY + b"x" * 1_000] * 40_000)
    async with shoveling(redis_url, "in", gate.url, "out", "--copy") as process:
        await wait_for(gate.closed)
        await redis.rpop("in", 5_000)
        gate.open()
        status, err = await ended(process)
    assert status == 1
    copied = await there.llen("out")
    assert f"{40_000 - copied:,} of the messages were taken from in before they could be copied" in err


async def test_a_copy_finds_its_place_whatever_is_taken(redis: Redis, there: Redis) -> None:
    chance = random.Random(1)
    for _ in range(200):
        await redis.delete("in")
        messages = [b"%d" % chance.randrange(3) + b" %d" % (number // 2) for number in range(chance.randrange(1, 300))]
        await push(redis, messages)
        copy, copied, taken = Copy(redis, b"in", there, "out"), list[bytes](), 0
        while piece := await copy.take(len(copied) + 1, chance.randrange(1, 50)):
            copied += piece
            pop = chance.randrange(max(min(len(copied) - taken, 20), 1))
            taken += len(await redis.rpop("in", pop) or []) if pop else 0
        assert_same(copied, messages)


async def test_a_copy_never_guesses(redis: Redis, there: Redis) -> None:
    await push(redis, [b"%d" % number for number in range(100)])
    copy = Copy(redis, b"in", there, "out")
    first = await copy.take(1)
    await redis.rpop("in", len(first) + 1)
    with pytest.raises(Overtaken):
        await copy.take(len(first) + 1)
