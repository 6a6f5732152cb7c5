"""Baseline for large messages: a bare client that moves one message at a time and loses none.

``python -m bench.carrier PORT LIST TARGET_PORT OUT...`` loops forever: wait for a message, move it to a pending list,
push it to every ``OUT``, remove it from the pending list.
"""

import sys

from bench.connection import Connection, packed


def carry(source: Connection, name: str, target: Connection, outs: list[str]) -> None:
    """Move messages until ``name`` is empty."""
    pending = f"{name}:pending"
    take, settle = packed("LMOVE", name, pending, "RIGHT", "LEFT"), packed("RPOP", pending)
    while True:
        (message,) = source.exchange(take, 1)
        if message is None:
            return
        target.exchange(b"".join(packed("LPUSH", out, message) for out in outs), len(outs))
        source.exchange(settle, 1)


if __name__ == "__main__":
    port, name, target_port, *outs = sys.argv[1:]
    source, target = Connection(int(port)), Connection(int(target_port))
    while True:
        source.exchange(packed("BLMOVE", name, name, "RIGHT", "RIGHT", 0), 1)
        carry(source, name, target, outs)
