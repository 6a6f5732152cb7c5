"""Figures of mdedupe and mlimit, which move messages: each against mpush to one list."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from bench.figures import Figure
from bench.testbed import OUT, PENDING, SEED, SOURCE, Testbed
from tests.support.harness import Service, until

NO_LIMIT: Final = {"rate": 1_000_000, "burst": 1_000_000}
BY_USER: Final = {"by": "field", "field": "user"}
WAYS: Final[dict[str, tuple[str, dict[str, Any], float]]] = {
    "mdedupe by digest": ("mdedupe", {}, 0.2),
    "mdedupe by id": ("mdedupe", {"by": "id"}, 0.07),
    "mdedupe by field": ("mdedupe", {"by": "field", "field": "meta.id"}, 0.06),
    "mlimit": ("mlimit", NO_LIMIT, 0.5),
    "mlimit by field": ("mlimit", NO_LIMIT | BY_USER, 0.05),
    "mlimit by field, over: drop": ("mlimit", NO_LIMIT | BY_USER | {"over": "drop"}, 0.04),
}
"""The service, its settings, and the least ratio, of each way to move."""


@contextmanager
def _mover(bed: Testbed, number: int, name: str, settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Run a service until it is idle; yield its namespace and the list that it takes messages from."""
    namespace, source = f"bench:{name}:{number}", f"{SOURCE}:{number}"
    names = {"in": source, "pending": f"{PENDING}:{number}", "out": OUT, "redis_namespace": namespace}
    expected = bed.blocked_clients() + 1
    with Service(name, bed.log, redis=bed.url, **names, **settings) as service:
        until(lambda: service.runs() and bed.blocked_clients() == expected)
        yield namespace, source
        service.stop()


def moving(bed: Testbed, rounds: int, messages: int, size: int) -> list[Figure]:
    """Measure messages a second, all of them different, through each service and through mpush, in turns."""
    head = b'{"meta":{"id":%d},"user":%d,"text":"'
    for first in range(0, messages, 1_000):
        heads = (head % (number, number % 1_000) for number in range(first, first + 1_000))
        bed.redis.lpush(SEED, *(each.ljust(size - 2, b"x") + b'"}' for each in heads))

    def rate(namespace: str, source: str) -> float:
        bed.redis.unlink(OUT, f"{namespace}:remembered")
        begin = bed.publish_backlog(source)
        until(lambda: bed.redis.llen(OUT) == messages, every=0.002)
        return messages / (time.perf_counter() - begin)

    rates: dict[str, list[float]] = {way: [] for way in ("mpush", *WAYS)}
    with ExitStack() as stack:
        given = [("mpush", {}), *((name, settings) for name, settings, _ in WAYS.values())]
        movers = [stack.enter_context(_mover(bed, place, *each)) for place, each in enumerate(given)]
        for turn in range(rounds + 1):
            for way, mover in zip(rates, movers, strict=True):
                found = rate(*mover)
                if turn:  # the first turn warms up
                    rates[way].append(found)
    bed.redis.unlink(OUT, SEED)
    bare = rates["mpush"]
    return [
        Figure(
            f"{way}: {messages:,} messages of {size:,} B / mpush to one list",
            "x",
            [one / other for one, other in zip(rates[way], bare, strict=True)],
            least,
            at_least=True,
            note=f"{statistics.median(rates[way]) / 1000:,.0f} against {statistics.median(bare) / 1000:,.0f} k/s",
        )
        for way, (_, _, least) in WAYS.items()
    ]


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of mdedupe and mlimit."""
    rounds, messages = (3, 20_000) if quick else (7, 100_000)
    return [lambda bed: moving(bed, rounds, messages, 200), lambda bed: moving(bed, rounds, messages // 5, 4_096)]
