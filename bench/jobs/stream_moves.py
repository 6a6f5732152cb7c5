"""Answer requests with two bare moves of streams: ``python -m bench.jobs.stream_moves PORT ASKED ANSWERED``."""

import statistics
import sys
import time
from typing import Final

from bench.connection import Connection, packed

VALUE: Final = "x" * 32


def answer(port: int, asked: str, answered: str) -> None:
    """Take each request, acknowledge it and answer it, for ever."""
    connection = Connection(port)
    connection.exchange(packed("XGROUP", "CREATE", asked, "g", "0", "MKSTREAM"), 1)
    read = packed("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "BLOCK", 0, "STREAMS", asked, ">")
    while True:
        [[[_, [[entry, fields]]]]] = connection.exchange(read, 1)
        connection.exchange(packed("XACK", asked, "g", entry) + packed("XADD", answered, "*", "out", fields[1]), 2)


def p50(port: int, asked: str, answered: str, count: int) -> float:
    """Return the median time (s) of one request at a time."""
    connection, waits, last = Connection(port), list[float](), b"$"
    [[*found]] = [connection.exchange(packed("XREVRANGE", answered, "+", "-", "COUNT", 1), 1)[0]]
    last = found[0][0] if found else b"0"
    for _ in range(count):
        begin = time.perf_counter()
        connection.exchange(packed("XADD", asked, "*", "in", VALUE), 1)
        [[[_, [[last, _]]]]] = connection.exchange(packed("XREAD", "BLOCK", 0, "STREAMS", answered, last), 1)
        waits.append(time.perf_counter() - begin)
    return statistics.median(waits)


if __name__ == "__main__":
    answer(int(sys.argv[1]), *sys.argv[2:])
