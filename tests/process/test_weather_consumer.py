"""Each consumer of the weather composition alone: stopped, run twice, and given invalid rows.

``test_chaos_compositions.py`` kills it and cuts it off at each command.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import cast

import pytest
from redis import Redis as Blocking
from redis.asyncio import Redis

from compose.comparison import Comparison
from compose.weather.consumer import HANDLED, Consumer
from penstock.testing.server import EmbeddedServer
from tests.support.harness import eventually

ROOT = Path(__file__).parent.parent.parent
ROWS = (ROOT / "compose/weather/seattle-weather.csv").read_bytes().splitlines()[1:]
EACH = pytest.mark.parametrize("role", HANDLED)


@contextmanager
def process(url: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"REDIS": url}
    with subprocess.Popen([sys.executable, *words], env=environment, cwd=ROOT, stderr=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.kill()


def consumer(url: str, role: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return process(url, "-m", "compose.weather.consumer", role)


async def content(redis: "Redis", key: str) -> list[bytes]:
    """Return the messages of a list, oldest first."""
    return cast(list[bytes], await redis.lrange(key, 0, -1))[::-1]


async def settled(redis: "Redis", role: str, rows: list[bytes]) -> Comparison:
    """Wait until the lists of ``role`` are empty; compare ``rows`` with its output."""

    async def done() -> bool:
        return not await redis.exists(f"weather:{role}", f"weather:{role}:working:1")

    await eventually(done)
    return Comparison.compare(role, rows, await content(redis, HANDLED[role]))


async def test_what_a_second_consumer_of_the_name_settles_meanwhile_is_not_settled_again(
    redis: "Redis", redis_url: str
) -> None:
    class Overtaken(Consumer):
        def act(self, messages: list[bytes]) -> dict[str, list[bytes | str]]:
            if messages:
                Consumer(self.server, self.role).settle()
            return super().act(messages)

    await redis.lpush("weather:archive:working:1", *ROWS)
    with Blocking.from_url(redis_url) as server:
        Overtaken(server, "archive").settle()
    assert (await settled(redis, "archive", ROWS)).differences() == []


@EACH
async def test_a_backlog_passes_in_batches(redis: "Redis", redis_url: str, role: str) -> None:
    with consumer(redis_url, role):
        await redis.lpush(f"weather:{role}", ROWS[0])
        await settled(redis, role, ROWS[:1])
        await redis.config_resetstat()
        await redis.lpush(f"weather:{role}", *ROWS[1:])
        assert (await settled(redis, role, ROWS)).differences() == []
    waits = (await redis.info("commandstats"))["cmdstat_blmove"]["calls"]
    assert waits < len(ROWS) / 10


@EACH
async def test_sigterm_ends_an_idle_consumer(redis: "Redis", redis_url: str, role: str) -> None:
    with consumer(redis_url, role) as idle:
        await redis.lpush(f"weather:{role}", ROWS[0])
        await settled(redis, role, ROWS[:1])
        idle.terminate()
        assert idle.wait(timeout=60) == 0


async def test_sigterm_is_obeyed_while_the_server_is_away() -> None:
    with EmbeddedServer() as server, consumer(server.url, "archive") as started:
        async with Redis.from_url(server.url) as redis:
            await redis.lpush("weather:archive", ROWS[0])
            await settled(redis, "archive", ROWS[:1])
        server.kill()
        assert started.stderr
        assert b"waiting for the server" in started.stderr.readline()
        started.terminate()
        assert started.wait(timeout=60) == 0


@pytest.mark.parametrize("bad", [b"", b"\x00\xff", b"no,row", b"2012/01/01,wet,1,2,3,rain"])
async def test_invalid_rows_go_to_the_dead_list_and_the_rest_is_processed(
    redis: "Redis", redis_url: str, bad: bytes
) -> None:
    rows = [ROWS[0], bad, ROWS[1]]
    await redis.lpush("weather:report", *rows)
    with consumer(redis_url, "report"):
        assert (await settled(redis, "report", rows)).differences() == []
    assert await redis.llen("weather:reports") == 2
    (letter,) = await content(redis, "weather:report:dead")
    assert json.loads(letter)["message"] == bad.decode(errors="backslashreplace")


def test_a_comparison_tells_lost_doubled_and_foreign_by_content() -> None:
    # As many out as in; one payload was correctly sent twice.
    comparison = Comparison.compare("a", [b"1", b"2", b"2", b"3"], [b"2", b"2", b"3", b"3"])
    assert (comparison.lost, comparison.doubled, comparison.foreign) == ({b"1": 1}, {b"3": 1}, {})
    assert comparison.differences() == ["a: lost 1, e.g. b'1'", "a: doubled 1, e.g. b'3'"]
    assert Comparison.compare("a", [b"1"], [b"1", b"4"]).differences() == ["a: never sent 1, e.g. b'4'"]
    assert Comparison.compare("a", [b"1", b"2"], [b"2", b"1"]).differences() == ["a: all there, but in another order"]
    assert Comparison.compare("a", [b"1", b"1"], [b"1"]).differences() == ["a: lost 1, e.g. b'1'"]
