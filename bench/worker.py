"""Bare worker: take up to 500 messages of a list at a time, and report each as done or answer it."""

import json
import sys
from collections.abc import Callable, Iterable
from hashlib import sha1
from typing import Any, Final

from bench.connection import Connection, packed

BATCH: Final = 500


def done(messages: Iterable[bytes], to: str) -> list[bytes]:
    """Return one push of all correlation ids."""
    return [packed("LPUSH", to, *(sha1(message, usedforsecurity=False).hexdigest() for message in messages))]


def answered(messages: Iterable[bytes], to: str) -> list[bytes]:
    """Return one push per answer, as from many workers."""
    return [packed("LPUSH", to, _answer(json.loads(message))) for message in messages]


def _answer(request: dict[str, Any]) -> str:
    return f'{{"meta":{{"id":"{request["meta"]["id"]}"}},"answer":"{request["body"]}"}}'


def work(connection: Connection, source: str, to: str, report: Callable[[Iterable[bytes], str], list[bytes]]) -> None:
    """Work forever, with one write and one read per batch."""
    take = packed("BLMPOP", 0, 1, source, "RIGHT", "COUNT", BATCH)
    pushes: list[bytes] = []
    while True:
        *_, (_, messages) = connection.exchange(b"".join([*pushes, take]), len(pushes) + 1)
        pushes = report(messages, to)


if __name__ == "__main__":
    port, source, to, kind = sys.argv[1:]
    work(Connection(int(port)), source, to, {"done": done, "answered": answered}[kind])
