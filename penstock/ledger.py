"""Conservation of tracked messages: what was taken is tracked or not, what is tracked is done, dead or under way."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from penstock.audit import numbers_of
from penstock.keys import Keys, in_use, pending_of
from penstock.names import decoded, encoded
from penstock.snapshot import Snapshot

COUNTERS: Final = ("taken", "registered", "untracked", "done", "done:late", "dead", "expired")
MEASURES: Final = ("sum", "max")
"""Fields of a metric that are seconds, not counts."""


@dataclass(frozen=True)
class Law:
    """``count`` of the whole must be the sum of its parts."""

    whole: str
    count: int
    parts: dict[str, int]

    @property
    def difference(self) -> int:
        """Messages missing; below 0 where there are too many."""
        return self.count - sum(self.parts.values())


@dataclass(frozen=True)
class Ledger:
    """The tracked messages of a namespace at one instant."""

    namespace: str
    messages: int
    """Settled since counting began."""
    pending: dict[str, int]
    """Requests in each pending list."""
    laws: list[Law]
    problems: list[str]
    """Everything that does not add up, each in words; empty is what is promised."""

    @property
    def holds(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class _Instant:
    """What one snapshot read."""

    base: str
    owners: list[str]
    ordered: bool
    counters: dict[str, dict[str, str]]
    in_flight: int
    delayed: int
    lengths: dict[str, Any]


async def ledger(redis: "Redis", keys: Keys) -> Ledger | None:
    """Both laws of ``keys``' messages; None where no policy says that they are tracked."""
    instant = await _read(redis, keys)
    if instant is None:
        return None
    pending = {
        name: length
        for name, length in instant.lengths.items()
        if isinstance(length, int) and in_use(name, length, [instant.base], instant.ordered)
    }
    problems = [str(reply) for reply in instant.lengths.values() if isinstance(reply, Exception)]
    numbers = {name: numbers_of(name, fields, problems) for name, fields in instant.counters.items()}
    laws = _laws(numbers, sum(pending.values()), instant)
    problems += [imbalance(law) for law in laws if law.difference]
    reasons = sum(number for reason, number in numbers["dead"].items() if reason != "count")
    if reasons != (dead := numbers["dead"].get("count", 0)):
        problems.append(f"dead: count is {dead:,}, its reasons add up to {reasons:,}")
    return Ledger(keys.namespace, numbers["taken"].get("count", 0), pending, laws, problems)


def _laws(numbers: Mapping[str, Mapping[str, int]], pending: int, instant: _Instant) -> list[Law]:
    dead = {reason: numbers["dead"].get(reason, 0) for reason in ("poison", "badRequest", "timeout", "failed")}
    count = {name: fields.get("count", 0) for name, fields in numbers.items()}
    taken = {
        "registered": count["registered"],
        "untracked": count["untracked"],
        "dead: poison": dead["poison"],
        "dead: badRequest": dead["badRequest"],
        "pending": pending,
    }
    registered = {
        "done": count["done"],
        "done late": numbers["done:late"].get("completed", 0),
        "dead: timeout": dead["timeout"],
        "dead: failed": dead["failed"],
        "expired": count["expired"],
        "in flight": instant.in_flight,
        "delayed": instant.delayed,
    }
    return [Law("taken", count["taken"] + pending, taken), Law("registered", count["registered"], registered)]


def imbalance(law: Law) -> str:
    """What is wrong with a law, in words."""
    amount = f"{law.difference:,} missing" if law.difference > 0 else f"{-law.difference:,} too many"
    parts = " + ".join(f"{name} {count:,}" for name, count in law.parts.items())
    return f"{law.whole} {law.count:,} is not {parts}: {amount}"


async def _read(redis: "Redis", keys: Keys) -> _Instant | None:
    """All that counts, at one instant; who may have a pending list is read before, and again if that has changed."""
    base, owners = "", list[str]()
    while True:
        instant = await _replies(redis, keys, [pending_of(base, id) for id in [None, *owners]] if base else [])
        if instant is None or (instant.base, instant.owners) == (base, owners):
            return instant
        base, owners = instant.base, instant.owners


async def _replies(redis: "Redis", keys: Keys, lists: list[str]) -> _Instant | None:
    async with Snapshot(redis) as snapshot:
        snapshot.hlen(encoded(keys.policy))
        snapshot.hget(encoded(keys.policy), "pending")
        snapshot.zrange(encoded(keys.owners), 0, -1)
        snapshot.exists(encoded(keys.lease))
        snapshot.zcard(encoded(keys.deadlines))
        snapshot.zcard(encoded(keys.delayed))
        for name in map(keys.metric, COUNTERS):
            snapshot.hgetall(encoded(name))
        for name in lists:
            snapshot.llen(encoded(name))
        replies = await snapshot.execute(raise_on_error=False)
    first = replies[: len(replies) - len(lists)]
    for reply in first:
        if isinstance(reply, Exception):
            raise reply
    size, base, owners, ordered, in_flight, delayed, *hashes = first
    if not size:
        return None
    counters = {name: _counts(fields) for name, fields in zip(COUNTERS, hashes, strict=True)}
    lengths = dict(zip(lists, replies[len(first) :], strict=True))
    held_by = [decoded(id) for id in owners]
    return _Instant(decoded(base or b""), held_by, bool(ordered), counters, in_flight, delayed, lengths)


def _counts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    texts = {decoded(name): decoded(value) for name, value in fields.items()}
    return {name: value for name, value in texts.items() if name not in MEASURES}
