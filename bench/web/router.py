"""Figures of hrouter: many rules against one, and one against a client that only moves."""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from bench import reference
from bench.figures import Figure
from bench.testbed import OUT, PENDING, SEED, SOURCE, Testbed
from tests.support.harness import Service, until

RULES: Final = 1_000
BARE: Final = "bench:in:bare"


def request(number: int, paths: int = RULES) -> bytes:
    """Return a request of 400 bytes, as himporter makes it, whose path only one of ``RULES`` rules matches.

    Requests have ``paths`` different paths, one after the other.
    """
    meta = {"id": f"3-{number:x}", "replyTo": "bench:res:3"}
    headers = {"host": "example.org", "accept": "*/*", "user-agent": "curl/7.88.1", "x-forwarded-for": "10.1.2.3"}
    path = f"/svc{number * 7 % RULES:04}/v1/day-{number % paths:06}"
    more = {"query": "unit=C", "headers": [*headers.items()], "deadline": 9e9}
    trace = {"deadline": 9e9, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    return json.dumps({**meta, "method": "GET", "path": path, **more, "meta": {**meta, **trace}}).encode()


def _rules(count: int) -> list[dict[str, str]]:
    services = [f"{number:04}" for number in range(count)] if count > 1 else ["[0-9]{4}"]
    return [{"path": f"^/svc{service}/(?:v[0-9]+)/", "to": OUT} for service in services]


@contextmanager
def _hrouter(bed: Testbed, rules: int) -> Iterator[str]:
    """Run hrouter with ``rules`` rules until it is idle; yield the list that it takes requests from."""
    file, source = bed.log.with_name(f"rules-{rules}.json"), f"{SOURCE}:{rules}"
    Path(file).write_text(json.dumps({"rules": _rules(rules)}))
    names = {"in": source, "pending": f"{PENDING}:{rules}", "rules": file, "redis_namespace": f"bench:hrouter:{rules}"}
    expected = bed.blocked_clients() + 1
    with Service("hrouter", bed.log, redis=bed.url, **names) as service:
        until(lambda: service.runs() and bed.blocked_clients() == expected)
        yield source
        service.stop()


def routing(bed: Testbed, rounds: int, requests: int, paths: int) -> list[Figure]:
    """Measure requests a second with one rule, with ``RULES``, and through a bare client, in turns."""
    for first in range(0, requests, 1_000):
        bed.redis.lpush(SEED, *(request(number, paths) for number in range(first, first + 1_000)))

    def rate(source: str) -> float:
        bed.redis.unlink(OUT)
        begin = bed.publish_backlog(source)
        if source == BARE:
            reference.route(bed.redis, source, f"{source}:pending", {b"{": OUT})
        until(lambda: bed.redis.llen(OUT) == requests, every=0.002)
        return requests / (time.perf_counter() - begin)

    rates: list[tuple[float, float, float]] = []
    with _hrouter(bed, 1) as one, _hrouter(bed, RULES) as many:
        for turn in range(rounds + 1):
            found = rate(one), rate(many), rate(BARE)
            if turn:  # the first turn warms up
                rates.append(found)
    single, thousand, bare = (f"{statistics.median(each) / 1000:,.0f} k/s" for each in zip(*rates, strict=True))
    name = f"hrouter: {requests:,} requests of 400 B with {paths:,} paths"
    by_rules = [many / one for one, many, _ in rates]
    return [
        Figure(f"{name}, {RULES:,} rules / 1", "x", by_rules, 0.9, at_least=True, note=f"{thousand} against {single}"),
        Figure(
            f"{name}, {RULES:,} rules / bare client in batches of 500",
            "x",
            [many / bare for _, many, bare in rates],
            0.5,
            at_least=True,
            note=f"{thousand} against {bare}",
        ),
    ]


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of hrouter."""
    rounds, requests = (3, 20_000) if quick else (7, 100_000)
    return [partial(routing, rounds=rounds, requests=requests, paths=paths) for paths in (RULES, requests)]
