"""Figures of large messages: vpush and mpush compared with a bare client, and the wait of other clients."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench.figures import KIB, Figure
from bench.pinger import Pinger, pinging
from bench.testbed import OUT, PYTHON, SEED, SOURCE, TRACKED, Testbed, subscribers
from bench.tracking import KEYS
from bench.transport import BARE, Route
from penstock.testing.server import EmbeddedServer
from tests.support.harness import until

MB = 1_000_000
SIZES = (100_000, MB, 5 * MB)
MAX_PING_MS = 50
"""Maximum milliseconds of a PING while messages of 1 MB are moved."""
AMONG = 40_000
"""Small messages before a run of large ones; an eighth of them comes behind."""
RUNS = 1, 6, 16, 32, 100
"""Large messages in a row: fewer than are read at once may lie between those that are drawn."""
Turn = Callable[[], float]


def transport(bed: Testbed, rounds: int, size: int, total: int, before: Sequence[int] = ()) -> list[Figure]:
    """Measure moving ``total`` bytes in messages of ``size`` to another server, after some of the sizes ``before``."""
    count = total // size
    _seed(bed, [*before, *[size] * count])
    messages = count + len(before)
    with EmbeddedServer() as server, ExitStack() as stack:
        target = Testbed(server)
        stack.enter_context(bed.vpush(target.url))
        ends = str(bed.server.port), SOURCE + BARE, str(server.port), OUT + BARE
        stack.enter_context(bed.run_process(*PYTHON, "bench.carrier", *ends))
        pingers = [stack.enter_context(pinging(each.server.port)) for each in (bed, target)]
        ours, bare = Route(bed, target), Route(bed, target, BARE)
        turns = _turns(rounds, lambda: ours.seconds(messages), lambda: bare.seconds(messages), pingers)
    first = f"{len(before):,} of 1 KiB, then " if before else ""
    name = f"{first}{count:,} x {size / MB:g} MB to another server"
    return _figures(name, turns, total, 0.6, with_ping=size == MB)


def fanout(bed: Testbed, rounds: int, size: int, total: int) -> list[Figure]:
    """Measure moving ``total`` bytes in messages of ``size`` to two lists of the same server."""
    count, outs = total // size, subscribers(2)
    _seed(bed, [size] * count)
    port, bare_outs = str(bed.server.port), [f"{out}{BARE}" for out in outs]
    with bed.mpush(2), ExitStack() as stack:
        stack.enter_context(bed.run_process(*PYTHON, "bench.carrier", port, SOURCE + BARE, port, *bare_outs))
        pingers = [stack.enter_context(pinging(bed.server.port))]
        turns = _turns(
            rounds,
            lambda: _seconds(bed, SOURCE, outs, count),
            lambda: _seconds(bed, SOURCE + BARE, bare_outs, count),
            pingers,
        )
    return _figures(f"{count:,} x {size / MB:g} MB to 2 lists", turns, total, 1.0, with_ping=size == MB)


def hidden(bed: Testbed, rounds: int) -> list[Figure]:
    """Measure the longest PING while a run of 5 MB is found among small messages, which are read several at once."""
    figures, outs = [], subscribers(2)
    for run in RUNS:
        longest, count = [], AMONG * 9 // 8 + run
        for _ in range(rounds):
            _seed(bed, [*[20] * AMONG, *[5 * MB] * run, *[20] * (AMONG // 8)])
            with bed.mpush(2), pinging(bed.server.port) as pinger:
                pinger.begin()
                pinger.longest()  # both processes run
                time.sleep(0.3)  # the service waits for a message
                pinger.begin()
                bed.redis.rename(SEED, SOURCE)
                until(partial(_holds, bed, outs[1], count), timeout=120, every=0.01)
                longest.append(1000 * pinger.longest())
            bed.clear_subscribers(2)
        name = f"{run:,} x 5 MB among {count - run:,} of 20 B to 2 lists: longest PING meanwhile"
        figures.append(Figure(name, "ms", longest, MAX_PING_MS))
    return figures


def due(bed: Testbed, rounds: int, size: int, total: int) -> Figure:
    """Measure the longest PING while messages are dispatched, time out all at once, come again, and are buried so."""
    count, times = total // size, dict[str, list[float]]()
    _seed(bed, [size] * count)
    limits = {"message_timeout": 3_600, "message_expire": 400_000, "attempts": 2, "backoff": "0"}
    for _ in range(rounds):
        with bed.tracking(**limits), bed.monitor(), pinging(bed.server.port) as pinger:
            for phase, place, begin in (
                ("dispatched", OUT, bed.publish_backlog),
                ("retried", OUT, lambda: bed.redis.publish(KEYS.due, 1)),
                ("buried", KEYS.dead, lambda: bed.redis.publish(KEYS.due, 1)),
            ):
                if phase != "dispatched":
                    _time_out(bed)
                pinger.begin()
                begin()
                until(partial(_holds, bed, place, count), timeout=120, every=0.01)
                times.setdefault(phase, []).append(1000 * pinger.longest())
        bed.delete_records(TRACKED, OUT, KEYS.dead)
    phases = ", ".join(f"{phase} {max(found):.0f} ms" for phase, found in times.items())
    name = f"{count:,} x {size / MB:g} MB dispatched, timed out at once, dispatched again and buried: longest PING"
    return Figure(name, "ms", [max(found) for found in zip(*times.values(), strict=True)], MAX_PING_MS, note=phases)


def _time_out(bed: Testbed) -> None:
    """Let workers take all messages, and their time be over, of which the monitor has yet to hear."""
    redis: Any = bed.redis
    ids = redis.zrange(KEYS.deadlines, 0, -1)
    redis.unlink(OUT)
    until(lambda: redis.info("memory")["lazyfree_pending_objects"] == 0)
    with redis.pipeline(transaction=False) as wire:
        for id in ids:
            wire.hset(KEYS.message(id.decode()), "taken", 1)
            wire.zadd(KEYS.deadlines, {id: 1})
        wire.execute()


def _holds(bed: Testbed, name: str, count: int) -> bool:
    return bed.redis.llen(name) >= count


def _seed(bed: Testbed, sizes: Sequence[int]) -> None:
    """Store numbered messages of those sizes to copy backlogs from."""
    bed.redis.delete(SEED)
    for number, size in enumerate(sizes):
        bed.redis.lpush(SEED, b"%09d" % number + b"x" * (size - 9))


def _seconds(bed: Testbed, source: str, outs: Sequence[str], messages: int) -> float:
    """Return the seconds from the appearance of the backlog until all of ``outs`` hold all messages."""
    begin = bed.publish_backlog(source)
    until(lambda: all(bed.redis.llen(out) >= messages for out in outs), timeout=120, every=0.001)
    seconds = time.perf_counter() - begin
    assert bed.redis.lindex(outs[-1], -1) == bed.redis.lindex(SEED, -1)
    bed.redis.unlink(*outs)
    until(lambda: bed.redis.info("memory")["lazyfree_pending_objects"] == 0)
    return seconds


def _turns(rounds: int, ours: Turn, bare: Turn, pingers: Sequence[Pinger]) -> list[tuple[float, float, float]]:
    """Return the seconds of both, alternating, and the longest PING during ours; the first turn of each warms up."""
    found = []
    for _ in range(rounds + 1):
        for pinger in pingers:
            pinger.begin()
        seconds = ours()
        longest = max(pinger.longest() for pinger in pingers)
        found.append((seconds, bare(), longest))
    return found[1:]


def _figures(
    name: str, turns: list[tuple[float, float, float]], total: int, limit: float, *, with_ping: bool
) -> list[Figure]:
    ours, bare, pings = zip(*turns, strict=True)
    speeds = [total / statistics.median(each) / MB for each in (ours, bare)]
    note = f"{speeds[0]:,.0f} MB/s against {speeds[1]:,.0f} MB/s; longest PING {1000 * max(pings):.0f} ms"
    ratios = [theirs / seconds for seconds, theirs in zip(ours, bare, strict=True)]
    figures = [Figure(f"{name}, through the service / bare client", "x", ratios, limit, at_least=True, note=note)]
    if with_ping:
        longest = [1000 * seconds for seconds in pings]
        figures.append(Figure(f"{name}: longest PING meanwhile", "ms", longest, MAX_PING_MS))
    return figures


SMALL_FIRST = [KIB] * 3_000
"""Sizes of the messages that precede large ones in a mixture."""
