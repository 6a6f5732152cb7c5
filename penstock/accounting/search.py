"""Search Redis for messages whose end is not archived: in lists, sets and newer events.

Messages move during the search, from a list to a pending list to an event. The search follows this order and reads
lists from the newest entry to the oldest, so it meets each message at least once.
"""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.asyncio import Redis

from penstock.accounting.fanout import Branch, Pattern
from penstock.accounting.snapshot import NamespaceSnapshot
from penstock.base.encoding import decoded, encoded, parse_whole
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicRead
from penstock.core.metrics import REFUSED_REASONS
from penstock.tracking.correlation import correlation_of
from penstock.tracking.dead_letters import newest_first, next_chunk_size
from penstock.tracking.events import END_EVENTS, MAX_CHUNK_ENTRIES, Entry, TrackedEvent, read_chunks

CLOCK_SETBACK_MS: Final = 2_000
"""Milliseconds by which a server's clock may have been set back."""


@dataclass
class NewerEvents:
    """Events of a namespace after a given one."""

    registered: set[str] = field(default_factory=set)
    """Ids."""
    ended: set[str] = field(default_factory=set)
    """Ids."""
    copies: Counter[str] = field(default_factory=Counter)
    """Registrations by xid, minus revivals."""
    whole: bool = True
    """False if events were trimmed before they were read."""


@dataclass
class SearchResult:
    """Messages whose end is not archived."""

    gone: dict[str, list[str]] = field(default_factory=dict)
    """Ids by namespace that have not ended and are not under way."""
    stray: dict[str, list[str]] = field(default_factory=dict)
    """Ids by namespace that are under way and should not be."""
    copies: dict[str, Counter[str]] = field(default_factory=dict)
    """By list and xid, how many messages have arrived, or wait, that the archive does not have."""

    def __or__(self, other: "SearchResult") -> "SearchResult":
        """Merge with the result for other lists and namespaces."""
        return SearchResult(self.gone | other.gone, self.stray | other.stray, self.copies | other.copies)

    def add_to(self, siblings: Sequence[Branch], uneven: Mapping[str, Pattern]) -> dict[str, Pattern]:
        """Return ``uneven`` plus the found copies, without messages of which all branches then have the same number."""
        completed = {}
        for xid, pattern in uneven.items():
            more = (self.copies.get(branch.list, Counter())[xid] for branch in siblings)
            known = tuple(min(max(pattern), had + max(new, 0)) for had, new in zip(pattern, more, strict=True))
            if len(set(known)) > 1:
                completed[xid] = known
        return completed


async def search(
    redis: "Redis",
    branch: Branch,
    wanted: Collection[str],
    open: Mapping[str, set[str]],
    last: Mapping[str, tuple[int, float]],
) -> SearchResult:
    """Search for messages of ``branch`` with an xid in ``wanted``, and for those under way.

    ``open`` gives, by namespace, the ids that have not ended according to the archive; other namespaces are not checked
    for messages under way. ``last`` gives the number of the last archived event and its time (s since the epoch).
    """
    result = SearchResult(copies={branch.list: await count_copies(redis, branch, wanted)})
    seen: dict[str, tuple[set[str], set[str]]] = {}
    for consumer in branch.consumers:
        if consumer.namespace in open:
            known = open[consumer.namespace]
            others = await ids_under_way(redis, consumer) - known
            known = await still_under_way(redis, consumer, known)
            seen[consumer.namespace] = known, await still_under_way(redis, consumer, others)
    for consumer in branch.consumers:
        name = consumer.namespace
        newer = await read_newer_events(redis, consumer, *last[name])
        result.copies[branch.list].update(newer.copies)
        if newer.whole and name in seen:
            known, others = seen[name]
            result.gone[name] = sorted(open[name] - known - newer.ended)
            result.stray[name] = sorted(others - newer.registered)
    return result


async def count_copies(redis: "Redis", branch: Branch, wanted: Collection[str]) -> Counter[str]:
    """Count, by xid in ``wanted``, messages that wait for the consumer of ``branch``, or died without being tracked."""
    found: Counter[str] = Counter()
    if not wanted:
        return found
    for name in (branch.list, *(name for consumer in branch.consumers for name in consumer.pending)):
        async for message in _entries(redis, name):
            if (xid := _xid(message)) in wanted:
                found[xid] += 1
    namespaces = [each.namespace for each in branch.consumers] + [each.namespace for each in branch.fanouts]
    for keys in map(Keys, namespaces):
        async for letters in newest_first(redis, keys):
            for letter in letters:
                ours = letter.text("reason") in REFUSED_REASONS or letter.text("queue") == branch.list
                if ours and letter.message is not None and (xid := _xid(letter.message)) in wanted:
                    found[xid] += 1
    return found


async def read_newer_events(redis: "Redis", consumer: NamespaceSnapshot, number: int, at: float) -> NewerEvents:
    """Return the events after event ``number``, which was written at ``at`` (s since the epoch) or later."""
    found, expected = NewerEvents(), number + 1
    start = str(max(int(at * 1000) - CLOCK_SETBACK_MS, 0))
    async for chunk in read_chunks(redis, Keys(consumer.namespace), start):
        for name, fields in chunk:
            first, entry = parse_whole(fields.get(b"first")), Entry(name, fields)
            if first is None or first + entry.count <= expected:
                continue
            found.whole &= first <= expected
            expected = first + entry.count
            for event in list(entry.events())[max(number + 1 - first, 0) :]:
                _add(found, event, consumer.source)
    return found


def _add(found: NewerEvents, event: TrackedEvent, source: str) -> None:
    if event.event == "registered":
        found.registered.add(event.id)
        found.copies[event.xid] += 1
    elif event.event in END_EVENTS:
        found.ended.add(event.id)
    elif event.event == "revived" and event.queue == source:
        found.copies[event.xid] -= 1


async def ids_under_way(redis: "Redis", consumer: NamespaceSnapshot) -> set[str]:
    """Return the ids in flight or delayed; an id that moves between the two sets meanwhile may be missing."""
    keys, found = Keys(consumer.namespace), set[str]()
    for key in (keys.deadlines, keys.delayed):
        async for member, _ in redis.zscan_iter(encoded(key), count=MAX_CHUNK_ENTRIES):
            found.add(_id(consumer, decoded(member)))
    return found


def _id(consumer: NamespaceSnapshot, member: str) -> str:
    """Return the id of a member: hqueue writes its queue behind it."""
    return member.partition(" ")[0] if consumer.keeper == "hqueue" else member


async def still_under_way(redis: "Redis", consumer: NamespaceSnapshot, ids: Collection[str]) -> set[str]:
    """Return those of ``ids`` that are in flight or delayed, by an atomic read of both sets.

    Members of hqueue have their queue behind the id: for these, two scans of both sets.
    """
    if consumer.keeper == "hqueue":
        return set(ids).intersection(await ids_under_way(redis, consumer) | await ids_under_way(redis, consumer))
    keys, found, all_ids = Keys(consumer.namespace), set[str](), list(ids)
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
    """Yield the entries of a list, newest first: pushes meanwhile cannot hide an entry."""
    place, most = 0, 50
    while True:
        chunk: Any = await redis.lrange(encoded(name), place, place + most - 1)
        if not chunk:
            return
        for entry in chunk:
            yield entry
        place, most = place + len(chunk), next_chunk_size(chunk)


def _xid(message: bytes) -> str:
    """Return the xid as the archive stores it."""
    return correlation_of(message).xid.decode(errors="backslashreplace")
