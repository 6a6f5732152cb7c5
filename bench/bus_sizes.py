"""Figures of a queue of ``penstock.bus`` by the size of messages, compared with a bare client with the same batches."""

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Final

from redis import Redis

from bench.figures import KIB, Figure
from bench.large import MAX_PING_MS, MB
from bench.pinger import pinging
from bench.testbed import Testbed
from penstock.bus import Bus
from penstock.core.batches import MAX_BYTES, MAX_MESSAGES

QUEUE: Final = "bench:sizes"


async def _ours(url: str, messages: list[bytes]) -> float:
    """Push all messages and consume them one by one; return the seconds."""
    async with Bus(url) as bus:
        queue = bus.queue(QUEUE)
        await queue.attach()
        begin, count = time.perf_counter(), 0
        await queue.push_many(messages)
        async for message in queue.consume(limit=len(messages)):
            assert message.body == messages[count]
            count += 1
        seconds = time.perf_counter() - begin
        assert count == len(messages)
        await queue.close()
    return seconds


def _bare(redis: "Redis", messages: list[bytes], pushed: int, taken: int) -> float:
    """Push and pop batches of as many messages."""
    begin, count = time.perf_counter(), 0
    for first in range(0, len(messages), pushed):
        redis.rpush(QUEUE, *messages[first : first + pushed])
    while found := redis.lpop(QUEUE, taken):
        for message in found:
            assert message == messages[count]
            count += 1
    seconds = time.perf_counter() - begin
    assert count == len(messages)
    return seconds


def throughput(bed: Testbed, rounds: int, size: int, count: int, limit: float) -> list[Figure]:
    """Measure pushing ``count`` messages and consuming them, compared with a bare client, in turns."""
    messages = [b"%09d" % number + b"x" * (size - 9) for number in range(count)]
    pushed, taken = max(1, min(MAX_MESSAGES, MAX_BYTES // size)), max(1, min(MAX_MESSAGES, -(-MAX_BYTES // size)))
    ours, theirs, pings = list[float](), list[float](), list[float]()
    with pinging(bed.server.port) as pinger:
        for turn in range(rounds + 1):
            pinger.begin()
            seconds = asyncio.run(_ours(bed.url, messages))
            ping = pinger.longest()
            bare = _bare(bed.redis, messages, pushed, taken)
            if turn:
                ours.append(count / seconds)
                theirs.append(count / bare)
                pings.append(ping * 1000)
    name = f"bus: {count:,} x {size:,} B pushed, and consumed"
    note = f"{statistics.median(ours):,.0f} /s against {statistics.median(theirs):,.0f} /s"
    ratios = [first / second for first, second in zip(ours, theirs, strict=True)]
    found = [Figure(f"{name} / bare batches of {pushed}", "x", ratios, limit, at_least=True, note=note)]
    if size == MB:
        found.append(Figure(f"{name}: longest PING meanwhile", "ms", pings, MAX_PING_MS))
    return found


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks by size."""
    rounds, total = (3, 50 * MB) if quick else (7, 200 * MB)
    return [
        lambda bed: throughput(bed, rounds, KIB, total // KIB // 2, 0.5),
        lambda bed: throughput(bed, rounds, 100_000, total // 100_000, 0.6),
        lambda bed: throughput(bed, rounds, MB, total // MB, 0.6),
    ]
