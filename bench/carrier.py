"""What large messages are measured against: a bare client that moves one at a time and loses none.

``python -m bench.carrier PORT LIST TARGET_PORT OUT...`` waits for messages, takes one into a pending list, pushes it to
every ``OUT``, removes it from the pending list, and takes the next one, for ever.
"""

import sys

from bench.line import Line, packed


def carry(source: Line, name: str, target: Line, outs: list[str]) -> None:
    """Move all messages."""
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
    source, target = Line(int(port)), Line(int(target_port))
    while True:
        source.exchange(packed("BLMOVE", name, name, "RIGHT", "RIGHT", 0), 1)
        carry(source, name, target, outs)
