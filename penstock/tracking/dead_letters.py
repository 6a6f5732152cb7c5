"""Parse, filter and read dead letters."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import Redis

from penstock.base.encoding import decoded, encoded, parse_number
from penstock.base.keys import Keys

MAX_CHUNK_LETTERS: Final = 500
MAX_CHUNK_BYTES: Final = 2_000_000
"""Limits of letters that one reply returns or one script moves."""


class Letter:
    """An entry of a dead list, identified by its bytes."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        head, end, message = raw.partition(b"\n")
        self.fields = _object(head) if end else {}
        if end and self.fields.pop("bytes", None) == len(message):
            self.fields["message"] = decoded(message)  # a large one, see lua/parts/letters.lua
        else:
            self.fields = _object(raw)

    @cached_property
    def id(self) -> str:
        """The id of the message; ``@`` and a digest of the letter if the message never had one."""
        return self.text("id") or f"@{sha1(self.raw, usedforsecurity=False).hexdigest()[:12]}"

    @property
    def tracked(self) -> bool:
        return not self.id.startswith("@")

    @property
    def message(self) -> bytes | None:
        """The exact bytes that were pushed; None if this is not a letter of ours."""
        try:
            return encoded(self.fields["message"])
        except (KeyError, AttributeError, UnicodeEncodeError):
            return None

    @property
    def destination(self) -> str | None:
        """The list that the message came from; for a letter of mpush, the subscriber that did not get it."""
        return self.text("source") or self.text("queue") or None

    @property
    def at(self) -> float | None:
        """When the letter was written (s since the epoch); None if unknown."""
        at = parse_number(self.text("at"))
        return None if at is None else at / 1000

    def text(self, name: str) -> str:
        """Return a text or number field as text; empty if it is absent, of another type, or cannot be encoded."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return ""
        try:
            encoded(str(value))
        except UnicodeEncodeError:
            return ""
        return str(value)


def _object(text: bytes) -> dict[str, Any]:
    try:
        fields: Any = json.loads(decoded(text), strict=False)
    except (ValueError, RecursionError):
        fields = None
    return fields if isinstance(fields, dict) else {}


@dataclass(frozen=True)
class LetterFilter:
    """Letters that match all given conditions."""

    ids: frozenset[str] | None = None
    reason: str | None = None
    since: float | None = None
    until: float | None = None
    """Seconds since the epoch."""

    def __call__(self, letter: Letter) -> bool:
        return (
            (self.ids is None or letter.id in self.ids)
            and (self.reason is None or letter.text("reason") == self.reason)
            and (self.since is None or (letter.at is not None and letter.at >= self.since))
            and (self.until is None or letter.at is None or letter.at <= self.until)
        )


async def newest_first(redis: "Redis", keys: Keys) -> AsyncIterator[list[Letter]]:
    """Yield the letters that the list holds now, in chunks; letters that are added meanwhile hide none of them."""
    left, most = await redis.llen(encoded(keys.dead)), 4
    while left > 0:
        after = max(0, left - most)
        chunk = await read_letters(redis, keys, -left, -after - 1)
        yield [Letter(raw) for raw in chunk]
        left, most = after, next_chunk_size(chunk)


async def read_letters(redis: "Redis", keys: Keys, first: int, last: int) -> list[bytes]:
    """Return raw letters, newest first, by positions as in LRANGE."""
    letters: Any = await redis.lrange(encoded(keys.dead), first, last)
    return list(letters)


def next_chunk_size(chunk: list[bytes]) -> int:
    """Return how many letters to read next: not many more than in ``chunk``, as if all had its largest size."""
    if not chunk:
        return MAX_CHUNK_LETTERS
    return max(1, min(MAX_CHUNK_LETTERS, 8 * len(chunk), MAX_CHUNK_BYTES // max(1, *map(len, chunk))))
