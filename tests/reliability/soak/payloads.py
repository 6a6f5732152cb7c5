"""Messages of all sizes and forms, each with unique content, chosen by the seed."""

import json
import random
from collections.abc import Iterator
from hashlib import sha1
from typing import Final

LARGE_BYTES: Final = 100_000
EMPTY_SHARE: Final = 0.002
"""The share of empty messages, the only ones that cannot be distinguished."""


def payloads(rng: random.Random) -> Iterator[bytes]:
    """Yield messages without end: numbers that are also ids of other messages, text, JSON with or without id, bytes."""
    number = 0
    while True:
        number += 1
        if rng.random() < EMPTY_SHARE:
            yield b""
            continue
        yield _one(rng, number)


def _one(rng: random.Random, number: int) -> bytes:
    form = rng.random()
    if form < 0.3:
        return b"%d" % number
    filler = _filler(rng)
    if form < 0.55:
        return json.dumps({"meta": {"id": f"order-{number}"}, "filler": filler.hex()}).encode()
    if form < 0.65:
        return json.dumps({"number": number, "text": "ün\n\0" + filler.hex()}).encode()
    return b"message %d " % number + filler


def _filler(rng: random.Random) -> bytes:
    """Return usually a few bytes, rarely up to ``LARGE_BYTES``."""
    size = rng.choice((0, 3, 20, 100)) if rng.random() < 0.9 else round(LARGE_BYTES ** rng.random())
    return rng.randbytes(size)


def xid_of(message: bytes) -> str:
    """Return the correlation id of a message, as in docs/keys.md."""
    if message.isdigit():
        return message.decode()
    try:
        return str(json.loads(message)["meta"]["id"])
    except (ValueError, KeyError, TypeError):
        return sha1(message).hexdigest()
