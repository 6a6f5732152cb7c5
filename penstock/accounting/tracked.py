"""Audit of tracked messages: taken = registered + refused + dropped + pending; registered = done + dead + under way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

from penstock.accounting.audit import consumer_notes, pending_notes, pending_problems
from penstock.accounting.invariants import SECONDS, Invariant, parse_counters
from penstock.base.encoding import decoded
from penstock.base.keys import Keys
from penstock.core.metrics import ENDED_REASONS, REFUSED_REASONS, parts_of
from penstock.inspect.pending import PendingList, read_pending

COUNTERS: Final = parts_of("tracked")
ALWAYS_SHOWN: Final = ("timeout", "failed")
"""Reasons of dead letters that are shown even if there are none."""


@dataclass(frozen=True)
class TrackedAudit:
    """Audit of a namespace that tracks messages, from a consistent snapshot."""

    namespace: str
    messages: int
    """Settled since counting began."""
    pending: dict[str, int]
    """Requests in each pending list."""
    laws: list[Invariant]
    problems: list[str]
    """Violated invariants and lost messages, in words; empty if all promises were kept."""
    notes: list[str]
    """Facts that are not problems, in words."""

    @property
    def holds(self) -> bool:
        return not self.problems


async def audit_tracked(redis: "Redis", keys: Keys) -> TrackedAudit | None:
    """Audit the messages of ``keys``; return None if the namespace has no tracking policy."""
    calls = [("HLEN", keys.policy), ("HGET", keys.policy, "pending"), ("HGET", keys.policy, "out")]
    calls += [("ZCARD", keys.deadlines), ("ZCARD", keys.delayed)]
    calls += [("HGETALL", keys.metric(name)) for name in COUNTERS]
    found, (size, base, out, in_flight, delayed, *hashes) = await read_pending(redis, [keys], calls)
    if not size:
        return None
    all_lists = found[keys.namespace].all
    requests = [each for each in all_lists if each.base == decoded(base or b"")]
    problems, notes = pending_problems(keys, all_lists), pending_notes(all_lists)
    pairs = zip(COUNTERS, hashes, strict=True)
    numbers = {name: parse_counters(name, fields, problems, ignored=SECONDS) for name, fields in pairs}
    under_way = {"in flight": in_flight, "delayed": delayed}
    laws = [_taken_invariant(numbers, requests), _registered_invariant(numbers, under_way)]
    problems += [law.problem for law in laws if law.difference]
    reasons = sum(number for reason, number in numbers["dead"].items() if reason != "count")
    if reasons != (dead := numbers["dead"].get("count", 0)):
        problems.append(f"dead: count is {dead:,}, its reasons add up to {reasons:,}")
    settled = numbers["taken"].get("count", 0) - sum(each.counted + each.missing for each in requests)
    lengths = {each.name: each.messages for each in requests}
    notes += await consumer_notes(redis, keys, [decoded(out)] if out else [])
    return TrackedAudit(keys.namespace, settled, lengths, laws, problems, notes)


def _taken_invariant(numbers: Mapping[str, Mapping[str, int]], requests: Sequence[PendingList]) -> Invariant:
    """Count as taken what no script has seen yet; a loss that an operator has accepted is a part."""
    accepted = sum(each.gone - each.lost for each in requests)
    dropped = numbers["dropped"].get("count", 0)
    parts = {
        "registered": numbers["registered"].get("count", 0),
        "untracked": numbers["untracked"].get("count", 0),
        **{f"dead: {reason}": numbers["dead"].get(reason, 0) for reason in REFUSED_REASONS},
        "pending": sum(each.messages for each in requests),
        **({"dropped": dropped} if dropped else {}),
        **({"lost: accepted": accepted} if accepted else {}),
    }
    return Invariant("taken", numbers["taken"].get("count", 0) + sum(each.uncounted for each in requests), parts)


def _registered_invariant(numbers: Mapping[str, Mapping[str, int]], under_way: Mapping[str, int]) -> Invariant:
    dead = {reason: numbers["dead"].get(reason, 0) for reason in ENDED_REASONS}
    parts = {
        "done": numbers["done"].get("count", 0),
        "done late": numbers["done:late"].get("completed", 0),
        **{f"dead: {reason}": count for reason, count in dead.items() if count or reason in ALWAYS_SHOWN},
        "expired": numbers["expired"].get("count", 0),
        **under_way,
    }
    return Invariant("registered", numbers["registered"].get("count", 0), parts)
