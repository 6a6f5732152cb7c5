"""Baseline for vpush: a bare client that moves a list to another server as fast as it can and may lose messages.

``python -m bench.pipeline PORT LIST TARGET_PORT OUT`` loops forever: wait for messages, then pipeline reads and pushes
of batches. It has no scripts and no bookkeeping, and loses the messages in flight when it dies.
"""

import sys
from collections.abc import Iterator
from typing import Final

from bench.connection import Connection, packed

BATCH: Final = 5_000
"""Messages per batch, as in vpush."""
WINDOW: Final = 200
"""Maximum batches pushed and not yet confirmed."""
READ_AHEAD: Final = 16
"""Batches requested ahead, so that the source server is never idle."""


def batches(source: Connection, name: str) -> Iterator[list[bytes]]:
    """Yield batches of the messages of ``name``, oldest first, until it is empty; read ahead."""
    take = packed("RPOP", name, BATCH)
    source.exchange(take * READ_AHEAD, 0)
    asked = READ_AHEAD
    while asked:
        (messages,) = source.exchange(b"", 1)
        asked -= 1
        if messages:
            source.exchange(take, 0)
            asked += 1
            yield messages


def forward(source: Connection, name: str, target: Connection, out: str) -> None:
    """Move all messages with one push per batch, and wait for the last reply."""
    pushed = 0
    for messages in batches(source, name):
        if pushed == WINDOW:
            target.exchange(b"", 1)
            pushed -= 1
        target.exchange(packed("LPUSH", out, *messages), 0)
        pushed += 1
    target.exchange(b"", pushed)


if __name__ == "__main__":
    port, name, target_port, out = sys.argv[1:]
    source, target = Connection(int(port)), Connection(int(target_port))
    while True:
        source.exchange(packed("BLMOVE", name, name, "RIGHT", "RIGHT", 0), 1)
        forward(source, name, target, out)
