"""Figures of the library: those of lists, each compared with a bare client that moves the same batches, then the bus's.

``python -m bench.library ours|bare URL COUNT`` waits for messages one at a time and prints its latencies (ns).
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from redis import Redis

from bench import bus, gateway
from bench.figures import KIB, Figure
from bench.large import MAX_PING_MS, MB
from bench.pinger import pinging
from bench.reference import HOLD
from bench.testbed import PYTHON, SOURCE, Testbed
from penstock.core.batches import MAX_BYTES, MAX_MESSAGES
from penstock.lists import Lists
from tests.support.harness import ROOT, until

BARE_SOURCE: Final = f"{SOURCE}:bare"
BARE_WORKING: Final = "bench:working"
PUSH_INTERVAL_SECONDS: Final = 0.002


async def _ours(url: str, messages: list[bytes]) -> float:
    """Push all messages, take them one by one, and settle each; return the seconds."""
    async with Lists(url) as lists:
        begin, count = time.perf_counter(), 0
        await lists[SOURCE].push_many(messages)
        async for message in lists[SOURCE].messages():
            with message:
                assert message.body == messages[count]
            count += 1
            if count == len(messages):
                break
    return time.perf_counter() - begin


def _bare(redis: "Redis", messages: list[bytes], batch: int) -> float:
    """Push the same batches, move each to a list of the client's own, and delete it there once it is handled."""
    hold = redis.register_script(HOLD)
    begin, count = time.perf_counter(), 0
    for first in range(0, len(messages), batch):
        redis.lpush(BARE_SOURCE, *messages[first : first + batch])
    while found := hold(keys=[BARE_SOURCE, BARE_WORKING], args=[batch]):
        for message in found:
            assert message == messages[count]
            count += 1
        redis.rpop(BARE_WORKING, len(found))
    return time.perf_counter() - begin


def throughput(bed: Testbed, rounds: int, size: int, count: int, limit: float) -> list[Figure]:
    """Measure pushing ``count`` messages and taking them one by one, compared with a bare client."""
    messages = [b"%09d" % number + b"x" * (size - 9) for number in range(count)]
    batch = max(1, min(MAX_MESSAGES, MAX_BYTES // size))
    ratios, ours, theirs, pings = list[float](), list[float](), list[float](), list[float]()
    with pinging(bed.server.port) as pinger:
        for turn in range(rounds + 1):
            pinger.begin()
            taken = asyncio.run(_ours(bed.url, messages))
            ping = pinger.longest()
            bare = _bare(bed.redis, messages, batch)
            if turn:
                ratios.append(bare / taken)
                ours.append(count / taken)
                theirs.append(count / bare)
                pings.append(ping * 1000)
    name = f"lists: {count:,} x {size:,} B pushed, and taken one by one"
    note = f"{statistics.median(ours):,.0f} /s against {statistics.median(theirs):,.0f} /s"
    found = [Figure(f"{name} / bare batches of {batch}", "x", ratios, limit, at_least=True, note=note)]
    if size == 32:
        found.append(Figure(name, "/s", ours, 150_000, at_least=True))
    if size == MB:
        found.append(Figure(f"{name}: longest PING meanwhile", "ms", pings, MAX_PING_MS))
    return found


def latency(bed: Testbed, rounds: int, count: int) -> Figure:
    """Measure the p50 from a push to the handler of an idle consumer, compared with BLMOVE and LREM."""
    ratios, ours, theirs = list[float](), list[float](), list[float]()
    for turn in range(rounds + 1):
        pair = [_p50(bed, kind, source, count) for kind, source in (("ours", SOURCE), ("bare", BARE_SOURCE))]
        if turn:
            ratios.append(pair[0] / pair[1])
            ours.append(pair[0])
            theirs.append(pair[1])
    note = f"p50 {statistics.median(ours) / 1000:.0f} us against {statistics.median(theirs) / 1000:.0f} us"
    return Figure("lists: a message to an idle consumer, p50 / BLMOVE", "x", ratios, 2, note=note)


def _p50(bed: Testbed, kind: str, source: str, count: int) -> float:
    command = [*PYTHON, "bench.library", kind, bed.url, str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        for _ in range(count):
            until(lambda: bed.blocked_clients() == 1, every=0.0005)
            time.sleep(PUSH_INTERVAL_SECONDS)
            bed.redis.lpush(source, str(time.perf_counter_ns()))
        assert process.stdout
        return float(statistics.median(json.loads(process.stdout.read())))


async def _wait_ours(url: str, latencies: list[int], count: int) -> None:
    async with Lists(url) as lists:
        async for message in lists[SOURCE].messages():
            with message:
                latencies.append(time.perf_counter_ns() - int(message.body))
            if len(latencies) == count:
                return


def _wait_bare(url: str, latencies: list[int], count: int) -> None:
    with Redis.from_url(url) as redis:
        while len(latencies) < count:
            message: bytes = redis.execute_command("BLMOVE", BARE_SOURCE, BARE_WORKING, "RIGHT", "LEFT", 10)
            latencies.append(time.perf_counter_ns() - int(message))
            redis.lrem(BARE_WORKING, 1, message)


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of the library."""
    rounds, many, total = (3, 50_000, 50 * MB) if quick else (7, 500_000, 200 * MB)
    return [
        lambda bed: throughput(bed, rounds, 32, many, 0.5),
        lambda bed: throughput(bed, rounds, KIB, total // KIB // 2, 0.5),
        lambda bed: throughput(bed, rounds, 100_000, total // 100_000, 0.6),
        lambda bed: throughput(bed, rounds, MB, total // MB, 0.6),
        lambda bed: latency(bed, rounds, 200 if quick else 500),
        *bus.plan(quick),
        *gateway.plan(quick),
    ]


if __name__ == "__main__":
    kind, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    found = list[int]()
    if kind == "ours":
        asyncio.run(_wait_ours(url, found, count))
    else:
        _wait_bare(url, found, count)
    print(json.dumps(found))
