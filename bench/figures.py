"""Figures of mpush, each against its reference in the same run."""

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Final

from bench import reference
from bench.line import Line, packed
from bench.stage import NAMESPACE, PENDING, PYTHON, SEED, SOURCE, Stage, cpu_seconds, resident_bytes, subscribers
from tests.harness import until

KIB: Final = 1024
MIB: Final = 1024 * 1024
REPLICAS: Final = 24


@dataclass(frozen=True)
class Figure:
    """One measured figure: the samples, what they must reach, and what the reader should know beside them."""

    name: str
    unit: str
    samples: list[float]
    limit: float
    at_least: bool = False
    note: str = ""
    missing: str = ""
    """Why it could not be measured here, without samples."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def reached(self) -> bool:
        """Return True also if it could not be measured."""
        if self.missing:
            return True
        return self.median >= self.limit if self.at_least else self.median <= self.limit


def backlog(stage: Stage, size: int, lists: int, limit: float, rounds: int, messages: int) -> Figure:
    """Measure messages a second through the running service, over those of the bare loop, pair by pair."""
    stage.seed(messages, size)
    ratios, ours, theirs = [], [], []
    with stage.mpush(lists):
        for turn in range(rounds + 1):
            service = stage.service_seconds(messages, lists)
            stage.clear(lists)
            stage.backlog("bench:in:bare")
            begin = time.perf_counter()
            reference.drain(stage.redis, "bench:in:bare", subscribers(lists))
            bare = time.perf_counter() - begin
            if turn:  # the first pair warms up
                ratios.append(bare / service)
                ours.append(messages / service)
                theirs.append(messages / bare)
    stage.clear(lists)
    name = f"backlog of {messages:,} x {size:,} B to {lists} lists, through the service / bare loop"
    note = f"{statistics.median(ours) / 1000:,.0f} k/s against {statistics.median(theirs) / 1000:,.0f} k/s"
    return Figure(name, "x", ratios, limit, at_least=True, note=note)


def settling(stage: Stage, rounds: int, messages: int) -> Figure:
    """Measure messages a second through examples/router, which reads them, over those of a bare client, in pairs."""
    routes = {letter: f"bench:route:{letter.decode()}" for letter in (b"a", b"b")}
    for start in range(0, messages, 1000):
        numbers = range(start, start + 1000)
        stage.redis.lpush(SEED, *(b"%b%031d" % (b"ab"[n % 2 : n % 2 + 1], n) for n in numbers))
    bare_in, ratios, ours, theirs = "bench:in:bare", [], [], []

    def seconds(source: str) -> float:
        stage.redis.unlink(*routes.values())
        begin = stage.appear(source)
        if source == bare_in:
            reference.route(stage.redis, source, f"{source}:pending", routes)
        until(lambda: sum(map(stage.redis.llen, routes.values())) == messages, every=0.002)
        return time.perf_counter() - begin

    with stage.router([*routes.values()]):
        for turn in range(rounds + 1):
            service, bare = seconds(SOURCE), seconds(bare_in)
            if turn:  # the first pair warms up
                ratios.append(bare / service)
                ours.append(messages / service)
                theirs.append(messages / bare)
    note = f"{statistics.median(ours) / 1000:,.0f} k/s against {statistics.median(theirs) / 1000:,.0f} k/s"
    name = f"backlog of {messages:,} x 32 B routed by their first letter, examples/router / bare client"
    return Figure(name, "x", ratios, 1.0, at_least=True, note=note)


class Probe:
    """A publisher and a subscriber in one: pushes a message and waits until the last list has it."""

    def __init__(self, stage: Stage, source: str, out: list[str]) -> None:
        self._redis, self._out = stage.redis, out
        self._line = Line(stage.server.port)
        self._packed = packed("LPUSH", source, b"x" * 32) + packed("BLPOP", out[-1], 5)

    def seconds(self) -> float:
        begin = time.perf_counter()
        _, message = self._line.exchange(self._packed, 2)
        taken = time.perf_counter() - begin
        assert message is not None, "the message did not arrive within 5 s"
        assert self._redis.lpop(self._out[0]) == b"x" * 32
        return taken


def bare_forwarder(stage: Stage, source: str, *out: str) -> AbstractContextManager[None]:
    return stage.beside(*PYTHON, "bench.reference", stage.url, source, f"{source}:pending", *out)


def one_at_a_time(stage: Stage, rounds: int, messages: int = 400) -> Figure:
    """From an idle server to both lists: the p50 of the service over that of a bare client, in turns."""
    ratios, ours, theirs = [], [], []
    bare_out = ["bench:bare0", "bench:bare1"]
    with stage.mpush(2), bare_forwarder(stage, "bench:in:bare", *bare_out):
        service, bare = Probe(stage, SOURCE, subscribers(2)), Probe(stage, "bench:in:bare", bare_out)
        for turn in range(rounds + 1):
            pair = [statistics.median(probe.seconds() for _ in range(messages)) for probe in (service, bare)]
            if turn:
                ratios.append(pair[0] / pair[1])
                ours.append(pair[0])
                theirs.append(pair[1])
    note = f"p50 {statistics.median(ours) * 1e6:.0f} us against {statistics.median(theirs) * 1e6:.0f} us"
    return Figure("one message, idle server to both lists, p50 / bare client's", "x", ratios, 1.3, note=note)


def server_microseconds(stage: Stage, work: Callable[[], object]) -> float:
    """Return what ``work`` makes the server spend on the scripts and waits of the service."""
    stage.redis.config_resetstat()
    work()
    spent: dict[str, dict[str, float]] = stage.redis.info("commandstats")
    return sum(spent.get(f"cmdstat_{name}", {"usec": 0})["usec"] for name in ("eval", "evalsha", "blmove"))


def growth(stage: Stage, rounds: int) -> list[Figure]:
    """Cost of a message by the length of the backlog, and with 10,000 left in a dead run's pending list."""
    sizes = (5_000, 50_000, 500_000)
    costs: list[list[float]] = []
    with stage.mpush(2):
        for turn in range(rounds + 1):
            row = []
            for size in sizes:  # as many messages of each, so that a slow moment of the machine weighs the same
                stage.seed(size, 32)
                repeats = sizes[-1] // size
                spent = sum(
                    server_microseconds(stage, lambda size=size: stage.service_seconds(size, 2))  # type: ignore[misc]
                    for _ in range(min(repeats, 20))
                )
                row.append(spent / size / min(repeats, 20))
            if turn:
                costs.append(row)
    pairs = [(_from_start(stage, left=10_000), _from_start(stage, left=0)) for _ in range(rounds)]
    stage.clear(2)
    medians = [statistics.median(column) for column in zip(*costs, strict=True)]
    note = "server time a message: " + ", ".join(f"{cost:.3f} us" for cost in medians)
    name = "cost of a message, backlog of {:,} / of {:,}"
    return [
        Figure(name.format(sizes[1], sizes[0]), "x", [row[1] / row[0] for row in costs], 1.2, note=note),
        Figure(name.format(sizes[2], sizes[0]), "x", [row[2] / row[0] for row in costs], 1.2, note=note),
        Figure(
            "cost of a message, 10,000 of 50,000 left by a dead run / none",
            "x",
            [left / none for left, none in pairs],
            1.2,
            note=f"{statistics.median(left for left, _ in pairs):.3f} us",
        ),
    ]


def _from_start(stage: Stage, left: int) -> float:
    """Server time a message of a service that finds 50,000, ``left`` of them in a dead instance's pending list."""
    stage.clear(2)
    stage.seed(50_000 - left, 32)
    stage.backlog(SOURCE)
    if left:
        stage.seed(left, 32)
        stage.backlog(f"{PENDING}:0")
        stage.redis.zadd(f"{NAMESPACE}:owners", {"0": 1})
    with stage.service(2) as service:
        spent = server_microseconds(stage, lambda: until(lambda: stage.arrived(50_000, 2), every=0.001))
        service.stop()
    return spent / 50_000


def longest_move(stage: Stage, size: int, messages: int, rounds: int) -> Figure:
    """Return the slowest move in the server's slow log in each round, in milliseconds."""
    stage.seed(messages, size)
    stage.redis.config_set("slowlog-max-len", 100_000)
    stage.redis.config_set("slowlog-log-slower-than", 0)
    slowest, all_moves = [], []
    with stage.mpush(2):
        for turn in range(rounds + 1):
            stage.redis.slowlog_reset()
            stage.service_seconds(messages, 2)
            entries = stage.redis.slowlog_get(100_000)
            moves = [entry["duration"] / 1000 for entry in entries if entry["command"].startswith(b"EVAL")]
            if turn:  # the first round finds the server's memory cold
                slowest.append(max(moves))
                all_moves += moves
    stage.redis.config_set("slowlog-log-slower-than", 10_000)
    stage.clear(2)
    note = f"{len(all_moves)} moves: median {statistics.median(all_moves):.2f} ms, "
    note += f"p99 {statistics.quantiles(all_moves, n=100)[98]:.2f} ms"
    return Figure(f"longest move in the server, messages of {size:,} B", "ms", slowest, 10, note=note)


def commands_a_second(stage: Stage, seconds: int) -> float:
    """By the server's own count, those inside scripts included."""
    stage.redis.config_resetstat()
    begin = time.perf_counter()
    time.sleep(seconds)
    stats: dict[str, dict[str, int]] = stage.redis.info("commandstats")
    stats.pop("cmdstat_config|resetstat", None)
    return sum(each["calls"] for each in stats.values()) / (time.perf_counter() - begin)


def idle(stage: Stage, seconds: int) -> list[Figure]:
    """Measure the commands a second, by the server's counter, and the processor time of idle services."""
    with stage.mpush(2) as service:
        time.sleep(1)
        begin, spent = time.perf_counter(), cpu_seconds(service.pid)
        commands = commands_a_second(stage, seconds)
        elapsed, spent = time.perf_counter() - begin, cpu_seconds(service.pid) - spent
    with ExitStack() as stack:
        running = [stack.enter_context(stage.service(2)) for _ in range(REPLICAS)]
        until(lambda: stage.blocked() == len(running))
        each = commands_a_second(stage, seconds) / len(running)
    return [
        Figure("idle: commands a second, those inside scripts included", "/s", [commands], 2),
        Figure(f"{REPLICAS} replicas idle: commands a second each, those inside scripts included", "/s", [each], 2),
        Figure("idle: processor", "%", [100 * spent / elapsed], 0.5),
    ]


def process(stage: Stage, rounds: int) -> list[Figure]:
    """Measure start, stop and memory of one service."""
    start, stop, memory = [], [], []
    stage.seed(100_000, 32)
    for _ in range(rounds):
        stage.clear(2)
        stage.redis.lpush(SOURCE, "first")
        begin = time.perf_counter()
        with stage.service(2) as service:
            until(lambda: stage.arrived(1, 2), every=0.001)
            start.append(time.perf_counter() - begin)
            stage.service_seconds(100_000, 2)
            memory.append(resident_bytes(service.pid) / 1e6)
            until(lambda: stage.blocked() == 1)
            begin = time.perf_counter()
            assert service.stop() == 0
            stop.append(time.perf_counter() - begin)
    stage.clear(2)
    return [
        Figure("resident memory after 100,000 messages", "MB", memory, 60),
        Figure("start of the process to first delivery", "s", start, 1),
        Figure("SIGTERM to exit, idle in a 10 s pop", "s", stop, 0.5),
    ]
