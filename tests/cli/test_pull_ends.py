"""penstock pull, ended in every possible way: nothing is lost, and unwritten messages go back in order."""

import asyncio
import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from penstock.testing.server import EmbeddedServer
from tests.cli.given import left, numbered, push
from tests.support.commandline import ended, penstock, running
from tests.support.harness import PATIENCE, eventually

pytestmark = pytest.mark.slow
REMEMBERED: Final = {b"in:consumers", b"in:consumers:steps", b"in:failures"}
"""What is left of a killed pull: a command on its way could still take messages, and its delivery has failed."""


@asynccontextmanager
async def blocked_pull(
    redis: Redis, redis_url: str, messages: list[bytes], pulls: int = 1
) -> AsyncIterator[tuple[Process, FileIO]]:
    """Yield a pull that is blocked by a full pipe, with a batch in hand, and the reading end of the pipe.

    Wait until ``pulls`` of them, this one included, hold a batch.
    """
    if messages:
        await push(redis, messages)
    ours, theirs = os.pipe()
    with FileIO(ours) as reader:
        async with running("pull", "in", redis=redis_url, stdout=theirs) as process:
            os.close(theirs)
            await eventually(lambda: holding(redis, pulls))
            await asyncio.to_thread(_wait_until_full, reader)
            yield process, reader


async def holding(redis: Redis, pulls: int) -> bool:
    return len(await redis.keys("in:consumer:*")) >= pulls


def _wait_until_full(reader: FileIO) -> None:
    """Wait until a pipe is full, so its content no longer grows."""
    enough, before, until = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ) // 2, 0, time.monotonic() + PATIENCE
    while time.monotonic() < until:
        size = struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"\0\0\0\0"))[0]
        if size == before > enough:
            return
        before = size
        time.sleep(0.1)
    raise AssertionError(f"the pipe holds {before} bytes, expected more than {enough}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("size", [10, 10_000])
async def test_a_signal_puts_back_in_order_what_was_not_written(
    redis: Redis, redis_url: str, number: signal.Signals, size: int
) -> None:
    messages = numbered(20_000 if size == 10 else 300, size)
    async with blocked_pull(redis, redis_url, messages) as (process, reader):
        process.send_signal(number)
        status, err = await ended(process)
        assert status == 0
        assert "back in in, as not written: " in err
        written = reader.readall()
        whole = written.count(b"\n")
        assert written.split(b"\n")[:whole] + await left(redis) == messages
        assert await redis.keys("*") == [b"in"]


async def test_a_reader_that_goes_away_leaves_the_rest_in_the_list_in_order(redis: Redis, redis_url: str) -> None:
    messages = numbered(20_000)
    async with blocked_pull(redis, redis_url, messages) as (process, reader):
        some = reader.read(1000)
        reader.close()
        assert (await ended(process))[0] == 0
        rest = await left(redis)
        assert rest == messages[-len(rest) :]
        assert messages[: some.count(b"\n")] == some.split(b"\n")[:-1]
        assert await redis.keys("*") == [b"in"]


async def test_a_killed_pull_loses_nothing(redis: Redis, redis_url: str) -> None:
    messages = numbered(20_000)
    async with blocked_pull(redis, redis_url, messages) as (process, reader):
        process.kill()
        await ended(process)
        written = reader.readall().split(b"\n")[:-1]
        assert len(await left(redis)) < len(messages) - len(written)
        again = await penstock("pull", "in", redis=redis_url)
        assert "back in in, left by a killed pull: " in again.error
        pulled = again.out.splitlines()
        assert pulled == messages[-len(pulled) :], "in order"
        assert set(written) | set(pulled) == set(messages), "at least once"
        assert {*await redis.keys("*")} <= REMEMBERED


async def test_what_several_killed_pulls_left_goes_back(redis: Redis, redis_url: str) -> None:
    messages = numbered(60_000)
    written = []
    async with AsyncExitStack() as stack:
        pulls = [
            await stack.enter_async_context(blocked_pull(redis, redis_url, messages if place == 1 else [], place))
            for place in (1, 2, 3)
        ]
        for process, reader in pulls:
            process.kill()
            written += reader.readall().split(b"\n")[:-1]
    restored = await penstock("pull", "in", "--limit", "0", redis=redis_url)
    assert (restored.status, restored.out) == (0, b"")
    assert {*await redis.keys("*")} <= REMEMBERED | {b"in"}
    assert set(written) | set(await left(redis)) == set(messages)


async def test_what_a_living_pull_holds_is_not_put_back(redis: Redis, redis_url: str) -> None:
    messages = numbered(20_000)
    async with blocked_pull(redis, redis_url, messages) as (process, reader):
        other = await penstock("pull", "in", redis=redis_url)
        assert other.error == ""
        process.terminate()
        await ended(process)
        back = await left(redis)
        written = reader.readall().split(b"\n")[:-1]
        assert written + back + other.out.splitlines() == messages


async def test_what_a_suspended_pull_holds_goes_to_another_and_it_goes_on(redis: Redis, redis_url: str) -> None:
    messages = numbered(20_000)
    async with blocked_pull(redis, redis_url, messages) as (process, reader):
        process.send_signal(signal.SIGSTOP)
        other = await penstock("pull", "in", "--limit", "10", redis=redis_url)
        assert "back in in, left by a killed pull: " in other.error
        process.send_signal(signal.SIGCONT)
        written = (await asyncio.to_thread(reader.readall)).splitlines()
        assert (await ended(process))[0] == 0
        assert set(written) | set(other.out.splitlines()) == set(messages)


async def test_two_pulls_at_once_share_a_list(redis: Redis, redis_url: str) -> None:
    messages = numbered(20_000)
    await push(redis, messages)
    results = await asyncio.gather(*(penstock("pull", "in", redis=redis_url) for _ in range(2)))
    assert sorted(b"".join(result.out for result in results).splitlines()) == sorted(messages)


async def test_a_full_disk_is_reported_and_nothing_is_lost(redis: Redis, redis_url: str) -> None:
    await push(redis, numbered(10))
    full = os.open("/dev/full", os.O_WRONLY)
    async with running("pull", "in", redis=redis_url, stdout=full) as process:
        os.close(full)
        status, err = await ended(process)
        assert status == 1
        assert "cannot write to standard output: No space left on device" in err
        assert await left(redis) == numbered(10)


async def test_a_file_is_an_output_too(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    await push(redis, numbered(5000, 100))
    output = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    async with running("pull", "in", redis=redis_url, stdout=output) as process:
        os.close(output)
        assert (await ended(process))[0] == 0
        assert (tmp_path / "out").read_bytes().splitlines() == numbered(5000, 100)


async def test_a_connection_that_breaks_between_two_batches_is_reopened(redis: Redis, redis_url: str) -> None:
    messages = numbered(20_000)
    async with blocked_pull(redis, redis_url, messages) as (process, reader):
        await redis.client_kill_filter(_type="normal", skipme=True)
        assert (await asyncio.to_thread(reader.readall)).splitlines() == messages
        assert (await ended(process))[0] == 0
        assert await redis.keys("*") == []


async def test_a_server_that_goes_away_keeps_what_was_not_written(tmp_path: Path) -> None:
    messages = numbered(20_000)
    with EmbeddedServer(directory=tmp_path, aof=True) as server:
        async with (
            Redis.from_url(server.url) as redis,
            blocked_pull(redis, server.url, messages) as (process, reader),
        ):
            server.kill()
            written = await asyncio.to_thread(reader.readall)
            status, err = await ended(process)
        assert status == 1
        assert "the next pull puts them back" in err
        assert "cannot reach redis://127.0.0.1:" in err
        server.start()
        again = (await penstock("pull", "in", redis=server.url)).out.splitlines()
    assert set(written.splitlines()) | set(again) == set(messages)
    assert again == messages[-len(again) :]


def test_head_ends_a_pipe_without_noise(here: Any, redis_url: str) -> None:
    command = (
        f"seq 5000 | {sys.executable} -m penstock push in >/dev/null && {sys.executable} -m penstock pull in | head -3"
    )
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, timeout=PATIENCE, env={**os.environ, "REDIS": redis_url}
    )
    assert result.stdout == b"1\n2\n3\n"
    assert b"Traceback" not in result.stderr
    assert b"Broken" not in result.stderr
