"""Read the stream of message events that ``lua/parts/events.lua`` writes.

A stream entry packs up to some hundred events. It has ``count``, the number of the ``first`` event, and eight more
fields: each is one word for all events, or one word for each event, on a line of its own. In a word, ``\\\\`` is a
backslash and ``\\n`` a line end. An entry without ``count`` is one event. Some entries have ``details``, too, and
``message``, which is ignored here.
"""

import re
from collections.abc import AsyncIterator, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from penstock.base.encoding import decoded, encoded, parse_number
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicRead
from penstock.tracking.details import NO_DETAILS, Details
from penstock.tracking.record import By, canonical_number, is_number, xids_of

MAX_CHUNK_ENTRIES: Final = 1000
"""Maximum number of entries in one chunk."""
FIRST_CHUNK: Final = 50
"""Entries in the first chunk, before their size is known."""
MAX_CHUNK_BYTES: Final = 16 * 2**20
"""Approximate bytes of messages in one chunk."""
MESSAGE: Final = b"message"
DETAILS: Final = b"details"
END_EVENTS: Final = ("done", "late", "dead", "expired")
"""Kinds of events that end a message."""
MAX_EVENTS: Final = 1_000
"""Upper bound on the events of an entry; no script writes as many."""
ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True)
class TrackedEvent:
    """One event of a message; None or empty for what the stream does not say."""

    event: str
    at: float
    """Seconds since the epoch."""
    id: str
    xid: str
    queue: str
    service: str
    attempt: int | None
    seconds: float | None
    """Since the message was delivered or registered."""
    details: Details = NO_DETAILS


class Entry:
    """One entry of the stream, with one or more events."""

    def __init__(self, name: bytes, fields: Mapping[bytes, bytes]) -> None:
        words = {decoded(field): decoded(value) for field, value in fields.items() if field != MESSAGE}
        self.count = min(max(int(parse_number(words.get("count")) or 1), 1), MAX_EVENTS)
        self._at = float(name.partition(b"-")[0])  # for events without a time
        self._packed = "count" in words
        self._columns = {field: self._column(word) for field, word in words.items()}

    def _column(self, word: str) -> list[str]:
        """Return one word for all events, or one word for each."""
        lines = word.split("\n") if self._packed else [word]
        return lines if len(lines) == self.count else [word]

    def _word(self, field: str, place: int) -> str:
        column = self._columns.get(field, [""])
        word = column[place] if len(column) > 1 else column[0]
        return ESCAPED.sub(_unescaped, word) if self._packed and "\\" in word else word

    def events(self, about: Container[str] | None = None) -> Iterator[TrackedEvent]:
        """Yield the events, oldest first; only those with an id or xid in ``about`` if it is given."""
        for place in range(self.count):
            id, xid = self._word("id", place), self._word("xid", place)
            if about is None or id in about or xid in about:
                at, attempt = parse_number(self._word("at", place)), parse_number(self._word("attempt", place))
                yield TrackedEvent(
                    self._word("event", place),
                    (self._at if at is None else at) / 1000,
                    id,
                    xid,
                    self._word("queue", place),
                    self._word("service", place),
                    None if attempt is None else int(attempt),
                    parse_number(self._word("seconds", place)),
                    Details.parse(word) if (word := self._word("details", place)) else NO_DETAILS,
                )


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


async def read_chunks(
    redis: "Redis", keys: Keys, start: str = "-", *, newest_first: bool = False
) -> AsyncIterator[list[tuple[bytes, dict[bytes, bytes]]]]:
    """Yield raw entries in chunks, from the stream id ``start`` on, or from the newest entry back."""
    key, edge, count = encoded(keys.events), "+" if newest_first else start, FIRST_CHUNK
    while True:
        chunk: Any = await (
            redis.xrevrange(key, edge, "-", count) if newest_first else redis.xrange(key, edge, "+", count)
        )
        if not chunk:
            return
        yield chunk
        edge, count = f"({decoded(chunk[-1][0])}", next_count(chunk)


async def read_entries(redis: "Redis", keys: Keys, since: float | None = None) -> AsyncIterator[list[Entry]]:
    """Yield entries in chunks, oldest first, from ``since`` on (s since the epoch; default: all)."""
    start = "-" if since is None else str(max(0, int(since * 1000)))
    async for chunk in read_chunks(redis, keys, start):
        yield [Entry(name, fields) for name, fields in chunk]


async def last_event(redis: "Redis", keys: Keys, word: str, by: By = "either") -> TrackedEvent | None:
    """Return the newest event with the id ``word``, or else with that xid; ``by`` limits it to one of them."""
    id, by_xid, xids = canonical_number(word), None, xids_of(word)
    async for chunk in read_chunks(redis, keys, newest_first=True):
        for entry in (Entry(name, fields) for name, fields in chunk):
            for event in reversed(list(entry.events({id, *xids}))):
                if by != "xid" and event.id == id:
                    return event
                by_xid = by_xid or (event if by != "id" and event.xid in xids else None)
        if by_xid is not None and (by == "xid" or not is_number(word)):
            break
    return by_xid


async def history_extent(redis: "Redis", keys: Keys) -> tuple[int, float | None]:
    """Return the number of events in the stream, and the time of the oldest (s since the epoch)."""
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
    """Return how many entries to read after ``chunk``, assuming entries of the same size."""
    each = sum(len(fields.get(MESSAGE, b"")) for _, fields in chunk) // len(chunk)
    return min(max(MAX_CHUNK_BYTES // (each + 1), 1), MAX_CHUNK_ENTRIES)
