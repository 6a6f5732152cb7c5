"""Shared code of the drivers in Python: read orders, write marks."""

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
"""Messages per call, if the client has a call for several."""


def server() -> str:
    """Return the URL of the run's server."""
    return os.environ["BENCH_URL"]


def mark(count: int = 1) -> None:
    """Report that ``count`` more messages have arrived."""
    os.write(_marks(os.getpid()), b"." * count)


@cache
def _marks(_: int) -> int:
    return os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_APPEND)


def messages() -> Iterator[str]:
    """Yield distinct messages of 32 bytes, without end."""
    return (f"message-{number:024}" for number in itertools.count())


def orders() -> Iterator[int]:
    """Yield the number of messages to send for each order on stdin."""
    return (int(line.split()[0]) for line in sys.stdin)


def batches(count: int, source: Iterator[str]) -> Iterator[list[str]]:
    """Yield the next ``count`` messages of ``source``, ``BATCH`` at a time."""
    for start in range(0, count, BATCH):
        yield list(itertools.islice(source, min(BATCH, count - start)))


def produce(send: Callable[[str], object]) -> None:
    """Send the ordered messages, one per call."""
    source = messages()
    for count in orders():
        for message in itertools.islice(source, count):
            send(message)


def produce_batches(send: Callable[[list[str]], object]) -> None:
    """Send the ordered messages, one batch per call."""
    source = messages()
    for count in orders():
        for batch in batches(count, source):
            send(batch)


def ask(request: Callable[[str], str]) -> None:
    """Send the ordered requests one at a time; fail unless every answer equals its request."""
    source = messages()
    for count in orders():
        waits = []
        for message in itertools.islice(source, count):
            begin = time.perf_counter()
            answer = request(message)
            waits.append(time.perf_counter() - begin)
            if answer != message:
                raise SystemExit(f"asked {message}, was answered {answer!r}")
        print_median(waits)


def print_median(waits: list[float]) -> None:
    """Print the median of ``waits`` (seconds) for the run to read."""
    print(json.dumps({"p50": statistics.median(waits)}), flush=True)
