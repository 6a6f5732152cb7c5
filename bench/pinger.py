"""Another client of a server: ``python -m bench.pinger PORT`` pings every 2 ms and prints the longest PING (s).

A line on stdin starts a measurement, and the next line ends and prints it.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.connection import Connection, packed
from bench.testbed import PYTHON
from tests.support.harness import ROOT

PING_SECONDS: Final = 0.002
PING: Final = packed("PING")


class Pinger:
    """Control that process: call ``begin``, then ``longest``."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def begin(self) -> None:
        self._say()

    def longest(self) -> float:
        """Return the longest PING since ``begin``, in seconds."""
        self._say()
        assert self._process.stdout
        return float(self._process.stdout.readline())

    def _say(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextmanager
def pinging(port: int) -> Iterator[Pinger]:
    """Ping the server at ``port`` while the block runs."""
    command, pipe = (*PYTHON, "bench.pinger", str(port)), subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Pinger(process)
        finally:
            process.kill()


def ping(connection: Connection) -> float:
    begin = time.perf_counter()
    connection.exchange(PING, 1)
    return time.perf_counter() - begin


if __name__ == "__main__":
    connection = Connection(int(sys.argv[1]))
    while os.read(0, 1):  # not sys.stdin, which would buffer the second line, so that select does not see it
        longest = ping(connection)
        while not select.select([0], [], [], PING_SECONDS)[0]:
            longest = max(longest, ping(connection))
        os.read(0, 1)
        print(longest, flush=True)
