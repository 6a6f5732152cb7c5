"""Figures of large messages: vpush and mpush against a bare client, and how long other clients wait."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench.figures import KIB, Figure
from bench.pinger import Pinger, pinging
from bench.stage import OUT, PYTHON, SEED, SOURCE, Stage, subscribers
from bench.transport import BARE, Route
from penstock.testing.server import EmbeddedServer
from tests.harness import until

MB = 1_000_000
SIZES = (100_000, MB, 5 * MB)
PATIENCE = 50
"""Milliseconds that a PING may take, with messages of 1 MB."""
Turn = Callable[[], float]


def transport(stage: Stage, rounds: int, size: int, total: int, before: Sequence[int] = ()) -> list[Figure]:
    """Messages of ``size`` bytes, ``total`` together, to another server; ``before``: sizes of those that come first."""
    count = total // size
    _seed(stage, [*before, *[size] * count])
    messages = count + len(before)
    with EmbeddedServer() as server, ExitStack() as stack:
        there = Stage(server)
        stack.enter_context(stage.vpush(there.url))
        ends = str(stage.server.port), SOURCE + BARE, str(server.port), OUT + BARE
        stack.enter_context(stage.beside(*PYTHON, "bench.carrier", *ends))
        pingers = [stack.enter_context(pinging(each.server.port)) for each in (stage, there)]
        ours, bare = Route(stage, there), Route(stage, there, BARE)
        turns = _turns(rounds, lambda: ours.seconds(messages), lambda: bare.seconds(messages), pingers)
    first = f"{len(before):,} of 1 KiB, then " if before else ""
    name = f"{first}{count:,} x {size / MB:g} MB to another server"
    return _figures(name, turns, total, 0.6, waits=size == MB)


def fanout(stage: Stage, rounds: int, size: int, total: int) -> list[Figure]:
    """Messages of ``size`` bytes, ``total`` together, to two lists of the same server."""
    count, outs = total // size, subscribers(2)
    _seed(stage, [size] * count)
    port, bare_outs = str(stage.server.port), [f"{out}{BARE}" for out in outs]
    with stage.mpush(2), ExitStack() as stack:
        stack.enter_context(stage.beside(*PYTHON, "bench.carrier", port, SOURCE + BARE, port, *bare_outs))
        pingers = [stack.enter_context(pinging(stage.server.port))]
        turns = _turns(
            rounds,
            lambda: _seconds(stage, SOURCE, outs, count),
            lambda: _seconds(stage, SOURCE + BARE, bare_outs, count),
            pingers,
        )
    return _figures(f"{count:,} x {size / MB:g} MB to 2 lists", turns, total, 1.0, waits=size == MB)


def _seed(stage: Stage, sizes: Sequence[int]) -> None:
    """Keep messages of those sizes to make backlogs from; they are numbered."""
    stage.redis.delete(SEED)
    for number, size in enumerate(sizes):
        stage.redis.lpush(SEED, b"%09d" % number + b"x" * (size - 9))


def _seconds(stage: Stage, source: str, outs: Sequence[str], messages: int) -> float:
    """From the appearance of the seed to the last one's presence in all of ``outs``."""
    begin = stage.appear(source)
    until(lambda: all(stage.redis.llen(out) >= messages for out in outs), timeout=120, every=0.001)
    seconds = time.perf_counter() - begin
    assert stage.redis.lindex(outs[-1], -1) == stage.redis.lindex(SEED, -1)
    stage.redis.unlink(*outs)
    until(lambda: stage.redis.info("memory")["lazyfree_pending_objects"] == 0)
    return seconds


def _turns(rounds: int, ours: Turn, bare: Turn, pingers: Sequence[Pinger]) -> list[tuple[float, float, float]]:
    """Seconds of both, in turns, and the longest PING while ours ran; the first turn of each warms up."""
    found = []
    for _ in range(rounds + 1):
        for pinger in pingers:
            pinger.begin()
        seconds = ours()
        longest = max(pinger.longest() for pinger in pingers)
        found.append((seconds, bare(), longest))
    return found[1:]


def _figures(
    name: str, turns: list[tuple[float, float, float]], total: int, limit: float, *, waits: bool
) -> list[Figure]:
    ours, bare, pings = zip(*turns, strict=True)
    speeds = [total / statistics.median(each) / MB for each in (ours, bare)]
    note = f"{speeds[0]:,.0f} MB/s against {speeds[1]:,.0f} MB/s; longest PING {1000 * max(pings):.0f} ms"
    ratios = [theirs / seconds for seconds, theirs in zip(ours, bare, strict=True)]
    figures = [Figure(f"{name}, through the service / bare client", "x", ratios, limit, at_least=True, note=note)]
    if waits:
        longest = [1000 * seconds for seconds in pings]
        figures.append(Figure(f"{name}: longest PING meanwhile", "ms", longest, PATIENCE))
    return figures


SMALL_FIRST = [KIB] * 3_000
"""What comes before large messages in a mixture."""
