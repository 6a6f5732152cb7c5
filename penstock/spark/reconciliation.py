"""Reconciliation of the archived events with the counters in Redis: the outcome of every accepted message.

All counters are read at one instant. Of the archive only events up to that instant count, as their numbers show. So
sums are exact, whatever happens meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from redis.asyncio import Redis

from penstock.accounting.fanout import Branch, Finding, branches_of, compare_branches, sibling_groups
from penstock.accounting.search import SearchResult, search
from penstock.accounting.snapshot import NamespaceSnapshot, Snapshot, read_snapshot
from penstock.spark import conservation
from penstock.spark.archive_snapshot import ArchiveSnapshot, strangers, take_snapshot
from penstock.spark.conservation import MAX_ROWS, Numbers
from penstock.tracking.events import END_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATCH_UP_SECONDS: Final = 5.0
"""Seconds without a new event in the archive after which it counts as behind."""


@dataclass(frozen=True)
class Open:
    """A message that has not ended."""

    namespace: str
    id: str
    xid: str
    queue: str
    event: str
    """The last one."""
    at: float
    """Time of that event (s since the epoch)."""


@dataclass
class Reconciliation:
    """Result of a reconciliation."""

    books: Snapshot
    legs: list[Branch]
    findings: list[Finding]
    open: list[Open]
    """Archived messages that are in flight or delayed, the oldest first."""
    events: int
    """Number of archived events that were read."""

    @property
    def holds(self) -> bool:
        return not self.findings

    def rows(self) -> list[dict[str, int]]:
        """Return a row for each leg: ``accepted``, ``revived`` and ``doubled`` are the sum of all other columns."""
        return [self._row(leg) for leg in self.legs]

    def _row(self, leg: Branch) -> dict[str, int]:
        names = {book.namespace for book in leg.consumers}
        twice = [finding for finding in self.findings if finding.kind == "doubled" and finding.namespace in names]
        return {
            "accepted": leg.accepted,
            "revived": leg.revived,
            **{end: leg.rows[end] for end in END_EVENTS},
            "in flight": sum(book.under_way for book in leg.consumers),
            "waiting": leg.waiting,
            "refused": leg.refused,
            "untracked": leg.total("untracked"),
            "dropped": leg.dropped,
            "missing": leg.missing + sum(max(book.unaccounted, 0) for book in leg.consumers),
            "doubled": max(leg.extra, leg.over) + len(twice),
        }


async def reconcile(
    redis: "Redis",
    spark: "SparkSession",
    directory: str,
    namespaces: Sequence[str] = (),
    *,
    live: bool = False,
    patience: float = CATCH_UP_SECONDS,
    say: Callable[[str], object] = lambda _: None,
) -> Reconciliation:
    """Reconcile ``namespaces``, which must be tracked, or all tracked namespaces.

    ``live``: search Redis for messages that the archive does not have. ``patience``: seconds to wait for an archive
    that is behind and does not grow. ``say`` is called with each step. Raise ``NoArchive`` or ``WrongType``.
    """
    say("reading the counters")
    books = await read_snapshot(redis)
    ways = branches_of(books, list(namespaces or books.tracked))
    chosen = {book.namespace: book for leg in ways for book in leg.consumers}
    groups = sibling_groups(ways)
    snapshot = await asyncio.to_thread(take_snapshot, spark, directory, chosen, groups, patience, say)
    unknown = {} if namespaces else await asyncio.to_thread(strangers, spark, directory, books)
    for leg in ways:
        leg.revived = sum(snapshot.revived.get((book.namespace, leg.list), 0) for book in leg.consumers)
        kinds = [snapshot.kinds.get(book.namespace, {}) for book in leg.consumers]
        leg.rows = {kind: sum(each.get(kind, 0) for each in kinds) for kind in ("registered", *END_EVENTS)}
        leg.unread = max(leg.total("registered") - leg.rows["registered"], 0)
    found_in_redis = SearchResult()
    if live:
        say("looking in Redis for what is under way")
        for leg in ways:
            found_in_redis = found_in_redis | await _searched(redis, leg, groups, snapshot)
    findings = _of_archive(snapshot, unknown)
    for book in (book for name, book in chosen.items() if name not in snapshot.mixed):
        findings += _of_counters(book, snapshot) + _of_messages(book, snapshot, found_in_redis, live)
    for siblings, uneven in zip(groups, snapshot.uneven, strict=True):
        findings += compare_branches(siblings, found_in_redis.add_to(siblings, uneven))
    findings += [finding for leg in ways for finding in _of_leg(leg)]
    counting = [*chosen, *dict.fromkeys(fan.namespace for leg in ways for fan in leg.fanouts)]
    findings += [Finding("counter", name, problem) for name in counting for problem in books.problems[name]]
    say("naming messages")
    named, under_way = await asyncio.to_thread(_named, snapshot, findings)
    return Reconciliation(books, ways, named, under_way, sum(each.rows for each in snapshot.numbers.values()))


async def _searched(
    redis: "Redis", leg: Branch, groups: Sequence[Sequence[Branch]], snapshot: ArchiveSnapshot
) -> SearchResult:
    wanted = [uneven for siblings, uneven in zip(groups, snapshot.uneven, strict=True) if leg in siblings]
    names = [book.namespace for book in leg.consumers]
    numbers = {name: snapshot.numbers.get(name, Numbers(0)) for name in names}
    open = {name: set(snapshot.open(name)) for name in names if not numbers[name].lost}
    return await search(
        redis,
        leg,
        {xid for uneven in wanted for xid in uneven},
        open,
        {name: (each.last, each.at) for name, each in numbers.items()},
    )


def _of_archive(snapshot: ArchiveSnapshot, unknown: dict[str, int]) -> list[Finding]:
    findings = []
    for name, numbers in snapshot.numbers.items():
        if not numbers.last:
            words = f"none of its {numbers.wanted:,} events is archived: does a pipeline watch it?"
            findings.append(Finding("behind", name, words))
        elif numbers.behind:
            words = f"not archived yet: {numbers.behind:,} events; wait until the pipeline has them, and ask again"
            findings.append(Finding("behind", name, words))
    for name, runs in snapshot.holes.items():
        for first, end in runs:
            which = f"event {first:,} is" if first == end else f"events {first:,} to {end:,} are"
            findings.append(Finding("lost", name, f"{which} not in the archive, and later ones are"))
    for run in snapshot.doubles:
        which = f"event {run.first:,} is" if run.first == run.last else f"events {run.first:,} to {run.last:,} are"
        words = f"{which} in the archive {run.rows} times, in {', '.join(run.batches)}"
        if run.entries > 1:
            words += ", and are not the same: the server has lost its counters, or two servers share the archive"
        findings.append(Finding("twice", run.namespace, words))
    if snapshot.cut:
        words = f"more than {MAX_ROWS:,} messages are open or differ between legs: only that many were read"
        findings.append(Finding("sum", "archive", words))
    words = "no mdispatch has registered in it on this server, and the archive has {:,} events of it"
    return findings + [Finding("unknown", name, words.format(count)) for name, count in unknown.items()]


def _of_counters(book: NamespaceSnapshot, snapshot: ArchiveSnapshot) -> list[Finding]:
    """Report sums that differ for another reason than missing events."""
    if book.count("registered") and not book.count("events"):
        return [Finding("behind", book.namespace, "it tells no events (eventCapacity is 0), so none can be archived")]
    archived, whole = snapshot.kinds.get(book.namespace, {}), snapshot.is_complete(book.namespace)
    findings = []
    for kind, count in book.expected_events.items():
        found = archived.get(kind, 0)
        if found > count or (found < count and whole):
            words = f"{kind}: {found:,} in the archive, {count:,} counted"
            findings.append(Finding("sum", book.namespace, words))
    return findings


def _of_messages(
    book: NamespaceSnapshot, snapshot: ArchiveSnapshot, found_in_redis: SearchResult, live: bool
) -> list[Finding]:
    """Report messages that were registered twice, have ended twice, or are neither under way nor ended."""
    where, name = " -> ".join(filter(None, (book.namespace, book.queue))), book.namespace
    findings = []
    for each in (each for each in snapshot.irregular if each["namespace"] == name):
        if each["outcome"] == "doubled":
            often = [f"{event} {each[event]} times" for event in ("registered", *END_EVENTS) if each[event]]
            findings.append(Finding("doubled", where, f"doubled: {', '.join(often)}", name, each["id"]))
        elif each["outcome"] == "unregistered" and snapshot.is_complete(name):
            findings.append(Finding("unknown", name, "ended, but no event registered it", name, each["id"]))
    gone = found_in_redis.gone.get(name, [])
    if (
        not live
        and book.unaccounted > 0
        and snapshot.is_complete(name)
        and book.unaccounted == len(snapshot.open(name))
    ):
        gone = snapshot.open(name)
    words = "missing: it has not ended, and is neither in flight nor delayed"
    findings += [Finding("missing", where, words, name, id) for id in gone]
    words = "in flight or delayed, though it has ended or was never registered"
    findings += [Finding("stray", where, words, name, id) for id in found_in_redis.stray.get(name, [])]
    unnamed = book.unaccounted - len(gone) + len(found_in_redis.stray.get(name, []))
    if unnamed > 0:
        tell = "" if live else ": --live names them"
        findings.append(Finding("sum", where, f"{unnamed:,} have not ended and are not under way{tell}"))
    elif unnamed < 0 and not live:
        findings.append(Finding("sum", where, f"{-unnamed:,} more are under way than can be: --live names them"))
    return findings


def _of_leg(leg: Branch) -> list[Finding]:
    """Report the numbers of missing and surplus copies that cannot be named."""
    if missing := leg.missing - leg.named:
        words = f"{missing:,} missing of {leg.delivered:,} that were given, and no other leg tells which"
        return [Finding("sum", leg.hop, words)]
    if (more := leg.over - leg.extra) > 0:
        return [Finding("sum", leg.hop, f"{more:,} more have come than the {leg.delivered:,} that were given")]
    return []


def _named(snapshot: ArchiveSnapshot, findings: Sequence[Finding]) -> tuple[list[Finding], list[Open]]:
    """Return the findings with ids and xids from the archive, and the messages under way."""
    if snapshot.rows is None:
        return list(findings), []
    about = {(finding.namespace, finding.id) for finding in findings if finding.id}
    under_way = {(each["namespace"], each["id"]) for each in snapshot.irregular if each["outcome"] == "open"} - about
    last = conservation.last_events(snapshot.rows, under_way | about) if under_way or about else {}
    xids = {finding.xid for finding in findings if finding.xid}
    registered = conservation.registrations(snapshot.rows, xids) if xids else {}
    named = []
    for finding in findings:
        if finding.xid in registered:
            ids = ", ".join(f"{id} in {name}" for name, id in registered[finding.xid])
            named.append(replace(finding, words=f"{finding.words}; registered as {ids}"))
        elif event := last.get((finding.namespace, finding.id)):
            named.append(replace(finding, xid=event["xid"]))
        else:
            named.append(finding)
    words = ("xid", "queue", "event", "at")
    open = [Open(*key, *(event[word] for word in words)) for key, event in last.items() if key in under_way]
    return named, sorted(open, key=lambda each: each.at)
