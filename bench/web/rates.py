"""Figures of himporter: requests a second beside uvicorn and Node, one request at a time, and a whole composition."""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.figures import Figure
from bench.peers.install import HOME, FromNpm, NotInstalled
from bench.testbed import Testbed
from bench.web.load import CONNECTIONS, OUT, echo_worker, himporter, serving, uvicorn, without_wrk, wrk

IOREDIS: Final = FromNpm({"ioredis": "5.11.1"})
NAME: Final = f"himporter with an echo worker, {CONNECTIONS} connections, requests a second"


def importing(bed: Testbed, rounds: int, seconds: int) -> list[Figure]:
    """Measure himporter, uvicorn's bare hello and Node's importer in turns, each alone while it is asked."""
    names = [f"{NAME} / uvicorn's bare hello", f"{NAME} / Node's http with ioredis"]
    if missing := without_wrk():
        pairs = zip(names, (0.65, 1.1), strict=True)
        return [Figure(name, "x", [], limit, at_least=True, missing=missing) for name, limit in pairs]
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        _, ours = stack.enter_context(himporter(bed))
        urls = {"ours": ours, "hello": stack.enter_context(uvicorn(bed))}
        stack.enter_context(echo_worker(bed))
        try:
            urls["node"] = stack.enter_context(node(bed))
            missing = ""
        except NotInstalled as reason:
            missing = str(reason)
        for turn in range(rounds + 1):
            for name, url in urls.items():
                rate = wrk(url, seconds).requests
                if turn:  # the first turn warms up
                    rates.setdefault(name, []).append(rate)
    found = [_ratio(names[0], rates["ours"], rates["hello"], 0.65)]
    if missing:
        return [*found, Figure(names[1], "x", [], 1.1, at_least=True, missing=missing)]
    return [*found, _ratio(names[1], rates["ours"], rates["node"], 1.1)]


@contextmanager
def node(bed: Testbed) -> Iterator[str]:
    """Run the same bridge in Node; yield its URL. Raise ``NotInstalled``."""
    installed = IOREDIS.into(HOME / "ioredis")
    words = (*installed.command, str(Path(__file__).parent / "importer.js"), str(bed.server.port), OUT)
    with serving(*words, log=bed.log, **os.environ, **installed.environment) as url:
        yield url


def _ratio(name: str, ours: list[float], theirs: list[float], limit: float) -> Figure:
    note = f"{statistics.median(ours) / 1000:,.1f} k/s against {statistics.median(theirs) / 1000:,.1f} k/s"
    pairs = zip(ours, theirs, strict=True)
    return Figure(name, "x", [one / other for one, other in pairs], limit, at_least=True, note=note)


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of himporter's rates."""
    rounds, seconds = (3, 2) if quick else (7, 5)
    return [lambda bed: importing(bed, rounds, seconds)]
