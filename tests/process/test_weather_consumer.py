"""Each consumer of the weather composition alone: killed, restarted, run twice, and given invalid rows."""

import json
import os
import random
import signal
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

DIES = """
import os, signal, sys
from compose.weather.consumer import Consumer, main
settle = Consumer.settle
def dies(self):
    if self.server.llen(self.working):
        if sys.argv[2] == "after":
            settle(self)
        os.kill(os.getpid(), signal.SIGKILL)
Consumer.settle = dies
main(sys.argv[1])
"""


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


@EACH
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_consumer_killed_around_its_settling_neither_loses_nor_doubles(
    redis: "Redis", redis_url: str, role: str, moment: str
) -> None:
    rows = ROWS[:400]  # one batch: after the kill, the rest is only in the working list
    await redis.lpush(f"weather:{role}", *rows)
    with process(redis_url, "-c", DIES, role, moment) as victim:
        assert victim.wait(timeout=60) == -signal.SIGKILL
    taken = await redis.llen(f"weather:{role}:working:1")
    assert (taken > 0) == (moment == "before")
    with consumer(redis_url, role):
        assert (await settled(redis, role, rows)).differences() == []


async def test_a_consumer_killed_at_random_times_neither_loses_nor_doubles(redis: "Redis", redis_url: str) -> None:
    chance = random.Random(2)
    for start in range(0, len(ROWS), 100):
        first, *others = ROWS[start : start + 100]
        with consumer(redis_url, "alarm") as victim:
            await redis.lpush("weather:alarm", first)
            await settled(redis, "alarm", ROWS[: start + 1])
            fatal = chance.randrange(len(others))
            for number, row in enumerate(others):
                await redis.lpush("weather:alarm", row)
                if number == fatal:
                    victim.kill()
    with consumer(redis_url, "alarm"):
        assert (await settled(redis, "alarm", ROWS)).differences() == []
    assert await redis.llen("weather:storms") == 9


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


async def test_a_consumer_survives_a_restart_of_the_server() -> None:
    with EmbeddedServer(aof=True) as server, consumer(server.url, "report") as started:
        for half in (ROWS[:700], ROWS[700:]):
            async with Redis.from_url(server.url) as redis:
                await redis.lpush("weather:report", *half)
            server.restart()
        async with Redis.from_url(server.url) as redis:
            assert (await settled(redis, "report", ROWS)).differences() == []
            assert (await content(redis, "weather:reports"))[0] == (
                b"2012/01/01 drizzle, 5.0 to 12.8 C, 0.0 mm, wind 4.7 m/s"
            )
        started.terminate()
        assert started.wait(timeout=60) == 0


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
