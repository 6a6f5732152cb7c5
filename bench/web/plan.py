"""The figures of the web services, in the order of the way of a request."""

from collections.abc import Callable

from bench.figures import Figure
from bench.testbed import Testbed
from bench.web import balance, failing, move, rates, router, sequence


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of the web services."""
    parts = rates, sequence, failing, router, balance, move
    return [benchmark for part in parts for benchmark in part.plan(quick)]
