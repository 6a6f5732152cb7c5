"""Redrive of many dead letters by several operators: each message once, in linear time."""

import asyncio
import json
import os
import pty
import sys
from asyncio.subprocess import DEVNULL
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from penstock.core.script import Script
from penstock.tracking.dead_letters import Letter, LetterFilter
from penstock.tracking.redrive import RedriveResult, revive
from tests.support.commandline import ROOT, penstock, running
from tests.support.harness import PATIENCE
from tests.support.tracked import KEYS, bury, counted, left, letter, now

MOVE = Script.read(ROOT / "services/mpush/lua/move.lua")


async def test_two_concurrent_redrives_return_each_message_once(redis: Redis, redis_url: str) -> None:
    numbers = [str(number) for number in range(4000)]
    await bury(redis, *(letter(number, number.encode(), reason="failed" if int(number) % 3 else "timeout")
                        for number in numbers))  # fmt: skip
    choices = [LetterFilter(), LetterFilter(reason="failed"), LetterFilter(frozenset(numbers[::7])), LetterFilter()]
    outcomes = [RedriveResult() for _ in choices]
    async with Redis.from_url(redis_url) as other:
        clients = [redis, other, redis, other]
        revivals = zip(clients, choices, outcomes, strict=True)
        await asyncio.gather(*(revive(client, KEYS, choice, outcome, lambda _: None)
                               for client, choice, outcome in revivals))  # fmt: skip
    back = [int(message) for message in await redis.lrange("in", 0, -1)]
    assert sorted(back) == list(range(4000))
    assert sum(outcome.moved.total() for outcome in outcomes) == 4000
    assert sum(bool(outcome.moved) for outcome in outcomes) > 1, "they did not meet"
    assert await counted(redis, "revived") == 4000
    assert await redis.exists("demo:dead") == 0


async def test_letters_that_another_took_away_in_front_hide_none_behind(redis: Redis, redis_url: str) -> None:
    """Remove most of the first chunk after it was read, so unread letters move into its place."""
    await bury(redis, *(letter(str(number)) for number in range(500)))
    await bury(redis, *(letter(str(number), reason="failed") for number in range(500, 750)))
    outcome, chunks = RedriveResult(), list[int]()
    with BlockingRedis.from_url(redis_url) as other:

        def seen(count: int) -> None:
            chunks.append(count)
            if len(chunks) == 1:
                other.ltrim(KEYS.dead, 0, -401)

        await revive(redis, KEYS, LetterFilter(reason="failed"), outcome, seen)
    assert chunks[0] == 500
    assert outcome.moved == {"in": 250}
    assert set(await left(redis)) == {str(number) for number in range(400, 500)}


async def test_two_commands_at_the_same_time_share_the_letters(redis: Redis, redis_url: str) -> None:
    await bury(redis, *(letter(str(number), str(number).encode()) for number in range(2000)))
    words = ["revive", "demo", "--all", "--json"]
    async with running(*words, redis=redis_url) as first, running(*words, redis=redis_url) as second:
        (one, _), (other, _) = await asyncio.gather(first.communicate(), second.communicate())
    assert json.loads(one)["total"] + json.loads(other)["total"] == 2000
    assert sorted(map(int, await redis.lrange("in", 0, -1))) == list(range(2000))


async def test_letters_written_meanwhile_are_left_alone(redis: Redis) -> None:
    """Otherwise a worker that fails at once would keep the command running forever."""
    moment = await now(redis)
    await bury(redis, letter("1", at=moment - 1), letter("2", at=moment + 5))
    outcome = RedriveResult()
    await revive(redis, KEYS, LetterFilter(until=moment), outcome, lambda _: None)
    assert (outcome.moved, await left(redis)) == ({"in": 1}, ["2"])


@pytest.mark.parametrize("pick", ["all", "every second", "the newest few"])
async def test_the_cost_of_a_letter_does_not_grow_with_how_many_there_are(redis: Redis, pick: str) -> None:
    for start in range(0, 20_000, 1000):
        names = range(start, start + 1000)
        chosen = {"all": lambda _: True, "every second": lambda n: n % 2, "the newest few": lambda n: n >= 19_900}[pick]
        await bury(redis, *(letter(str(n), reason="failed" if chosen(n) else "timeout") for n in names))  # type: ignore[no-untyped-call]
    outcome, steps = RedriveResult(), list[int]()
    await redis.config_resetstat()
    await revive(redis, KEYS, LetterFilter(reason="failed"), outcome, steps.append)
    assert outcome.moved.total() == {"all": 20_000, "every second": 10_000, "the newest few": 100}[pick]
    assert sum(steps) == 20_000, "each letter is read once"
    stats = await redis.info("commandstats")
    assert stats["cmdstat_lrem"]["calls"] <= 50, "one call removes hundreds"
    assert stats["cmdstat_lrange"]["calls"] <= 200


async def test_large_letters_go_in_small_scripts(redis: Redis) -> None:
    """Also behind many small ones, after which many are read at once."""
    await bury(redis, *(letter(str(number)) for number in range(600)))
    for number in range(600, 630):
        await bury(redis, letter(str(number), b"x" * 1_000_000))
    outcome, steps = RedriveResult(), list[int]()
    await revive(redis, KEYS, LetterFilter(), outcome, steps.append)
    assert (outcome.moved.total(), sum(steps)) == (630, 630)
    assert max(steps[-10:]) <= 3


LARGE = b"\0" * 1_500_000
"""As JSON, it would be six times as long."""


async def test_a_large_message_is_not_encoded_in_its_letter(redis: Redis) -> None:
    named = {
        "source": "in",
        "overflow": "dead",
        "limit": 1,
        "token": 0,
        "batch": 9,
        "bytes": 9_999_999,
        "unseen": 1,
        "largest": 0,
    }
    lists = {"pending": "pending", "letters": KEYS.dead, "subscribers": ["out"]}
    await redis.lpush("in", b"small", LARGE, b"\0" * 200_000)
    await MOVE(redis, **named, **lists)
    raw: Any = await redis.lrange(KEYS.dead, 0, -1)
    assert len(raw[1]) < len(LARGE) + 200
    assert [Letter(each).message for each in raw] == [b"\0" * 200_000, LARGE]
    assert [(each.text("reason"), each.destination) for each in map(Letter, raw)] == [("maxLength", "out")] * 2
    outcome = RedriveResult()
    await revive(redis, KEYS, LetterFilter(), outcome, lambda _: None)
    assert await redis.lrange("out", 0, -1) == [b"\0" * 200_000, LARGE, b"small"]


@pytest.mark.parametrize(
    "raw", [b'{"bytes": 3}\nabc', b'{"bytes": 4}\nabc', b'{"message":\n"a"}', b"\n", b'{"bytes": 0}\n']
)
def test_only_a_letter_with_as_many_bytes_behind_its_object_has_its_message_there(raw: bytes) -> None:
    assert Letter(raw).message == {
        b'{"bytes": 3}\nabc': b"abc",
        b'{"message":\n"a"}': b"a",
        b'{"bytes": 0}\n': b"",
    }.get(raw)


async def test_progress_is_shown_on_a_terminal_only(redis: Redis, redis_url: str) -> None:
    await bury(redis, *(letter(str(number)) for number in range(6000)))
    main, terminal = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "REDIS": redis_url, "TERM": "xterm"}
    words = [sys.executable, "-m", "penstock", "dead", "demo", "--limit", "1"]
    process = await asyncio.create_subprocess_exec(*words, env=environment, stderr=terminal, stdout=DEVNULL)
    os.close(terminal)
    said = await asyncio.to_thread(all_of, main)
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    assert b"/6000" in said
    assert (await penstock("revive", "demo", "--all", redis=redis_url)).error == ""


def all_of(fd: int) -> bytes:
    said = b""
    with suppress(OSError):
        while piece := os.read(fd, 65536):
            said += piece
    os.close(fd)
    return said
