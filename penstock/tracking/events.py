"""The stream of events, read in chunks: what happened to messages, as ``lua/parts/events.lua`` tells it.

An entry holds up to some hundred events: ``count`` of them, the ``first`` one's number, and eight more fields. Such a
field is one word, which holds for all, or a word for each, a line each; in a word ``\\\\`` stands for a backslash and
``\\n`` for the end of a line. An entry without ``count`` is one event. A ninth field, ``message``, is not read here.
"""

import re
from collections.abc import AsyncIterator, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from penstock.atomic import AtomicRead
from penstock.encoding import decoded, encoded, parse_number
from penstock.keys import Keys
from penstock.tracking.record import By, canonical_number, is_number, xids_of

MAX_CHUNK_ENTRIES: Final = 1000
"""Most entries that are read at a time."""
FIRST_CHUNK: Final = 50
"""Entries of the first chunk, when nobody knows how large they are."""
MAX_CHUNK_BYTES: Final = 16 * 2**20
"""Of the messages that a chunk may have in it, about."""
MESSAGE: Final = b"message"
END_EVENTS: Final = ("done", "late", "dead", "expired")
"""Kinds of events after which a message is not under way any more."""
MAX_EVENTS: Final = 1_000
"""Events of an entry: more than any script writes."""
ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Event:
    """What happened once; None and empty stand for what the stream does not say."""

    event: str
    at: float
    """Seconds since the epoch."""
    id: str
    xid: str
    queue: str
    service: str
    attempt: int | None
    seconds: float | None
    """Since the delivery or the registration of the message."""


class Entry:
    """One entry of the stream."""

    def __init__(self, name: bytes, fields: Mapping[bytes, bytes]) -> None:
        words = {decoded(field): decoded(value) for field, value in fields.items() if field != MESSAGE}
        self.count = min(max(int(parse_number(words.get("count")) or 1), 1), MAX_EVENTS)
        self._at = float(name.partition(b"-")[0])  # where the events do not tell
        self._packed = "count" in words
        self._columns = {field: self._column(word) for field, word in words.items()}

    def _column(self, word: str) -> list[str]:
        """One word for all, or one for each."""
        lines = word.split("\n") if self._packed else [word]
        return lines if len(lines) == self.count else [word]

    def _word(self, field: str, place: int) -> str:
        column = self._columns.get(field, [""])
        word = column[place] if len(column) > 1 else column[0]
        return ESCAPED.sub(_unescaped, word) if self._packed and "\\" in word else word

    def events(self, about: Container[str] | None = None) -> Iterator[Event]:
        """All, or those whose id or xid is one of ``about``; in the order in which it happened."""
        for place in range(self.count):
            id, xid = self._word("id", place), self._word("xid", place)
            if about is None or id in about or xid in about:
                at, attempt = parse_number(self._word("at", place)), parse_number(self._word("attempt", place))
                yield Event(
                    self._word("event", place),
                    (self._at if at is None else at) / 1000,
                    id,
                    xid,
                    self._word("queue", place),
                    self._word("service", place),
                    None if attempt is None else int(attempt),
                    parse_number(self._word("seconds", place)),
                )


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


async def read_entries(redis: "Redis", keys: Keys, since: float | None = None) -> AsyncIterator[list[Entry]]:
    """Chunks of the stream, oldest first: all of it, or from ``since`` on (s since the epoch)."""
    start, count = "-" if since is None else str(max(0, int(since * 1000))), FIRST_CHUNK
    while chunk := _named(await redis.xrange(encoded(keys.events), start, "+", count)):
        yield [Entry(name, fields) for name, fields in chunk]
        start, count = f"({decoded(chunk[-1][0])}", next_count(chunk)


async def last_event(redis: "Redis", keys: Keys, word: str, by: By = "either") -> Event | None:
    """Return the newest event of the message with id ``word``, or else of one with that xid; ``by`` says which."""
    id, end, by_xid, count = canonical_number(word), "+", None, FIRST_CHUNK
    xids = xids_of(word)
    while chunk := _named(await redis.xrevrange(encoded(keys.events), end, "-", count)):
        for entry in (Entry(name, fields) for name, fields in chunk):
            for event in reversed(list(entry.events({id, *xids}))):
                if by != "xid" and event.id == id:
                    return event
                by_xid = by_xid or (event if by != "id" and event.xid in xids else None)
        if by_xid is not None and (by == "xid" or not is_number(word)):
            break
        end, count = f"({decoded(chunk[-1][0])}", next_count(chunk)
    return by_xid


async def history_extent(redis: "Redis", keys: Keys) -> tuple[int, float | None]:
    """How many events there are, and when the oldest of them was (s since the epoch)."""
    key = encoded(keys.events)
    async with AtomicRead(redis) as snapshot:
        snapshot.xlen(key)
        snapshot.xrange(key, count=1)
        snapshot.xrevrange(key, count=1)
        length, oldest, newest = await snapshot.execute()
    if not length:
        return 0, None
    first, last = (parse_number(decoded(ends[0][1].get(b"first", b""))) for ends in (oldest, newest))
    newest_count, at = Entry(*newest[0]).count, next(Entry(*oldest[0]).events()).at
    return int(last - first) + newest_count if first and last and last >= first else length, at


def next_count(chunk: list[tuple[bytes, dict[bytes, bytes]]]) -> int:
    """Entries to read after ``chunk``, as large as those in it."""
    each = sum(len(fields.get(MESSAGE, b"")) for _, fields in chunk) // len(chunk)
    return min(max(MAX_CHUNK_BYTES // (each + 1), 1), MAX_CHUNK_ENTRIES)


def _named(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return list(reply)
