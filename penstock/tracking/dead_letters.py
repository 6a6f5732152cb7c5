"""Dead letters: understood, chosen, and read in chunks."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import Redis

from penstock.encoding import decoded, encoded, parse_number
from penstock.keys import Keys

MAX_CHUNK_LETTERS: Final = 500
MAX_CHUNK_BYTES: Final = 2_000_000
"""Letters and bytes that are read in one reply, or moved by one script: so many letters, fewer where they are large."""


class Letter:
    """One entry of a dead list; the bytes are what it is known by."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        try:
            fields: Any = json.loads(decoded(raw), strict=False)
        except (ValueError, RecursionError):
            fields = None
        self.fields: dict[str, Any] = fields if isinstance(fields, dict) else {}

    @cached_property
    def id(self) -> str:
        """The id of the message, or where it never had one ``@`` and a digest of the letter."""
        return self.text("id") or f"@{sha1(self.raw, usedforsecurity=False).hexdigest()[:12]}"

    @property
    def tracked(self) -> bool:
        return not self.id.startswith("@")

    @property
    def message(self) -> bytes | None:
        """The exact bytes that were pushed; None where this is no letter of ours."""
        try:
            return encoded(self.fields["message"])
        except (KeyError, AttributeError, UnicodeEncodeError):
            return None

    @property
    def destination(self) -> str | None:
        """Where the message came from; a letter of mpush goes to the one subscriber that did not get it."""
        return self.text("source") or self.text("queue") or None

    @property
    def at(self) -> float | None:
        """When it was written (s since the epoch)."""
        at = parse_number(self.text("at"))
        return None if at is None else at / 1000

    def text(self, name: str) -> str:
        """A field that is a text or a number, as text; empty where it is not there, or has no bytes."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return ""
        try:
            encoded(str(value))
        except UnicodeEncodeError:
            return ""
        return str(value)


@dataclass(frozen=True)
class LetterFilter:
    """Which letters are meant: all conditions together."""

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
    """Chunks of what the list holds now; what is added meanwhile moves no letter out of sight."""
    left, most = await redis.llen(encoded(keys.dead)), 50
    while left > 0:
        after = max(0, left - most)
        chunk = await read_letters(redis, keys, -left, -after - 1)
        yield [Letter(raw) for raw in chunk]
        left, most = after, next_chunk_size(chunk)


async def read_letters(redis: "Redis", keys: Keys, first: int, last: int) -> list[bytes]:
    """Letters as they are, newest first, by their places as in LRANGE."""
    letters: Any = await redis.lrange(encoded(keys.dead), first, last)
    return list(letters)


def next_chunk_size(chunk: list[bytes]) -> int:
    """How many letters as large as the largest of ``chunk`` may be read at a time."""
    return max(1, min(MAX_CHUNK_LETTERS, MAX_CHUNK_BYTES // max(1, *map(len, chunk)))) if chunk else MAX_CHUNK_LETTERS
