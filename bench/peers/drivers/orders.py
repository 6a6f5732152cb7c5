"""What the drivers in Python share: orders in, marks out."""

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

BATCH: Final = 500
"""Messages in one call, where there is a call for several."""


def server() -> str:
    """The URL of the run's server."""
    return os.environ["BENCH_URL"]


def mark(count: int = 1) -> None:
    """Say that so many more have come through."""
    os.write(_marks(os.getpid()), b"." * count)


@cache
def _marks(_: int) -> int:
    return os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_APPEND)


def messages() -> Iterator[str]:
    """Distinct ones, of 32 bytes."""
    return (f"message-{number:024}" for number in itertools.count())


def orders() -> Iterator[int]:
    """How many, each time that the run says so."""
    return (int(line.split()[0]) for line in sys.stdin)


def batches(count: int, source: Iterator[str]) -> Iterator[list[str]]:
    """The next ``count`` of ``source``, ``BATCH`` at a time."""
    for start in range(0, count, BATCH):
        yield list(itertools.islice(source, min(BATCH, count - start)))


def produce(send: Callable[[str], object]) -> None:
    """One call a message."""
    source = messages()
    for count in orders():
        for message in itertools.islice(source, count):
            send(message)


def produce_batches(send: Callable[[list[str]], object]) -> None:
    """One call a batch."""
    source = messages()
    for count in orders():
        for batch in batches(count, source):
            send(batch)


def ask(request: Callable[[str], str]) -> None:
    """One at a time; every answer is the request itself, or the driver fails."""
    source = messages()
    for count in orders():
        waits = []
        for message in itertools.islice(source, count):
            begin = time.perf_counter()
            answer = request(message)
            waits.append(time.perf_counter() - begin)
            if answer != message:
                raise SystemExit(f"asked {message}, was answered {answer!r}")
        tell(waits)


def tell(waits: list[float]) -> None:
    """The median of so many seconds, for the run to read."""
    print(json.dumps({"p50": statistics.median(waits)}), flush=True)
