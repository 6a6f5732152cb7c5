"""Branches of a fan-out: copies owed, copies received, and which messages are missing or duplicated."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Final

from penstock.accounting.snapshot import FanoutSnapshot, NamespaceSnapshot, Snapshot

Pattern = tuple[int, ...]
"""How many copies of a message each branch has had: ``(1, 0)``, one missing in the second or too many in the first."""
MAX_GUESSES: Final = 1_024
"""Guesses of what was given that are compared with the sums."""


@dataclass(frozen=True)
class Finding:
    """A discrepancy, as ``penstock reconcile`` reports it."""

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
    """A list, the namespaces that take from it, and the fan-outs that fill it, if any."""

    list: str
    consumers: Sequence[NamespaceSnapshot]
    fanouts: Sequence[FanoutSnapshot]
    waiting: int
    """Messages in the list and in pending lists."""
    revived: int = 0
    """Dead letters that were returned to the list, according to events."""
    unread: int = 0
    """Registrations that are not in the archive."""
    named: int = 0
    """Missing messages that are known by name."""
    extra: int = 0
    """Surplus messages that are known by name."""
    rows: dict[str, int] = field(default_factory=dict)
    """Events in the archive, by kind."""

    @property
    def name(self) -> str:
        return ", ".join(consumer.namespace for consumer in self.consumers)

    @property
    def hop(self) -> str:
        fanouts = ", ".join(fanout.namespace for fanout in self.fanouts)
        return " -> ".join(filter(None, (fanouts, self.list, self.name)))

    def total(self, metric: str, *fields: str) -> int:
        return sum(consumer.count(metric, *fields) for consumer in self.consumers)

    @property
    def refused(self) -> int:
        return sum(consumer.refused for consumer in self.consumers)

    @property
    def dropped(self) -> int:
        """Copies that the list did not get, or did not keep."""
        return sum(fanout.count(metric, self.list) for fanout in self.fanouts for metric in ("dead", "dropped"))

    @property
    def delivered(self) -> int:
        """Copies that the list got, without those that mbalance took back from it."""
        return sum(
            fanout.count("delivered", self.list) - fanout.count("rebalanced", self.list) for fanout in self.fanouts
        )

    @property
    def arrived(self) -> int:
        return self.total("registered") + self.total("untracked") + self.refused + self.waiting

    @property
    def accepted(self) -> int:
        """Messages owed to this branch, without returned dead letters."""
        return self.delivered + self.dropped if self.fanouts else self.arrived - self.revived

    @cached_property
    def over(self) -> int:
        """Surplus messages (negative: shortfall); 0 if no upstream counts exist.

        Returned letters of untracked messages leave no event, so they may account for part of the surplus.
        """
        if not self.fanouts:
            return 0
        surplus = self.arrived - self.delivered - self.revived
        without_event = self.total("revived") - self.revived + sum(fanout.count("revived") for fanout in self.fanouts)
        return surplus if surplus < 0 else max(surplus - max(without_event, 0), 0)

    @property
    def excused(self) -> int:
        """Upper bound on messages that were not registered here for known reasons, without a known name."""
        early = sum(fanout.count("settled") - fanout.count("taken", self.list) for fanout in self.fanouts)
        return self.total("untracked") + self.refused + self.waiting + self.dropped + self.unread + max(early, 0)

    @property
    def missing(self) -> int:
        """How many messages were delivered to the list and have not arrived."""
        return max(self.extra - self.over, 0)


def branches_of(snapshot: Snapshot, chosen: Sequence[str]) -> list[Branch]:
    """Return the branches of the namespaces ``chosen``, each with all namespaces that take from its list.

    Tasks of hqueue and jobs come from no list: each of their namespaces is a branch of its own.
    """
    branches = []
    wanted = [snapshot.tracked[name] for name in chosen]
    for source, alone in dict.fromkeys((each.source, "" if each.source else each.namespace) for each in wanted):
        consumers = [
            each for each in snapshot.tracked.values() if each.source == source and alone in ("", each.namespace)
        ]
        waiting = snapshot.waiting.get(source, 0) + sum(sum(each.pending.values()) for each in consumers)
        fanouts = [fanout for fanout in snapshot.fanouts if source in fanout.lists]
        branches.append(Branch(source, consumers, fanouts, waiting))
    return branches


def sibling_groups(branches: Sequence[Branch]) -> list[list[Branch]]:
    """Return groups of branches that get the same messages: those that one fan-out alone fills, if it has several."""
    by_fanout: dict[str, list[Branch]] = {}
    for branch in branches:
        if len(branch.fanouts) == 1:
            by_fanout.setdefault(branch.fanouts[0].namespace, []).append(branch)
    return [siblings for siblings in by_fanout.values() if len(siblings) > 1]


def compare_branches(siblings: Sequence[Branch], uneven: Mapping[str, Pattern]) -> list[Finding]:
    """Return what ``siblings`` disagree on, and set their ``extra`` and ``named``.

    ``uneven`` gives, by xid, how many copies of a message each of them has had.
    """
    truth = given_copies(Counter(uneven.values()), [(branch.over, branch.excused) for branch in siblings])
    findings = [_unclear(siblings, xid, pattern) for xid, pattern in uneven.items() if truth[pattern] is None]
    decided = [(xid, pattern, owed) for xid, pattern in uneven.items() if (owed := truth[pattern]) is not None]
    for place, branch in enumerate(siblings):
        more = [(xid, pattern[place], owed) for xid, pattern, owed in decided if pattern[place] > owed]
        fewer = [(xid, owed - pattern[place]) for xid, pattern, owed in decided if pattern[place] < owed]
        branch.extra = sum(copies - owed for _, copies, owed in more)
        findings += [_too_many(branch, *each) for each in more]
        absent = sum(copies for _, copies in fewer)
        branch.named = min(absent, branch.missing)
        if branch.missing:
            findings += [_missing(branch, *each, absent) for each in fewer]
    return findings


def given_copies(patterns: Mapping[Pattern, int], sums: Sequence[tuple[int, int]]) -> dict[Pattern, int | None]:
    """Return how many copies the messages of each pattern were given, each of them alike; None if the sums do not tell.

    ``patterns`` gives the number of messages of each, ``sums`` the ``over`` and ``excused`` of each branch. Only if
    nothing else fits the sums, a message may have been given to no branch, but pushed by somebody else.
    """
    for least in (1, 0):
        choices = [[copies for copies in set(pattern) if copies >= least] for pattern in patterns]
        few = prod(map(len, choices)) <= MAX_GUESSES
        guesses = product(*choices) if few else [tuple(map(max, patterns))]
        if fitting := [guess for guess in guesses if _fits(dict(zip(patterns, guess, strict=True)), patterns, sums)]:
            found = map(set, zip(*fitting, strict=True))
            return {pattern: min(one) if len(one) == 1 else None for pattern, one in zip(patterns, found, strict=True)}
    return dict.fromkeys(patterns)


def _fits(guess: Mapping[Pattern, int], patterns: Mapping[Pattern, int], sums: Sequence[tuple[int, int]]) -> bool:
    """Return whether each branch has had as many copies more than in ``guess`` as its sums allow."""
    more = [sum((each[place] - guess[each]) * many for each, many in patterns.items()) for place in range(len(sums))]
    return all(over - excused <= one <= max(over, 0) for one, (over, excused) in zip(more, sums, strict=True))


def _missing(branch: Branch, xid: str, copies: int, absent: int) -> Finding:
    sure = absent <= branch.missing
    many = "" if copies == 1 else f" {copies} times"
    perhaps = "" if sure else f": one of {absent:,} that have not come, of which {branch.missing:,} are missing"
    return Finding("missing", branch.hop, f"missing{many}{perhaps}", xid=xid)


def _too_many(branch: Branch, xid: str, copies: int, owed: int) -> Finding:
    if owed:
        return Finding("doubled", branch.hop, f"doubled: it came {copies} times, {owed} were given", xid=xid)
    many = "" if copies == 1 else f" {copies} times"
    return Finding("foreign", branch.hop, f"came{many}, but was never given: somebody else has pushed it", xid=xid)


def _unclear(siblings: Sequence[Branch], xid: str, pattern: Pattern) -> Finding:
    pairs = [(branch.name, copies) for branch, copies in zip(siblings, pattern, strict=True)]
    low = ", ".join(name for name, copies in pairs if copies == min(pattern))
    high = ", ".join(name for name, copies in pairs if copies == max(pattern))
    counts = ", ".join(f"{name} {copies}" for name, copies in pairs)
    fanout = siblings[0].fanouts[0].namespace
    return Finding("unclear", fanout, f"missing in {low}, or too many in {high} (copies: {counts})", xid=xid)
