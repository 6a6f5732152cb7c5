"""A bare worker: takes what waits in a list, at most 500 at a time, and says of each that it is done, or answers it."""

import json
import sys
from collections.abc import Callable, Iterable
from hashlib import sha1
from typing import Any, Final

from bench.line import Line, packed

MOST: Final = 500


def done(messages: Iterable[bytes], to: str) -> list[bytes]:
    """Push their xids at once."""
    return [packed("LPUSH", to, *(sha1(message, usedforsecurity=False).hexdigest() for message in messages))]


def answered(messages: Iterable[bytes], to: str) -> list[bytes]:
    """Push an answer to each by itself, as by many workers."""
    return [packed("LPUSH", to, _answer(json.loads(message))) for message in messages]


def _answer(request: dict[str, Any]) -> str:
    return f'{{"meta":{{"id":"{request["meta"]["id"]}"}},"answer":"{request["body"]}"}}'


def work(line: Line, source: str, to: str, said: Callable[[Iterable[bytes], str], list[bytes]]) -> None:
    """Work forever, with one write and one read a batch."""
    take = packed("BLMPOP", 0, 1, source, "RIGHT", "COUNT", MOST)
    pushes: list[bytes] = []
    while True:
        *_, (_, messages) = line.exchange(b"".join([*pushes, take]), len(pushes) + 1)
        pushes = said(messages, to)


if __name__ == "__main__":
    port, source, to, kind = sys.argv[1:]
    work(Line(int(port)), source, to, {"done": done, "answered": answered}[kind])
