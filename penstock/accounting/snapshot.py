"""Consistent snapshot of the counters, sets and lists of all namespaces that track messages or fan out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from penstock.accounting.invariants import SECONDS, parse_counters
from penstock.base.encoding import decoded, decoded_fields, encoded
from penstock.base.errors import WrongType
from penstock.base.keys import Keys
from penstock.core.metrics import ENDED_REASONS, REFUSED_REASONS, parts_of
from penstock.inspect.namespace import namespaces
from penstock.inspect.pending import PendingList, ReadCommand, read_pending
from penstock.tracking.events import END_EVENTS

TRACKED_METRICS: Final = parts_of("history")
FANOUT_METRICS: Final = parts_of("fan-out")
Counters = dict[str, dict[str, int]]


@dataclass(frozen=True)
class NamespaceSnapshot:
    """A namespace that tracks messages."""

    namespace: str
    source: str
    """The list that its mdispatch takes from."""
    queue: str
    """The list that its mdispatch delivers to."""
    pending: dict[str, int]
    """Messages in each pending list."""
    in_flight: int
    delayed: int
    counters: Counters
    keeper: str = ""
    """The service that looks after these messages itself: ``hqueue``, ``worker``, or none."""

    def count(self, metric: str, *fields: str) -> int:
        return sum(self.counters[metric].get(field, 0) for field in fields or ("count",))

    @property
    def expected_events(self) -> dict[str, int]:
        """Expected number of events by kind, from the counters that are written in the same transaction."""
        same = {name: self.count(name) for name in ("registered", "done", "expired", "timeout", "failed", "retry")}
        untaken, dead = self.count("dead", "queueTimeout"), self.count("dead", *ENDED_REASONS)
        ends = {"late": self.count("done:late", "completed"), "queueTimeout": untaken, "dead": dead}
        return {**same, **ends, "touched": self.count("touched")}

    @property
    def refused(self) -> int:
        """Messages that were never tracked: bad ones, and those whose deadline had passed."""
        return self.count("dead", *REFUSED_REASONS) + self.count("dropped")

    @property
    def under_way(self) -> int:
        return self.in_flight + self.delayed

    @property
    def unaccounted(self) -> int:
        """Messages that have neither ended nor are under way; below 0 if too many are under way."""
        events = self.expected_events
        return events["registered"] - sum(events[kind] for kind in END_EVENTS) - self.under_way


@dataclass(frozen=True)
class FanoutSnapshot:
    """A namespace that copies messages to several lists: a fan-out."""

    namespace: str
    lists: tuple[str, ...]
    counters: Counters

    def count(self, metric: str, list: str = "count") -> int:
        return self.counters[metric].get(list, 0)


@dataclass(frozen=True)
class Snapshot:
    """All tracking namespaces and fan-outs of a server."""

    at: float
    """Seconds since the epoch, by the server's clock."""
    tracked: dict[str, NamespaceSnapshot]
    fanouts: list[FanoutSnapshot]
    waiting: dict[str, int]
    """Messages in each list that an mdispatch takes from."""
    problems: dict[str, list[str]]
    """Counters that are not whole numbers, by namespace."""


async def read_snapshot(redis: "Redis") -> Snapshot:
    """Find the namespaces by scans of all keys, then read everything in one atomic read."""
    names = await _names(redis)
    async with redis.pipeline(transaction=False) as pipeline:
        for keys in map(Keys, names):
            pipeline.exists(encoded(keys.policy))
            pipeline.hvals(encoded(keys.lists))
        replies = await pipeline.execute(raise_on_error=False)
    kinds = list(zip(names, replies[::2], replies[1::2], strict=True))
    tracked = [name for name, has_policy, _ in kinds if has_policy]
    fanouts = [name for name, has_policy, roles in kinds if not has_policy and b"out" in roles]
    sources: list[str] = []
    while True:
        snapshot = await _read(redis, tracked, fanouts, sources)
        found = sorted({each.source for each in snapshot.tracked.values()} - {""})
        if found == sources:
            return snapshot
        sources = found


async def _names(redis: "Redis") -> list[str]:
    """Return all namespaces of services, also of an hqueue that has stopped, which leaves no list of instances."""
    found, policies = set(await namespaces(redis)), list[str]()
    async for key in redis.scan_iter("*:policy", count=1000, _type="HASH"):
        policies.append(decoded(key).removesuffix(":policy"))
    async with redis.pipeline(transaction=False) as pipeline:
        for name in policies:
            pipeline.hexists(encoded(Keys(name).policy), "keeper")
        ours = await pipeline.execute()
    return sorted(found.union(name for name, is_ours in zip(policies, ours, strict=True) if is_ours))


async def _read(redis: "Redis", tracked: Sequence[str], fanouts: Sequence[str], sources: list[str]) -> Snapshot:
    """Return the snapshot, with the lengths of the lists ``sources``."""
    calls: list[ReadCommand] = [("TIME",)]
    for keys in map(Keys, tracked):
        calls += [("HMGET", keys.policy, "source", "pending", "out", "keeper")]
        calls += [("ZCARD", keys.deadlines), ("ZCARD", keys.delayed)]
        calls += [("HGETALL", keys.metric(name)) for name in TRACKED_METRICS]
    for keys in map(Keys, fanouts):
        calls += [("HGETALL", keys.lists), *(("HGETALL", keys.metric(name)) for name in FANOUT_METRICS)]
    calls += [("LLEN", name) for name in sources]
    pending, read_all = await read_pending(redis, map(Keys, tracked), calls)
    replies = iter(read_all)
    (seconds, micros), problems = next(replies), dict[str, list[str]]()
    by_name: dict[str, NamespaceSnapshot] = {}
    for name in tracked:
        words, in_flight, delayed = (next(replies) for _ in range(3))
        source, base, queue, keeper = (decoded(word or b"") for word in words)
        held = _lengths(each for each in pending[name].all if each.base == base)
        counters = _counters(name, TRACKED_METRICS, replies, problems)
        by_name[name] = NamespaceSnapshot(name, source, queue, held, in_flight, delayed, counters, keeper)
    found = []
    for name in fanouts:
        outs = sorted(key for key, role in decoded_fields(next(replies)).items() if role == "out")
        found.append(FanoutSnapshot(name, tuple(outs), _counters(name, FANOUT_METRICS, replies, problems)))
    waiting = {name: next(replies) for name in sources}
    return Snapshot(seconds + micros / 1e6, by_name, found, waiting, problems)


def _lengths(lists: Iterable[PendingList]) -> dict[str, int]:
    """Return the length of each list. Raise ``WrongType``."""
    lengths = {}
    for each in lists:
        if each.problem:
            raise WrongType(each.problem)
        lengths[each.name] = each.messages
    return lengths


def _counters(namespace: str, metrics: Sequence[str], replies: Any, problems: dict[str, list[str]]) -> Counters:
    found = problems.setdefault(namespace, [])
    return {name: parse_counters(name, next(replies), found, ignored=SECONDS) for name in metrics}
