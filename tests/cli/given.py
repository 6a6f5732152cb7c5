"""What tests of the command line share: lists of messages, settled hops, and rows and lines of the output."""

import re
from typing import Any

from redis.asyncio import Redis

from penstock.base.keys import Keys
from tests.support.commandline import Result, penstock


async def settle(redis: Redis, namespace: str = "demo", messages: int = 10, *, dead: int = 0, dropped: int = 0) -> None:
    """Write what a hop to ``out0`` and ``out1`` writes when it settles, less dead and dropped ones in ``out1``."""
    keys = Keys(namespace)
    roles: dict[Any, Any] = {"in": "in", "pending": "pending", "out0": "out", "out1": "out"}
    kept = messages - dead - dropped
    async with redis.pipeline(transaction=True) as transaction:
        transaction.hset(keys.lists, mapping=roles)
        for counter, parts, total in (
            ("taken", (messages, messages), messages),
            ("delivered", (messages, kept), messages + kept),
            ("dead", (0, dead), dead),
            ("dropped", (0, dropped), dropped),
        ):
            transaction.hincrby(keys.metric(counter), "count", total)
            for name, part in zip(("out0", "out1"), parts, strict=True):
                transaction.hincrby(keys.metric(counter), name, part)
        await transaction.execute()


def rows(result: Result) -> list[list[str]]:
    table = [line for line in result.text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in table]


async def explained(redis_url: str, word: str = "3", namespace: str = "demo") -> list[str]:
    """Return the lines, with times of day as ``T``."""
    result = await penstock("explain", namespace, word, redis=redis_url)
    assert (result.status, result.error) == (0, "")
    return without_times(result)


def without_times(result: Result) -> list[str]:
    """Return the lines with times of day as ``T``; a busy machine prints ages some seconds later."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "T", result.text)
    for pattern, usual in (
        (r"\b\d+ s ago\b", "0 s ago"),
        (r"\b1 min \d+ s\b", "1 min 5 s"),
        (r"\b59 min \d+ s\b", "59 min 59 s"),
    ):
        text = re.sub(pattern, usual, text)
    return text.splitlines()


async def facts(redis_url: str, word: str = "3", *more: str) -> dict[str, Any]:
    found: dict[str, Any] = (await penstock("explain", "demo", word, *more, "--json", redis=redis_url)).json
    return found


async def push(redis: Redis, messages: list[bytes], name: str = "in") -> None:
    for first in range(0, len(messages), 10_000):
        await redis.lpush(name, *messages[first : first + 10_000])


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [b"%d " % number + b"x" * size for number in range(count)]


async def left(redis: Redis, name: str = "in") -> list[bytes]:
    """Return the messages of a list, oldest first."""
    messages: Any = await redis.lrange(name, 0, -1)
    return list(messages[::-1])


def cells(result: Result, word: str) -> list[str]:
    """Return the cells of the only table row with ``word``."""
    (row,) = [line for line in result.text.splitlines() if word in line and "│" in line]
    return [cell.strip() for cell in row.strip("│").split("│")]
