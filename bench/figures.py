"""Figures of mpush, each compared with its reference in the same run."""

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Final

from bench import reference
from bench.connection import Connection, packed
from bench.testbed import NAMESPACE, PENDING, PYTHON, SEED, SOURCE, Testbed, cpu_seconds, resident_bytes, subscribers
from tests.support.harness import until

KIB: Final = 1024
MIB: Final = 1024 * 1024
REPLICAS: Final = 24


@dataclass(frozen=True)
class Figure:
    """One measured figure: its samples, the limit for their median, and a note for the reader."""

    name: str
    unit: str
    samples: list[float]
    limit: float
    at_least: bool = False
    note: str = ""
    missing: str = ""
    """Why it could not be measured here; it has no samples then."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def reached(self) -> bool:
        """Return True if the median meets the limit, or if it could not be measured."""
        if self.missing:
            return True
        return self.median >= self.limit if self.at_least else self.median <= self.limit


def backlog(bed: Testbed, size: int, lists: int, limit: float, rounds: int, messages: int) -> Figure:
    """Measure messages a second through the running service over those of the bare loop, in pairs."""
    bed.seed(messages, size)
    ratios, ours, theirs = [], [], []
    with bed.mpush(lists):
        for turn in range(rounds + 1):
            service = bed.service_seconds(messages, lists)
            bed.clear_subscribers(lists)
            bed.publish_backlog("bench:in:bare")
            begin = time.perf_counter()
            reference.drain(bed.redis, "bench:in:bare", subscribers(lists))
            bare = time.perf_counter() - begin
            if turn:  # the first pair warms up
                ratios.append(bare / service)
                ours.append(messages / service)
                theirs.append(messages / bare)
    bed.clear_subscribers(lists)
    name = f"backlog of {messages:,} x {size:,} B to {lists} lists, through the service / bare loop"
    note = f"{statistics.median(ours) / 1000:,.0f} k/s against {statistics.median(theirs) / 1000:,.0f} k/s"
    return Figure(name, "x", ratios, limit, at_least=True, note=note)


def settling(bed: Testbed, rounds: int, messages: int) -> Figure:
    """Measure messages a second through examples/router, which reads them, over those of a bare client, in pairs."""
    routes = {letter: f"bench:route:{letter.decode()}" for letter in (b"a", b"b")}
    for start in range(0, messages, 1000):
        numbers = range(start, start + 1000)
        bed.redis.lpush(SEED, *(b"%b%031d" % (b"ab"[n % 2 : n % 2 + 1], n) for n in numbers))
    bare_in, ratios, ours, theirs = "bench:in:bare", [], [], []

    def seconds(source: str) -> float:
        bed.redis.unlink(*routes.values())
        begin = bed.publish_backlog(source)
        if source == bare_in:
            reference.route(bed.redis, source, f"{source}:pending", routes)
        until(lambda: sum(map(bed.redis.llen, routes.values())) == messages, every=0.002)
        return time.perf_counter() - begin

    with bed.router([*routes.values()]):
        for turn in range(rounds + 1):
            service, bare = seconds(SOURCE), seconds(bare_in)
            if turn:  # the first pair warms up
                ratios.append(bare / service)
                ours.append(messages / service)
                theirs.append(messages / bare)
    note = f"{statistics.median(ours) / 1000:,.0f} k/s against {statistics.median(theirs) / 1000:,.0f} k/s"
    name = f"backlog of {messages:,} x 32 B routed by their first letter, examples/router / bare client"
    return Figure(name, "x", ratios, 0.6, at_least=True, note=note)


class Probe:
    """A publisher and subscriber in one: push a message and wait until the last list has it."""

    def __init__(self, bed: Testbed, source: str, out: list[str]) -> None:
        self._redis, self._out = bed.redis, out
        self._connection = Connection(bed.server.port)
        self._packed = packed("LPUSH", source, b"x" * 32) + packed("BLPOP", out[-1], 5)

    def seconds(self) -> float:
        begin = time.perf_counter()
        _, message = self._connection.exchange(self._packed, 2)
        taken = time.perf_counter() - begin
        assert message is not None, "the message did not arrive within 5 s"
        assert self._redis.lpop(self._out[0]) == b"x" * 32
        return taken


def bare_forwarder(bed: Testbed, source: str, *out: str) -> AbstractContextManager[None]:
    return bed.run_process(*PYTHON, "bench.reference", bed.url, source, f"{source}:pending", *out)


def one_at_a_time(bed: Testbed, rounds: int, messages: int = 400) -> Figure:
    """Measure the p50 from an idle server to both lists, of the service over a bare client, alternating."""
    ratios, ours, theirs = [], [], []
    bare_out = ["bench:bare0", "bench:bare1"]
    with bed.mpush(2), bare_forwarder(bed, "bench:in:bare", *bare_out):
        service, bare = Probe(bed, SOURCE, subscribers(2)), Probe(bed, "bench:in:bare", bare_out)
        for turn in range(rounds + 1):
            pair = [statistics.median(probe.seconds() for _ in range(messages)) for probe in (service, bare)]
            if turn:
                ratios.append(pair[0] / pair[1])
                ours.append(pair[0])
                theirs.append(pair[1])
    note = f"p50 {statistics.median(ours) * 1e6:.0f} us against {statistics.median(theirs) * 1e6:.0f} us"
    return Figure("one message, idle server to both lists, p50 / bare client's", "x", ratios, 1.3, note=note)


def server_microseconds(bed: Testbed, work: Callable[[], object]) -> float:
    """Return the microseconds that the server spends on scripts and BLMOVE during ``work``."""
    bed.redis.config_resetstat()
    work()
    spent: dict[str, dict[str, float]] = bed.redis.info("commandstats")
    return sum(spent.get(f"cmdstat_{name}", {"usec": 0})["usec"] for name in ("eval", "evalsha", "blmove"))


def growth(bed: Testbed, rounds: int) -> list[Figure]:
    """Measure the cost of a message by backlog length, and with 10,000 in the pending list of a dead instance."""
    sizes = (5_000, 50_000, 500_000)
    costs: list[list[float]] = []
    with bed.mpush(2):
        for turn in range(rounds + 1):
            row = []
            for size in sizes:  # equal totals, so that a slow moment of the machine weighs the same
                bed.seed(size, 32)
                repeats = sizes[-1] // size
                spent = sum(
                    server_microseconds(bed, lambda size=size: bed.service_seconds(size, 2))  # type: ignore[misc]
                    for _ in range(min(repeats, 20))
                )
                row.append(spent / size / min(repeats, 20))
            if turn:
                costs.append(row)
    pairs = [(_from_start(bed, left=10_000), _from_start(bed, left=0)) for _ in range(rounds)]
    bed.clear_subscribers(2)
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


def _from_start(bed: Testbed, left: int) -> float:
    """Return the server time per message for 50,000, of which ``left`` are in a dead instance's pending list."""
    bed.clear_subscribers(2)
    bed.seed(50_000 - left, 32)
    bed.publish_backlog(SOURCE)
    if left:
        bed.seed(left, 32)
        bed.publish_backlog(f"{PENDING}:0")
        bed.redis.zadd(f"{NAMESPACE}:owners", {"0": 1})
    with bed.service(2) as service:
        spent = server_microseconds(bed, lambda: until(lambda: bed.has_arrived(50_000, 2), every=0.001))
        service.stop()
    return spent / 50_000


def longest_move(bed: Testbed, size: int, messages: int, rounds: int) -> Figure:
    """Measure the slowest move of each round by the server's slow log, in milliseconds."""
    bed.seed(messages, size)
    bed.redis.config_set("slowlog-max-len", 100_000)
    bed.redis.config_set("slowlog-log-slower-than", 0)
    slowest, all_moves = [], []
    with bed.mpush(2):
        for turn in range(rounds + 1):
            bed.redis.slowlog_reset()
            bed.service_seconds(messages, 2)
            entries = bed.redis.slowlog_get(100_000)
            moves = [entry["duration"] / 1000 for entry in entries if entry["command"].startswith(b"EVAL")]
            if turn:  # the first round finds the server's memory cold
                slowest.append(max(moves))
                all_moves += moves
    bed.redis.config_set("slowlog-log-slower-than", 10_000)
    bed.clear_subscribers(2)
    note = f"{len(all_moves)} moves: median {statistics.median(all_moves):.2f} ms, "
    note += f"p99 {statistics.quantiles(all_moves, n=100)[98]:.2f} ms"
    return Figure(f"longest move in the server, messages of {size:,} B", "ms", slowest, 10, note=note)


def commands_a_second(bed: Testbed, seconds: int) -> float:
    """Return the commands a second by the server's own count, including those inside scripts."""
    bed.redis.config_resetstat()
    begin = time.perf_counter()
    time.sleep(seconds)
    stats: dict[str, dict[str, int]] = bed.redis.info("commandstats")
    stats.pop("cmdstat_config|resetstat", None)
    return sum(each["calls"] for each in stats.values()) / (time.perf_counter() - begin)


def idle(bed: Testbed, seconds: int) -> list[Figure]:
    """Measure the commands a second, by the server's counter, and the processor time of idle services."""
    with bed.mpush(2) as service:
        time.sleep(1)
        begin, spent = time.perf_counter(), cpu_seconds(service.pid)
        commands = commands_a_second(bed, seconds)
        elapsed, spent = time.perf_counter() - begin, cpu_seconds(service.pid) - spent
    with ExitStack() as stack:
        running = [stack.enter_context(bed.service(2)) for _ in range(REPLICAS)]
        until(lambda: bed.blocked_clients() == len(running))
        each = commands_a_second(bed, seconds) / len(running)
    return [
        Figure("idle: commands a second, those inside scripts included", "/s", [commands], 2),
        Figure(f"{REPLICAS} replicas idle: commands a second each, those inside scripts included", "/s", [each], 2),
        Figure("idle: processor", "%", [100 * spent / elapsed], 0.5),
    ]


def process(bed: Testbed, rounds: int) -> list[Figure]:
    """Measure start, stop and memory of one service."""
    start, stop, memory = [], [], []
    bed.seed(100_000, 32)
    for _ in range(rounds):
        bed.clear_subscribers(2)
        bed.redis.lpush(SOURCE, "first")
        begin = time.perf_counter()
        with bed.service(2) as service:
            until(lambda: bed.has_arrived(1, 2), every=0.001)
            start.append(time.perf_counter() - begin)
            bed.service_seconds(100_000, 2)
            memory.append(resident_bytes(service.pid) / 1e6)
            until(lambda: bed.blocked_clients() == 1)
            begin = time.perf_counter()
            assert service.stop() == 0
            stop.append(time.perf_counter() - begin)
    bed.clear_subscribers(2)
    return [
        Figure("resident memory after 100,000 messages", "MB", memory, 60),
        Figure("start of the process to first delivery", "s", start, 1),
        Figure("SIGTERM to exit, idle in a 10 s pop", "s", stop, 0.5),
    ]
