"""Messages that a reader of events does not know of yet, looked for in Redis itself: in lists, sets and newer events.

Nothing stands still meanwhile. A message moves from a list to a pending list to an event: they are read in this order,
and lists from the newest entry to the oldest, so that it is seen at least once, wherever it goes in the meantime.
"""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.asyncio import Redis

from penstock.accounting.attribution import Pattern
from penstock.accounting.fanout import Branch
from penstock.accounting.snapshot import REFUSED_REASONS, NamespaceSnapshot
from penstock.atomic import AtomicRead
from penstock.encoding import decoded, encoded, parse_whole
from penstock.keys import Keys
from penstock.tracking.correlation import correlation_of
from penstock.tracking.dead_letters import newest_first, next_chunk_size
from penstock.tracking.events import END_EVENTS, FIRST_CHUNK, MAX_CHUNK_ENTRIES, Entry, Event, next_count

CLOCK_SETBACK_MS: Final = 2_000
"""Milliseconds that the clock of a server may have been set back."""


@dataclass
class NewerEvents:
    """What was told of a namespace after a certain event."""

    registered: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    """Ids."""
    copies: Counter[str] = field(default_factory=Counter)
    """Registrations by xid, less those that were revived."""
    whole: bool = True
    """Whether none of it was trimmed before it was read."""


@dataclass
class SearchResult:
    """What was found of messages that the archive does not follow to their end."""

    gone: dict[str, list[str]] = field(default_factory=dict)
    """By namespace, ids that have not ended and are not under way."""
    stray: dict[str, list[str]] = field(default_factory=dict)
    """Ids that are under way and should not be."""
    copies: dict[str, Counter[str]] = field(default_factory=dict)
    """By list, how many messages have come, or are about to, of which the archive does not know; by xid."""

    def __or__(self, other: "SearchResult") -> "SearchResult":
        """Of other lists and namespaces."""
        return SearchResult(self.gone | other.gone, self.stray | other.stray, self.copies | other.copies)

    def evened(self, company: Sequence[Branch], uneven: Mapping[str, Pattern]) -> dict[str, Pattern]:
        """``uneven``, with what was found; those that are even now are left out."""
        evened = {}
        for xid, pattern in uneven.items():
            most = max(pattern)
            more = (self.copies.get(leg.list, Counter())[xid] for leg in company)
            known = tuple(min(most, had + max(new, 0)) for had, new in zip(pattern, more, strict=True))
            if len(set(known)) > 1:
                evened[xid] = known
        return evened


async def search(
    redis: "Redis",
    leg: Branch,
    wanted: Collection[str],
    open: Mapping[str, set[str]],
    last: Mapping[str, tuple[int, float]],
) -> SearchResult:
    """Look for messages with an xid of ``wanted``, and for those that are under way.

    ``open``: by namespace, ids that have not ended as far as is known; without these nobody looks who is under way.
    ``last``: the number of the last event that is known, and when that was (s since the epoch).
    """
    found = SearchResult(copies={leg.list: await count_copies(redis, leg, wanted)})
    here: dict[str, tuple[set[str], set[str]]] = {}
    for book in leg.consumers:
        if book.namespace in open:
            known = open[book.namespace]
            others = await ids_under_way(redis, book) - known
            here[book.namespace] = await still_under_way(redis, book, known), await still_under_way(redis, book, others)
    for book in leg.consumers:
        new = await read_newer_events(redis, book, *last[book.namespace])
        found.copies[leg.list].update(new.copies)
        if new.whole and book.namespace in here:
            known, others = here[book.namespace]
            found.gone[book.namespace] = sorted(open[book.namespace] - known - new.ended)
            found.stray[book.namespace] = sorted(others - new.registered)
    return found


async def count_copies(redis: "Redis", leg: Branch, wanted: Collection[str]) -> Counter[str]:
    """How many messages wait for the mdispatch of ``leg``, or lie among dead letters and never came to be tracked.

    By xid, of those in ``wanted``.
    """
    found: Counter[str] = Counter()
    if not wanted:
        return found
    for name in (leg.list, *(name for book in leg.consumers for name in book.pending)):
        async for message in _entries(redis, name):
            if (xid := _xid(message)) in wanted:
                found[xid] += 1
    for namespace in (*(book.namespace for book in leg.consumers), *(fan.namespace for fan in leg.fanouts)):
        async for letters in newest_first(redis, Keys(namespace)):
            for letter in letters:
                ours = letter.text("reason") in REFUSED_REASONS or letter.text("queue") == leg.list
                if ours and letter.message is not None and (xid := _xid(letter.message)) in wanted:
                    found[xid] += 1
    return found


async def read_newer_events(redis: "Redis", book: NamespaceSnapshot, number: int, at: float) -> NewerEvents:
    """What was told after event ``number``, which was written at ``at`` (s since the epoch) or later."""
    found, start, expected, count = (
        NewerEvents(),
        str(max(int(at * 1000) - CLOCK_SETBACK_MS, 0)),
        number + 1,
        FIRST_CHUNK,
    )
    key = encoded(Keys(book.namespace).events)
    while chunk := _named(await redis.xrange(key, start, "+", count)):
        for name, fields in chunk:
            first = parse_whole(fields.get(b"first"))
            if first is None:
                continue
            entry = Entry(name, fields)
            if first + entry.count <= expected:
                continue
            found.whole &= first <= expected
            expected = first + entry.count
            for event in list(entry.events())[max(number + 1 - first, 0) :]:
                _note(found, event, book.source)
        start, count = f"({decoded(chunk[-1][0])}", next_count(chunk)
    return found


def _note(found: NewerEvents, event: Event, source: str) -> None:
    if event.event == "registered":
        found.registered.add(event.id)
        found.copies[event.xid] += 1
    elif event.event in END_EVENTS:
        found.ended.add(event.id)
    elif event.event == "revived" and event.queue == source:
        found.copies[event.xid] -= 1


async def ids_under_way(redis: "Redis", book: NamespaceSnapshot) -> set[str]:
    """The ids in flight or delayed; one that moves between the two sets meanwhile may be missing."""
    keys, found = Keys(book.namespace), set[str]()
    for key in (keys.deadlines, keys.delayed):
        async for id, _ in redis.zscan_iter(encoded(key), count=MAX_CHUNK_ENTRIES):
            found.add(decoded(id))
    return found


async def still_under_way(redis: "Redis", book: NamespaceSnapshot, ids: Collection[str]) -> set[str]:
    """Which of ``ids`` are in flight or delayed; both sets are looked at in one instant."""
    keys, found, all_ids = Keys(book.namespace), set[str](), list(ids)
    for start in range(0, len(all_ids), MAX_CHUNK_ENTRIES):
        some = all_ids[start : start + MAX_CHUNK_ENTRIES]
        members: list[Any] = [encoded(id) for id in some]
        async with AtomicRead(redis) as snapshot:
            snapshot.zmscore(encoded(keys.deadlines), members)
            snapshot.zmscore(encoded(keys.delayed), members)
            pairs = zip(*await snapshot.execute(), strict=True)
        found.update(id for id, pair in zip(some, pairs, strict=True) if pair != (None, None))
    return found


async def _entries(redis: "Redis", name: str) -> AsyncIterator[bytes]:
    """From the newest to the oldest: what is pushed meanwhile moves none out of sight."""
    place, most = 0, 50
    while True:
        chunk: Any = await redis.lrange(encoded(name), place, place + most - 1)
        if not chunk:
            return
        for entry in chunk:
            yield entry
        place, most = place + len(chunk), next_chunk_size(chunk)


def _named(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return list(reply)


def _xid(message: bytes) -> str:
    """As the archive has it."""
    return correlation_of(message).xid.decode(errors="backslashreplace")
