"""Figures of ``penstock.bus``, each compared in the same run with busmq 3.1.0 or with bare list moves."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Final

from redis import Redis

from bench import bus_sizes
from bench.figures import Figure
from bench.large import MB
from bench.peers.install import HOME, FromNpm, NotInstalled
from bench.side import Side, side
from bench.testbed import PYTHON, Testbed, resident_bytes

BUSMQ: Final = FromNpm({"busmq": "3.1.0"}, {"flexbuffer": "0.0.6"})
QUEUES: Final = 100
"""Queues of one process in busmq's own benchmark."""
IN_FLIGHT: Final = 100
IDLE_QUEUES: Final = 10_000
INTERVAL_SECONDS: Final = 0.003
Kind = Callable[[Testbed], AbstractContextManager[Side]]
Pair = tuple[float, float]


def ours(bed: Testbed) -> AbstractContextManager[Side]:
    return side(*PYTHON, "bench.bus_ours", bed.url)


def bare(bed: Testbed) -> AbstractContextManager[Side]:
    return side(*PYTHON, "bench.bus_bare", bed.url)


@contextmanager
def busmq(bed: Testbed) -> Iterator[Side]:
    """Run busmq; raise ``NotInstalled`` if it cannot be installed."""
    node = BUSMQ.into(HOME / "busmq")
    with side(*node.command, str(Path(__file__).parent / "busmq.js"), bed.url, **node.environment) as process:
        yield process


def many_queues(bed: Testbed, rounds: int, count: int) -> list[Figure]:
    """Measure one process that pushes to 100 queues and consumes them, as busmq's own benchmark does.

    Both push without waiting, one message to each queue in turn, and let the event loop run before the next turn.
    """
    name = f"bus: {QUEUES} queues, {QUEUES * count:,} x 32 B pushed and consumed in one process"

    def rate(kind: Kind) -> float:
        names = [f"bench:{place}" for place in range(QUEUES)]
        with kind(bed) as process:
            process.order("many", names, count // 10)
            return QUEUES * count / process.order("many", names, count)["seconds"]

    return _against_busmq(name, rounds, rate, 1.5)


def consumed_rate(producer: Side, consumer: Side, count: int, *, reliable: bool = False) -> float:
    """Return how many messages a second of one queue arrive, of ``count`` after a tenth that warms up."""
    for many in (count // 10, count):
        consumer.order("consume", "bench:one", many, reliable)
        begin = time.perf_counter()
        producer.send("produce", "bench:one", many)
        consumer.answer()
        seconds = time.perf_counter() - begin
        producer.answer()
        consumer.answer()
    return count / seconds


def one_queue(bed: Testbed, rounds: int, count: int, *, reliable: bool) -> list[Figure]:
    """Measure one producer and one consumer, a process each; ``reliable`` acknowledges each message."""
    name = f"bus: one queue, {count:,} x 32 B, {'an ack for each' if reliable else 'consumed'}"

    def rate(kind: Kind) -> float:
        with kind(bed) as producer, kind(bed) as consumer:
            return consumed_rate(producer, consumer, count, reliable=reliable)

    return _against_busmq(name, rounds, rate, 1.5 if reliable else 5, least=None if reliable else 100_000)


def requests_in_flight(bed: Testbed, rounds: int, count: int) -> list[Figure]:
    """Measure requests a second with many in flight, one requester and one provider."""
    name = f"bus: request and answer, {IN_FLIGHT} in flight"

    def rate(kind: Kind) -> float:
        with kind(bed) as provider, kind(bed) as requester:
            provider.order("serve", "bench:service")
            requester.order("request", "bench:service", count // 10, IN_FLIGHT)
            return count / requester.order("request", "bench:service", count, IN_FLIGHT)["seconds"]

    return _against_busmq(name, rounds, rate, 1.5)


def request(bed: Testbed, rounds: int, count: int) -> Figure:
    """Measure the p50 of requests one after the other, compared with LPUSH, BLMOVE and BLPOP of redis-py."""

    with ExitStack() as stack:
        pairs = []
        for kind in (ours, bare):
            provider, requester = (stack.enter_context(kind(bed)) for _ in range(2))
            provider.order("serve", f"bench:{kind.__name__}")
            pairs.append(partial(requester.order, "request", f"bench:{kind.__name__}", count, 1))
        return _p50s("bus: request and answer, one at a time, p50 / bare list moves'", rounds, pairs)


def latency(bed: Testbed, rounds: int, count: int) -> Figure:
    """Measure the p50 from a push to an idle consumer, compared with LPUSH and BLMOVE of redis-py."""

    with ExitStack() as stack:
        pairs = []
        for kind in (ours, bare):
            producer, consumer = (stack.enter_context(kind(bed)) for _ in range(2))
            pairs.append(partial(_wait, producer, consumer, f"bench:{kind.__name__}", count))
        return _p50s("bus: a message to an idle consumer, p50 / LPUSH and BLMOVE", rounds, pairs)


def _wait(producer: Side, consumer: Side, name: str, count: int) -> dict[str, float]:
    consumer.order("wait", name, count)
    producer.order("push_now_and_then", name, count, INTERVAL_SECONDS)
    return consumer.answer()


def _p50s(name: str, rounds: int, measures: Sequence[Callable[[], dict[str, float]]]) -> Figure:
    pairs = [[measure()["p50"] for measure in measures] for _ in range(rounds + 1)][1:]
    medians = [statistics.median(each) * 1e6 for each in zip(*pairs, strict=True)]
    note = f"p50 {medians[0]:.0f} us against {medians[1]:.0f} us"
    return Figure(name, "x", [first / second for first, second in pairs], 2, note=note)


def idle(bed: Testbed, seconds: float) -> list[Figure]:
    """Measure the calls a second, and the memory, of a process that is attached to many queues and idle."""
    name = f"bus: {IDLE_QUEUES:,} queues attached by one process, idle"
    with ours(bed) as process:
        process.order("attach", IDLE_QUEUES)
        calls = _calls(bed, seconds) / seconds
        memory = resident_bytes(process.pid) / MB
    return [
        Figure(f"{name}: calls, without those inside scripts", "/s", [calls], 20),
        Figure(f"{name}: its memory", "MB", [memory], 150),
    ]


def _calls(bed: Testbed, seconds: float) -> int:
    """Return how many commands clients send within ``seconds``. MONITOR, unlike commandstats, tells who calls."""
    with Redis.from_url(bed.url, socket_timeout=None) as redis, redis.monitor() as monitor:
        end = Timer(seconds, redis.echo, ("end",))
        end.start()
        calls = 0
        for each in monitor.listen():
            if each["command"] == "ECHO end":
                break
            calls += each["client_type"] != "lua"
        end.join()
    return calls


def _against_busmq(
    name: str, rounds: int, rate: Callable[[Kind], float], limit: float, least: float | None = None
) -> list[Figure]:
    """Measure ours and busmq's in turns; ``least`` is what ours must reach besides."""
    pairs = list[Pair]()
    alone = list[float]()
    missing = ""
    for _ in range(rounds):
        alone.append(rate(ours))
        try:
            if not missing:
                pairs.append((alone[-1], rate(busmq)))
        except NotInstalled as reason:
            missing = str(reason)
    note = ""
    if pairs:
        first, second = (statistics.median(each) for each in zip(*pairs, strict=True))
        note = f"{first:,.0f} /s against {second:,.0f} /s"
    ratios = [first / second for first, second in pairs]
    found = [Figure(f"{name} / busmq's", "x", ratios, limit, at_least=True, note=note, missing=missing)]
    if least is not None:
        found.append(Figure(name, "/s", alone, least, at_least=True))
    return found


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of the bus."""
    rounds, tenth = (3, 10) if quick else (7, 1)
    return [
        lambda bed: many_queues(bed, rounds, 500 // tenth),
        lambda bed: one_queue(bed, rounds, 100_000 // tenth, reliable=False),
        lambda bed: one_queue(bed, rounds, 50_000 // tenth, reliable=True),
        lambda bed: latency(bed, rounds, 500 // tenth),
        lambda bed: request(bed, rounds, 1_000 // tenth),
        lambda bed: requests_in_flight(bed, rounds, 20_000 // tenth),
        lambda bed: idle(bed, 15 if quick else 60),
        *bus_sizes.plan(quick),
    ]
