"""Bare workers: ``python -m bench.peers.drivers.worker PORT least|one LIST TO``.

``least`` is the minimum that loses no job when it dies: read up to 500, then remove and count them in one transaction.
``one`` takes messages one by one from mdispatch's list, and reports each as done.
"""

import sys
from hashlib import sha1

from bench.connection import Connection, packed
from bench.peers.drivers.orders import BATCH


def least(connection: Connection, source: str, to: str) -> None:
    wait = packed("BLMOVE", source, source, "RIGHT", "RIGHT", 0)
    peek = packed("LRANGE", source, -BATCH, -1)
    settled, replies = b"", 0
    while True:
        jobs = connection.exchange(settled + peek, replies + 1)[-1]
        if jobs:
            commands = packed("LTRIM", source, 0, -len(jobs) - 1) + packed("HINCRBY", to, "count", len(jobs))
            settled, replies = packed("MULTI") + commands + packed("EXEC"), 4
        else:
            connection.exchange(wait, 1)
            settled, replies = b"", 0


def one(connection: Connection, source: str, to: str) -> None:
    take = packed("BRPOP", source, 0)
    push, replies = b"", 0
    while True:
        _, message = connection.exchange(push + take, replies + 1)[-1]
        push, replies = packed("LPUSH", to, sha1(message, usedforsecurity=False).hexdigest()), 1


if __name__ == "__main__":
    port, kind, source, to = sys.argv[1:]
    {"least": least, "one": one}[kind](Connection(int(port)), source, to)
