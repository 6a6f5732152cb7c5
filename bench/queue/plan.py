"""The figures of hqueue."""

from collections.abc import Callable

from bench.figures import Figure
from bench.queue import rates, sizes, waiting
from bench.testbed import Testbed


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of hqueue."""
    return [benchmark for part in (rates, sizes, waiting) for benchmark in part.plan(quick)]
