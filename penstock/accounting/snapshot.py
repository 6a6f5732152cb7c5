"""What all counters, sets and lists of tracked messages say at one instant, and those of what fans out to them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from penstock.accounting.invariants import SECONDS, parse_counters
from penstock.encoding import decoded, encoded
from penstock.errors import WrongType
from penstock.inspect import pending
from penstock.inspect.namespace import namespaces
from penstock.inspect.pending import ReadCommand
from penstock.keys import Keys

TRACKED_METRICS: Final = (
    *("events", "registered", "untracked", "done", "done:late", "dead"),
    *("expired", "timeout", "failed", "retry", "touched", "revived"),
)
FANOUT_METRICS: Final = ("taken", "settled", "delivered", "dead", "dropped", "revived")
REFUSED_REASONS: Final = ("poison", "badRequest")
"""Reasons of dead letters that were never tracked."""
Counters = dict[str, dict[str, int]]


@dataclass(frozen=True)
class NamespaceSnapshot:
    """A namespace whose messages are tracked."""

    namespace: str
    source: str
    queue: str
    """The lists that its mdispatch takes from, and delivers to."""
    pending: dict[str, int]
    """Messages in each pending list."""
    in_flight: int
    delayed: int
    counters: Counters

    def count(self, metric: str, *fields: str) -> int:
        return sum(self.counters[metric].get(field, 0) for field in fields or ("count",))

    @property
    def told(self) -> dict[str, int]:
        """How many events of each kind there must be: what is counted in the transaction that tells of it."""
        same = {name: self.count(name) for name in ("registered", "done", "expired", "timeout", "failed", "retry")}
        untaken = self.count("dead", "queueTimeout")
        dead = self.count("dead", "timeout", "failed") + untaken
        ends = {"late": self.count("done:late", "completed"), "queueTimeout": untaken, "dead": dead}
        return {**same, **ends, "touched": self.count("touched")}

    @property
    def refused(self) -> int:
        return self.count("dead", *REFUSED_REASONS)

    @property
    def under_way(self) -> int:
        return self.in_flight + self.delayed

    @property
    def gone(self) -> int:
        """Messages that have not ended and are not under way; below 0 where more are under way than can be."""
        told = self.told
        ended = sum(told[kind] for kind in ("done", "late", "dead", "expired"))
        return told["registered"] - ended - self.under_way


@dataclass(frozen=True)
class FanoutSnapshot:
    """A namespace that copies messages to several lists."""

    namespace: str
    lists: tuple[str, ...]
    counters: Counters

    def count(self, metric: str, list: str = "count") -> int:
        return self.counters[metric].get(list, 0)

    @property
    def settled(self) -> int:
        """Messages that left the pending lists; older services counted only these, as taken."""
        return self.count("settled") or self.count("taken")


@dataclass(frozen=True)
class Snapshot:
    """All of them at one instant."""

    at: float
    """Seconds since the epoch, by the server's clock."""
    tracked: dict[str, NamespaceSnapshot]
    fans: list[FanoutSnapshot]
    waiting: dict[str, int]
    """Messages in each list that an mdispatch takes from."""
    problems: dict[str, list[str]]
    """By namespace, counters that are no numbers."""


async def read_snapshot(redis: "Redis") -> Snapshot:
    """Everything that counts, at one instant; what there is, is looked for before, through all keys."""
    names = await namespaces(redis)
    async with redis.pipeline(transaction=False) as wire:
        for keys in map(Keys, names):
            wire.exists(encoded(keys.policy))
            wire.hvals(encoded(keys.lists))
        replies = await wire.execute(raise_on_error=False)
    kinds = list(zip(names, replies[::2], replies[1::2], strict=True))
    tracked = [name for name, has_policy, _ in kinds if has_policy]
    fans = [name for name, has_policy, roles in kinds if not has_policy and b"out" in roles]
    sources: list[str] = []
    while True:
        found, seen = await _instant(redis, tracked, fans, sources)
        if seen == sources:
            return found
        sources = seen


async def _instant(
    redis: "Redis", tracked: Sequence[str], fans: Sequence[str], sources: list[str]
) -> tuple[Snapshot, list[str]]:
    """The books, with the lengths of ``sources``, and which lists are sources in truth."""
    calls: list[ReadCommand] = [("TIME",)]
    for keys in map(Keys, tracked):
        calls += [("HMGET", keys.policy, "source", "pending", "out")]
        calls += [("ZCARD", keys.deadlines), ("ZCARD", keys.delayed)]
        calls += [("HGETALL", keys.metric(name)) for name in TRACKED_METRICS]
    for keys in map(Keys, fans):
        calls += [("HGETALL", keys.lists), *(("HGETALL", keys.metric(name)) for name in FANOUT_METRICS)]
    calls += [("LLEN", name) for name in sources]
    lists, read_all = await pending.read_pending(redis, map(Keys, tracked), calls)
    replies = iter(read_all)
    (seconds, micros), problems = next(replies), dict[str, list[str]]()
    books: dict[str, NamespaceSnapshot] = {}
    for name in tracked:
        words, in_flight, delayed = (next(replies) for _ in range(3))
        source, base, queue = (decoded(word or b"") for word in words)
        held = _lengths(each for each in lists[name].all if each.base == base)
        counters = _counters(name, TRACKED_METRICS, replies, problems)
        books[name] = NamespaceSnapshot(name, source, queue, held, in_flight, delayed, counters)
    read_fans = [
        FanoutSnapshot(name, tuple(_outs(next(replies))), _counters(name, FANOUT_METRICS, replies, problems))
        for name in fans
    ]
    waiting = {name: next(replies) for name in sources}
    at = seconds + micros / 1e6
    seen = sorted({book.source for book in books.values()} - {""})
    return Snapshot(at, books, read_fans, waiting, problems), seen


def _lengths(lists: Iterable[pending.PendingList]) -> dict[str, int]:
    """Raises ``WrongType``."""
    held = {}
    for each in lists:
        if each.problem:
            raise WrongType(each.problem)
        held[each.name] = each.messages
    return held


def _outs(roles: Mapping[bytes, bytes]) -> list[str]:
    return sorted(decoded(name) for name, role in roles.items() if role == b"out")


def _counters(namespace: str, names: Sequence[str], replies: Any, problems: dict[str, list[str]]) -> Counters:
    counters = {}
    for name in names:
        kept = problems.setdefault(namespace, [])
        counters[name] = parse_counters(name, next(replies), kept, ignored=SECONDS)
    return counters
