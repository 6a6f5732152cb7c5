"""penstock pull: messages are written unchanged, oldest first."""

import asyncio
import json
import os
import signal

import pytest
from redis.asyncio import Redis

from tests.cli.given import numbered, push
from tests.support.commandline import AWKWARD, ended, penstock, running
from tests.support.harness import PATIENCE, eventually


async def test_messages_come_out_oldest_first_and_leave_no_key(redis: Redis, redis_url: str) -> None:
    await push(redis, [b"one", b"two", b"three"])
    result = await penstock("pull", "in", redis=redis_url)
    assert (result.status, result.out, result.error) == (0, b"one\ntwo\nthree\n", "")
    assert await redis.keys("*") == []


async def test_an_empty_list_is_no_output(redis: Redis, redis_url: str) -> None:
    result = await penstock("pull", "nothing", redis=redis_url)
    assert (result.status, result.out, result.error) == (0, b"", "")
    assert await redis.keys("*") == []


async def test_a_hundred_thousand_lines_come_out_as_they_went_in(redis: Redis, redis_url: str) -> None:
    lines = b"".join(b"%d %s\n" % (number, bytes([number % 9 + 1]) * (number % 40)) for number in range(100_000))
    pushed = await penstock("push", "in", "--json", redis=redis_url, stdin=lines)
    assert pushed.json["messages"] == 100_000
    pulled = await penstock("pull", "in", redis=redis_url)
    assert pulled.out == lines
    assert await redis.keys("*") == []


async def test_bytes_are_carried_unchanged(redis: Redis, redis_url: str) -> None:
    messages = [b"", b"\x00", bytes(range(256)).replace(b"\n", b""), b"\xff\xfe", b"x" * 3_000_000, b"end\r"]
    await push(redis, messages)
    result = await penstock("pull", "in", redis=redis_url)
    assert result.out == b"".join(message + b"\n" for message in messages)


async def test_nul_separates_messages_with_newlines(redis: Redis, redis_url: str) -> None:
    await push(redis, [b"one\nline", b"two"])
    assert (await penstock("pull", "in", "--null", redis=redis_url)).out == b"one\nline\0two\0"


async def test_json_is_a_line_a_message(redis: Redis, redis_url: str) -> None:
    messages = [b"one\nline", b"\xff\x00", "✓".encode()]
    await push(redis, messages)
    result = await penstock("pull", "in", "--json", redis=redis_url)
    found = [json.loads(line)["message"].encode(errors="surrogateescape") for line in result.out.splitlines()]
    assert found == messages


async def test_no_more_than_the_limit_is_taken(redis: Redis, redis_url: str) -> None:
    await push(redis, numbered(2500))
    first = await penstock("pull", "in", "--limit", "1200", redis=redis_url)
    rest = await penstock("pull", "in", redis=redis_url)
    assert len(first.out.splitlines()) == 1200
    assert (first.out + rest.out).splitlines() == numbered(2500)


@pytest.mark.parametrize("name", AWKWARD)
async def test_a_list_may_have_any_name(redis: Redis, redis_url: str, name: str) -> None:
    await push(redis, [b"one"], name)
    assert (await penstock("pull", name, redis=redis_url)).out == b"one\n"
    assert await redis.keys("*") == []


async def test_a_key_of_another_type_is_named_and_left_alone(redis: Redis, redis_url: str) -> None:
    await redis.set("in", "text")
    result = await penstock("pull", "in", redis=redis_url)
    assert (result.status, result.out) == (1, b"")
    assert "in is a string, expected a list" in result.error


async def test_follow_waits_for_messages_and_ends_cleanly_on_a_signal(redis: Redis, redis_url: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        await redis.config_resetstat()
        async with running("pull", "in", "--follow", redis=redis_url) as process:
            assert process.stdout is not None
            for message in (b"one", b"two", b"three"):
                await redis.lpush("in", message)
                assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == message + b"\n"
            await eventually(lambda: waits(redis))
            process.send_signal(number)
            assert await ended(process) == (0, "")
            assert "cmdstat_client|unblock" in await redis.info("commandstats"), "it ends before its BLMOVE would"
            assert await redis.keys("*") == []


async def waits(redis: Redis) -> bool:
    """Return whether a client is blocked, as in BLMOVE."""
    return bool((await redis.info("clients"))["blocked_clients"])


async def test_follow_never_pops_for_good(redis: Redis, redis_url: str) -> None:
    """BLPOP loses the message if the client is gone; BLMOVE leaves it on the server."""
    await redis.config_resetstat()
    async with running("pull", "in", "--follow", redis=redis_url) as process:
        await redis.lpush("in", "one")
        assert process.stdout is not None
        await process.stdout.readline()
        process.terminate()
        assert await ended(process) == (0, "")
        used = await redis.info("commandstats")
        assert "cmdstat_blmove" in used
        assert not {"cmdstat_blpop", "cmdstat_brpop", "cmdstat_lpop"} & used.keys()


async def test_follow_ends_when_its_reader_goes_though_no_message_comes(redis: Redis, redis_url: str) -> None:
    reader, writer = os.pipe()
    async with running("pull", "in", "--follow", redis=redis_url, stdout=writer) as process:
        os.close(writer)
        await redis.lpush("in", "one")
        assert await asyncio.to_thread(os.read, reader, 100) == b"one\n"
        os.close(reader)
        assert (await ended(process))[0] == 0
        assert await redis.keys("*") == []
