"""What vpush is measured against: a list moved to another server by a bare client, as fast as one can that may lose it.

``python -m bench.pipeline PORT LIST TARGET_PORT OUT`` waits for messages, then keeps reads and pushes of batches on the
way, for ever: no scripts, no bookkeeping, and what it has in hand when it dies is gone.
"""

import sys
from collections.abc import Iterator
from typing import Final

from bench.line import Line, packed

BATCH: Final = 5_000
"""As many as a batch of vpush has."""
WINDOW: Final = 200
"""Batches pushed and not answered."""
AHEAD: Final = 16
"""Batches asked for and not read: the server of the list always has the next ones to work on."""


def batches(source: Line, name: str) -> Iterator[list[bytes]]:
    """What ``name`` has, oldest first, until it is empty: asked for ahead."""
    take = packed("RPOP", name, BATCH)
    source.exchange(take * AHEAD, 0)
    asked = AHEAD
    while asked:
        (messages,) = source.exchange(b"", 1)
        asked -= 1
        if messages:
            source.exchange(take, 0)
            asked += 1
            yield messages


def forward(source: Line, name: str, target: Line, out: str) -> None:
    """Move all that is there, one push a batch, until the last one is answered."""
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
