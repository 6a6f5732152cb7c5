"""The stream of events, read in chunks: what happened to messages, one entry a step."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Self

from redis.asyncio import Redis

from penstock.keys import Keys
from penstock.names import decoded, encoded
from penstock.tracking import canonical, is_number, number

CHUNK: Final = 1000


@dataclass(frozen=True)
class Event:
    """One entry; None and empty stand for what it does not say."""

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

    @classmethod
    def of(cls, entry: bytes, fields: dict[bytes, bytes]) -> Self:
        """From an entry's name, which tells its time where ``at`` does not, and its fields."""
        words = {decoded(name): decoded(value) for name, value in fields.items()}
        at, attempt = number(words.get("at")), number(words.get("attempt"))
        return cls(
            words.get("event", ""),
            (float(entry.partition(b"-")[0]) if at is None else at) / 1000,
            words.get("id", ""),
            words.get("xid", ""),
            words.get("queue", ""),
            words.get("service", ""),
            None if attempt is None else int(attempt),
            number(words.get("seconds")),
        )


async def events(redis: "Redis", keys: Keys, since: float | None = None) -> AsyncIterator[list[Event]]:
    """Chunks of the stream, oldest first: all of it, or from ``since`` on (s since the epoch)."""
    start = "-" if since is None else str(max(0, int(since * 1000)))
    while chunk := _entries(await redis.xrange(encoded(keys.events), start, "+", CHUNK)):
        yield [Event.of(entry, fields) for entry, fields in chunk]
        start = f"({decoded(chunk[-1][0])}"


async def last_event(redis: "Redis", keys: Keys, word: str) -> Event | None:
    """The newest event of the message whose id is ``word``, or else of one whose xid it is."""
    id, end, by_xid = canonical(word), "+", None
    while chunk := _entries(await redis.xrevrange(encoded(keys.events), end, "-", CHUNK)):
        for event in (Event.of(entry, fields) for entry, fields in chunk):
            if event.id == id:
                return event
            if event.xid in (word, id) and by_xid is None:
                by_xid = event
        if by_xid is not None and not is_number(word):
            break
        end = f"({decoded(chunk[-1][0])}"
    return by_xid


async def reach(redis: "Redis", keys: Keys) -> tuple[int, float | None]:
    """How many events there are, and when the oldest of them was (s since the epoch)."""
    length = await redis.xlen(encoded(keys.events))
    oldest: Any = await redis.xrange(encoded(keys.events), count=1)
    return length, Event.of(*oldest[0]).at if oldest else None


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return list(reply)
