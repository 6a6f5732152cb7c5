"""The ways that copies of messages go: what each was given and has had, and which messages are missing or too many."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from penstock.accounting.attribution import Balance, Pattern, expected
from penstock.accounting.snapshot import FanoutSnapshot, NamespaceSnapshot, Snapshot


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    kind: str
    """``missing doubled foreign unclear stray`` of messages, ``sum counter`` of counters, ``behind lost twice unknown``
    of the archive."""
    where: str
    """The hop, or the namespace."""
    words: str
    namespace: str = ""
    """Of the message ``id``."""
    id: str = ""
    xid: str = ""


@dataclass
class Branch:
    """A list, the namespaces that take from it, and those that fan out to it, if any do."""

    list: str
    books: Sequence[NamespaceSnapshot]
    fans: Sequence[FanoutSnapshot]
    waiting: int
    """In the list and in pending lists."""
    revived: int = 0
    """Dead letters that came back to the list, as events tell."""
    unread: int = 0
    """Registrations that are not in the archive."""
    named: int = 0
    """Messages that are known to be missing by name."""
    extra: int = 0
    """Messages that are known to be too many."""
    rows: dict[str, int] = field(default_factory=dict)
    """By kind, the events in the archive."""

    @property
    def name(self) -> str:
        return ", ".join(book.namespace for book in self.books)

    @property
    def hop(self) -> str:
        return " -> ".join(filter(None, (", ".join(fan.namespace for fan in self.fans), self.list, self.name)))

    def total(self, metric: str, *fields: str) -> int:
        return sum(book.count(metric, *fields) for book in self.books)

    @property
    def refused(self) -> int:
        return sum(book.refused for book in self.books)

    @property
    def dropped(self) -> int:
        """Copies that the list did not get, or not keep."""
        return sum(fan.count(metric, self.list) for fan in self.fans for metric in ("dead", "dropped"))

    @property
    def delivered(self) -> int:
        return sum(fan.count("delivered", self.list) for fan in self.fans)

    @property
    def arrived(self) -> int:
        return self.total("registered") + self.total("untracked") + self.refused + self.waiting

    @property
    def accepted(self) -> int:
        """Messages that ought to have come here, dead letters that came back not counted."""
        return self.delivered + self.dropped if self.fans else self.arrived - self.revived

    @cached_property
    def over(self) -> int:
        """Messages that have come, more than were given; below 0 fewer. Always 0 where nobody counts what is given.

        Letters of what was never tracked come back without an event: where these may explain it, it is explained.
        """
        if not self.fans:
            return 0
        most = self.arrived - self.delivered - self.revived
        untold = self.total("revived") - self.revived + sum(fan.count("revived") for fan in self.fans)
        return most if most < 0 else max(most - max(untold, 0), 0)

    @property
    def excused(self) -> int:
        """Messages that were never registered here, for reasons that are known, and nobody knows which."""
        early = sum(fan.settled - fan.count("taken", self.list) for fan in self.fans)
        return self.total("untracked") + self.refused + self.waiting + self.dropped + self.unread + max(early, 0)

    @property
    def missing(self) -> int:
        """How many messages that were given have not come."""
        return max(self.extra - self.over, 0)


def branches_of(books: Snapshot, chosen: Sequence[str]) -> list[Branch]:
    """Those of the namespaces ``chosen``, and of all others that take from the same lists."""
    sources = dict.fromkeys(books.tracked[name].source for name in chosen)
    found = []
    for source in sources:
        ours = [book for book in books.tracked.values() if book.source == source]
        waiting = books.waiting.get(source, 0) + sum(sum(book.pending.values()) for book in ours)
        found.append(Branch(source, ours, [fan for fan in books.fans if source in fan.lists], waiting))
    return found


def sibling_groups(all: Sequence[Branch]) -> list[list[Branch]]:
    """Those that have the same messages: all legs of a fan-out that nothing else leads to, where it has several."""
    by_fan: dict[str, list[Branch]] = {}
    for leg in all:
        if len(leg.fans) == 1:
            by_fan.setdefault(leg.fans[0].namespace, []).append(leg)
    return [company for company in by_fan.values() if len(company) > 1]


def compare_branches(company: Sequence[Branch], uneven: Mapping[str, Pattern]) -> list[Finding]:
    """What the legs disagree on: ``uneven`` says how many copies of an xid each has had."""
    patterns = Counter(uneven.values())
    truth = expected(patterns, [Balance(leg.over, leg.excused) for leg in company])
    findings = [_unclear(company, xid, pattern) for xid, pattern in uneven.items() if truth[pattern] is None]
    decided = [(xid, pattern, wanted) for xid, pattern in uneven.items() if (wanted := truth[pattern]) is not None]
    for place, leg in enumerate(company):
        more = [(xid, pattern[place], wanted) for xid, pattern, wanted in decided if pattern[place] > wanted]
        fewer = [(xid, wanted - pattern[place]) for xid, pattern, wanted in decided if pattern[place] < wanted]
        leg.extra = sum(copies - wanted for _, copies, wanted in more)
        findings += [_too_many(leg, *each) for each in more]
        lacking = sum(copies for _, copies in fewer)
        leg.named = min(lacking, leg.missing)
        if leg.missing:
            findings += [_missing(leg, *each, lacking) for each in fewer]
    return findings


def _missing(leg: Branch, xid: str, copies: int, lacking: int) -> Finding:
    sure = lacking <= leg.missing
    many = "" if copies == 1 else f" {copies} times"
    perhaps = "" if sure else f": one of {lacking:,} that have not come, of which {leg.missing:,} are missing"
    return Finding("missing", leg.hop, f"missing{many}{perhaps}", xid=xid)


def _too_many(leg: Branch, xid: str, copies: int, wanted: int) -> Finding:
    if wanted:
        return Finding("doubled", leg.hop, f"doubled: it came {copies} times, {wanted} were given", xid=xid)
    many = "" if copies == 1 else f" {copies} times"
    return Finding("foreign", leg.hop, f"came{many}, but was never given: somebody else has pushed it", xid=xid)


def _unclear(company: Sequence[Branch], xid: str, pattern: Pattern) -> Finding:
    least, most = min(pattern), max(pattern)
    low = ", ".join(leg.name for leg, copies in zip(company, pattern, strict=True) if copies == least)
    high = ", ".join(leg.name for leg, copies in zip(company, pattern, strict=True) if copies == most)
    told = ", ".join(f"{leg.name} {copies}" for leg, copies in zip(company, pattern, strict=True))
    fan = company[0].fans[0].namespace
    return Finding("unclear", fan, f"missing in {low}, or too many in {high} (copies: {told})", xid=xid)
