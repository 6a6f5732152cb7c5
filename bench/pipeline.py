"""Baseline for vpush: move a list to another server as fast as a bare client can that may lose messages.

``python -m bench.pipeline PORT LIST TARGET_PORT OUT`` waits for messages, then pipelines reads and pushes of batches,
for ever. It has no scripts and no bookkeeping, and loses the messages in flight when it dies.
"""

import sys
from collections.abc import Iterator
from typing import Final

from bench.line import Line, packed

BATCH: Final = 5_000
"""Messages of a batch, as in vpush."""
WINDOW: Final = 200
"""Most batches that are pushed without a reply."""
READ_AHEAD: Final = 16
"""Batches that are requested before they are read, so that the server of the list is never idle."""


def batches(source: Line, name: str) -> Iterator[list[bytes]]:
    """Yield the messages of ``name``, the oldest first, until it is empty; read ahead."""
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


def forward(source: Line, name: str, target: Line, out: str) -> None:
    """Move all messages, one push for each batch, and wait for the last reply."""
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
    source, target = Line(int(port)), Line(int(target_port))
    while True:
        source.exchange(packed("BLMOVE", name, name, "RIGHT", "RIGHT", 0), 1)
        forward(source, name, target, out)
