"""Bare publisher: ``python -m bench.peers.drivers.publisher PORT lists|stream NAME...`` reads orders and publishes."""

import sys
from collections.abc import Iterator

from bench.connection import Connection, packed
from bench.peers.drivers.orders import batches, messages, orders


def to_lists(batch: list[str], names: list[str]) -> Iterator[bytes]:
    """Return one command per list for the whole batch."""
    return (packed("LPUSH", name, *batch) for name in names)


def to_stream(batch: list[str], names: list[str]) -> Iterator[bytes]:
    """Return one command per message, as XADD adds only one entry."""
    return (packed("XADD", names[0], "*", "message", message) for message in batch)


if __name__ == "__main__":
    port, kind, *names = sys.argv[1:]
    connection, commands = Connection(int(port)), {"lists": to_lists, "stream": to_stream}[kind]
    source = messages()
    for count in orders():
        for batch in batches(count, source):
            pushes = list(commands(batch, names))
            connection.exchange(b"".join(pushes), len(pushes))
