"""penstock push."""

import asyncio
import os
import pty
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from penstock.cli.push import messages_of
from tests.support.commandline import AWKWARD, ended, penstock, running
from tests.support.harness import PATIENCE, eventually


async def has(redis: Redis, length: int) -> bool:
    return bool(await redis.llen("in") == length)


async def test_each_line_is_a_message_and_the_first_is_the_oldest(redis: Redis, redis_url: str) -> None:
    result = await penstock("push", "in", redis=redis_url, stdin=b"one\ntwo\nthree\n")
    assert (result.status, result.error) == (0, "")
    assert result.text.startswith("pushed 3 messages to in in ")
    assert await redis.lrange("in", 0, -1) == [b"three", b"two", b"one"]


async def test_bytes_are_carried_unchanged(redis: Redis, redis_url: str) -> None:
    messages = [b"", b"\x00", bytes(byte for byte in range(256) if byte != 10), b"\xff\xfe", b"1", b"a\r", b" b ", b""]
    await penstock("push", "in", redis=redis_url, stdin=b"".join(message + b"\n" for message in messages))
    assert await redis.lrange("in", 0, -1) == messages[::-1]


async def test_a_last_line_without_a_newline_is_a_message(redis: Redis, redis_url: str) -> None:
    await penstock("push", "in", redis=redis_url, stdin=b"one\ntwo")
    assert await redis.lrange("in", 0, -1) == [b"two", b"one"]


async def test_no_input_is_no_message(redis: Redis, redis_url: str) -> None:
    result = await penstock("push", "in", "--json", redis=redis_url)
    assert result.json["messages"] == 0
    assert await redis.exists("in") == 0


@pytest.mark.parametrize("text", [b"one\ntwo\n", b"", b"\n", b"x" * 1_000_000])
async def test_the_whole_input_is_one_message(redis: Redis, redis_url: str, text: bytes) -> None:
    await penstock("push", "in", "--whole", redis=redis_url, stdin=text)
    assert await redis.lrange("in", 0, -1) == [text]


async def test_messages_separated_by_nul_may_hold_newlines(redis: Redis, redis_url: str) -> None:
    await penstock("push", "in", "--null", redis=redis_url, stdin=b"one\nline\0\0two")
    assert await redis.lrange("in", 0, -1) == [b"two", b"", b"one\nline"]


async def test_a_file_is_read_and_count_and_rate_are_printed(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    result = await penstock("push", "in", "--file", file, "--json", redis=redis_url)
    output = result.json
    assert (output["list"], output["messages"], output["bytes"], output["length"]) == ("in", 2, 6, 2)
    assert output["rate"] > 0
    assert output["seconds"] > 0


async def test_a_file_that_is_not_there_is_one_clear_line(redis_url: str) -> None:
    result = await penstock("push", "in", "--file", "no/such", redis=redis_url)
    assert (result.status, result.out) == (2, b"")
    assert result.error == "penstock: no/such: no such file or directory\n"


@pytest.mark.parametrize("name", [*AWKWARD, b"not \xff\xfe UTF-8"])
async def test_a_list_may_have_any_name(redis: Redis, redis_url: str, name: str | bytes) -> None:
    result = await penstock("push", name, redis=redis_url, stdin=b"one\n")
    assert result.status == 0
    assert await redis.lrange(name if isinstance(name, bytes) else name.encode(), 0, -1) == [b"one"]


async def test_a_key_of_another_type_is_named_and_left_alone(redis: Redis, redis_url: str) -> None:
    await redis.hset("in", "field", "value")
    result = await penstock("push", "in", redis=redis_url, stdin=b"one\n")
    assert result.status == 1
    assert "in is a hash, expected a list" in result.error
    assert await redis.hgetall("in") == {b"field": b"value"}


async def test_lines_are_pushed_as_they_come(redis: Redis, redis_url: str) -> None:
    async with running("push", "in", redis=redis_url) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nthr")
        await eventually(lambda: has(redis, 2))
        process.stdin.write(b"ee\n")
        process.stdin.close()
        assert (await ended(process))[0] == 0
        assert await redis.lrange("in", 0, -1) == [b"three", b"two", b"one"]


async def test_an_interrupted_push_reports_what_it_has_pushed(redis: Redis, redis_url: str) -> None:
    async with running("push", "in", redis=redis_url) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nthr")
        await eventually(lambda: has(redis, 2))
        process.send_signal(2)
        status, err = await ended(process)
        assert status == 130
        assert err == "penstock: 2 messages went to in before the interrupt\n"


async def test_a_full_server_is_reported_with_what_was_pushed(redis: Redis, redis_url: str) -> None:
    await redis.config_set("maxmemory", "1")
    try:
        result = await penstock("push", "in", redis=redis_url, stdin=b"one\n" * 10)
    finally:
        await redis.config_set("maxmemory", "0")
    assert result.status == 1
    assert "0 messages went to" in result.error
    assert "is out of memory" in result.error
    assert await redis.exists("in") == 0


async def test_a_progress_bar_is_on_a_terminal_only(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\n" * 10)
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "penstock",
        "push",
        "in",
        "--file",
        tmp_path / "lines",
        "--redis",
        redis_url,
        stderr=theirs,
    )
    os.close(theirs)
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    shown = os.read(ours, 65536)
    os.close(ours)
    assert b"\x1b[" in shown


async def test_a_long_line_comes_through_in_pieces() -> None:
    reader, writer = os.pipe()
    lines = [b"x" * 3_000_000, b"y", b"z" * 500_000]
    write = asyncio.create_task(asyncio.to_thread(_write, writer, b"\n".join(lines)))
    found = [message async for messages in messages_of(reader, b"\n") for message in messages]
    await write
    os.close(reader)
    assert found == lines


def _write(fd: int, data: bytes) -> None:
    with open(fd, "wb") as stream:
        stream.write(data)


async def test_a_message_that_is_too_large_for_the_server_is_named(redis: Redis, redis_url: str) -> None:
    await redis.config_set("proto-max-bulk-len", 1 << 20)
    try:
        result = await penstock("push", "in", redis=redis_url, stdin=b"one\n" + b"x" * (1 << 21))
    finally:
        await redis.config_set("proto-max-bulk-len", 512 << 20)
    assert result.status == 1
    assert "a message of 2,097,152 bytes, where the server takes 1,048,576: raise its proto" in result.error
    assert "start a server" not in result.error
