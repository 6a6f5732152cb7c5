"""Every message that was accepted, and what became of it: the archive of events held against the counters in Redis.

All counters are read at one instant. Of the archive those events count that had been told by then, which their numbers
say: so nothing that happens meanwhile makes a difference, and sums are exact.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from redis.asyncio import Redis

from penstock.accounting.fanout import Branch, Finding, branches_of, compare_branches, sibling_groups
from penstock.accounting.search import SearchResult, search
from penstock.accounting.snapshot import NamespaceSnapshot, Snapshot
from penstock.accounting.snapshot import read_snapshot as read_books
from penstock.spark import conservation
from penstock.spark.archived import Told, strangers
from penstock.spark.archived import read as read_told
from penstock.spark.conservation import Numbers
from penstock.tracking.events import END_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE: Final = 5.0
"""Seconds without anything new in the archive after which it counts as behind."""


@dataclass(frozen=True)
class Open:
    """A message that has not ended."""

    namespace: str
    id: str
    xid: str
    queue: str
    event: str
    """What happened to it last, and when (s since the epoch)."""
    at: float


@dataclass
class Reconciliation:
    """What was found; it holds where nothing was."""

    books: Snapshot
    legs: list[Branch]
    findings: list[Finding]
    open: list[Open]
    """In flight or delayed, as far as the archive knows them, the oldest first."""
    events: int
    """In the archive, as far as they were looked at."""

    @property
    def holds(self) -> bool:
        return not self.findings

    def rows(self) -> list[dict[str, int]]:
        """Of each leg: what was accepted, with what came back or came twice, is the sum of what became of it."""
        return [self._row(leg) for leg in self.legs]

    def _row(self, leg: Branch) -> dict[str, int]:
        names = {book.namespace for book in leg.books}
        twice = [finding for finding in self.findings if finding.kind == "doubled" and finding.namespace in names]
        return {
            "accepted": leg.accepted,
            "revived": leg.revived,
            **{end: leg.rows[end] for end in END_EVENTS},
            "in flight": sum(book.under_way for book in leg.books),
            "waiting": leg.waiting,
            "refused": leg.refused,
            "untracked": leg.total("untracked"),
            "dropped": leg.dropped,
            "missing": leg.missing + sum(max(book.gone, 0) for book in leg.books),
            "doubled": max(leg.extra, leg.over) + len(twice),
        }


async def reconcile(
    redis: "Redis",
    spark: "SparkSession",
    directory: str,
    namespaces: Sequence[str] = (),
    *,
    live: bool = False,
    patience: float = PATIENCE,
    say: Callable[[str], object] = lambda _: None,
) -> Reconciliation:
    """``namespaces``: only these, which must be tracked; all by default.

    ``live``: look in Redis for messages that the archive does not know of. ``patience``: how long to wait for an
    archive that is behind and does not grow (s). ``say`` is told of each step. Raises ``NoArchive``, ``WrongType``.
    """
    say("reading the counters")
    books = await read_books(redis)
    ways = branches_of(books, list(namespaces or books.tracked))
    chosen = {book.namespace: book for leg in ways for book in leg.books}
    groups = sibling_groups(ways)
    told = await asyncio.to_thread(read_told, spark, directory, chosen, groups, patience, say)
    unknown = {} if namespaces else await asyncio.to_thread(strangers, spark, directory, books)
    for leg in ways:
        leg.revived = sum(told.revived.get((book.namespace, leg.list), 0) for book in leg.books)
        kinds = [told.kinds.get(book.namespace, {}) for book in leg.books]
        leg.rows = {kind: sum(each.get(kind, 0) for each in kinds) for kind in ("registered", *END_EVENTS)}
        leg.unread = max(leg.total("registered") - leg.rows["registered"], 0)
    sought = SearchResult()
    if live:
        say("looking in Redis for what is under way")
        for leg in ways:
            sought = sought | await _sought(redis, leg, groups, told)
    findings = _of_archive(told, unknown)
    for book in (book for name, book in chosen.items() if name not in told.mixed):
        findings += _of_counters(book, told) + _of_messages(book, told, sought, live)
    for company, uneven in zip(groups, told.uneven, strict=True):
        findings += compare_branches(company, sought.evened(company, uneven))
    findings += [finding for leg in ways for finding in _of_leg(leg)]
    counting = [*chosen, *dict.fromkeys(fan.namespace for leg in ways for fan in leg.fans)]
    findings += [Finding("counter", name, problem) for name in counting for problem in books.problems[name]]
    say("naming messages")
    named, under_way = await asyncio.to_thread(_named, told, findings)
    return Reconciliation(books, ways, named, under_way, sum(each.rows for each in told.numbers.values()))


async def _sought(redis: "Redis", leg: Branch, groups: Sequence[Sequence[Branch]], told: Told) -> SearchResult:
    wanted = [uneven for company, uneven in zip(groups, told.uneven, strict=True) if leg in company]
    names = [book.namespace for book in leg.books]
    numbers = {name: told.numbers.get(name, Numbers(0)) for name in names}
    open = {name: set(told.open(name)) for name in names if not numbers[name].lost}
    return await search(
        redis,
        leg,
        {xid for uneven in wanted for xid in uneven},
        open,
        {name: (each.last, each.at) for name, each in numbers.items()},
    )


def _of_archive(told: Told, unknown: dict[str, int]) -> list[Finding]:
    findings = []
    for name, numbers in told.numbers.items():
        if not numbers.last:
            words = f"none of its {numbers.wanted:,} events is archived: does a pipeline watch it?"
            findings.append(Finding("behind", name, words))
        elif numbers.behind:
            words = f"not archived yet: {numbers.behind:,} events; wait until the pipeline has them, and ask again"
            findings.append(Finding("behind", name, words))
    for name, runs in told.holes.items():
        for first, end in runs:
            which = f"event {first:,} is" if first == end else f"events {first:,} to {end:,} are"
            findings.append(Finding("lost", name, f"{which} not in the archive, and later ones are"))
    for run in told.doubles:
        which = f"event {run.first:,} is" if run.first == run.last else f"events {run.first:,} to {run.last:,} are"
        words = f"{which} in the archive {run.rows} times, in {', '.join(run.batches)}"
        if run.entries > 1:
            words += ", and are not the same: the server has lost its counters, or two servers share the archive"
        findings.append(Finding("twice", run.namespace, words))
    if told.cut:
        words = f"more than {conservation.MOST:,} messages are open or differ between legs: only that many were read"
        findings.append(Finding("sum", "archive", words))
    words = "no mdispatch has registered in it on this server, and the archive has {:,} events of it"
    return findings + [Finding("unknown", name, words.format(count)) for name, count in unknown.items()]


def _of_counters(book: NamespaceSnapshot, told: Told) -> list[Finding]:
    """Sums that do not agree, and that missing events do not explain."""
    if book.count("registered") and not book.count("events"):
        return [Finding("behind", book.namespace, "it tells no events (eventCapacity is 0), so none can be archived")]
    archived, whole = told.kinds.get(book.namespace, {}), told.is_whole(book.namespace)
    findings = []
    for kind, count in book.told.items():
        found = archived.get(kind, 0)
        if found > count or (found < count and whole):
            words = f"{kind}: {found:,} in the archive, {count:,} counted"
            findings.append(Finding("sum", book.namespace, words))
    return findings


def _of_messages(book: NamespaceSnapshot, told: Told, sought: SearchResult, live: bool) -> list[Finding]:
    """Messages that were registered twice, have ended twice, or are neither under way nor at an end."""
    where, name = f"{book.namespace} -> {book.queue}", book.namespace
    findings = []
    for each in told.odd:
        if each["namespace"] == name and each["fate"] == "doubled":
            often = [f"{event} {each[event]} times" for event in ("registered", *END_EVENTS) if each[event]]
            words = f"doubled: {', '.join(often)}"
            findings.append(Finding("doubled", where, words, name, each["id"]))
        elif each["namespace"] == name and each["fate"] == "unknown" and told.is_whole(name):
            findings.append(Finding("unknown", name, "ended, and its registration was never told", name, each["id"]))
    gone = sought.gone.get(name, [])
    if not live and book.gone > 0 and told.is_whole(name) and book.gone == len(told.open(name)):
        gone = told.open(name)
    words = "missing: it has not ended, and is neither in flight nor delayed"
    findings += [Finding("missing", where, words, name, id) for id in gone]
    words = "in flight or delayed, though it has ended or was never registered"
    findings += [Finding("stray", where, words, name, id) for id in sought.stray.get(name, [])]
    unnamed = book.gone - len(gone) + len(sought.stray.get(name, []))
    if unnamed > 0:
        tell = "" if live else ": --live names them"
        findings.append(Finding("sum", where, f"{unnamed:,} have not ended and are not under way{tell}"))
    elif unnamed < 0 and not live:
        findings.append(Finding("sum", where, f"{-unnamed:,} more are under way than can be: --live names them"))
    return findings


def _of_leg(leg: Branch) -> list[Finding]:
    """Copies that are missing, or too many, without a name."""
    if missing := leg.missing - leg.named:
        words = f"{missing:,} missing of {leg.delivered:,} that were given, and no other leg tells which"
        return [Finding("sum", leg.hop, words)]
    if (more := leg.over - leg.extra) > 0:
        return [Finding("sum", leg.hop, f"{more:,} more have come than the {leg.delivered:,} that were given")]
    return []


def _named(told: Told, findings: Sequence[Finding]) -> tuple[list[Finding], list[Open]]:
    """Findings with both names of their messages where the archive has them, and what is under way."""
    if told.rows is None:
        return list(findings), []
    about = {(finding.namespace, finding.id) for finding in findings if finding.id}
    under_way = {(each["namespace"], each["id"]) for each in told.odd if each["fate"] == "open"} - about
    last = conservation.last_events(told.rows, under_way | about) if under_way or about else {}
    xids = {finding.xid for finding in findings if finding.xid}
    registered = conservation.registrations(told.rows, xids) if xids else {}
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
