"""Conservation of tracked messages: what was taken is tracked or not, what is tracked is done, dead or under way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

from penstock.accounting.audit import parse_counters, pending_notes, pending_problems
from penstock.encoding import decoded
from penstock.inspect.pending import PendingList, read_pending, texts
from penstock.keys import Keys

COUNTERS: Final = ("taken", "registered", "untracked", "done", "done:late", "dead", "expired")
MEASURES: Final = ("sum", "max")
"""Fields of a metric that are seconds, not counts."""


@dataclass(frozen=True)
class Invariant:
    """``count`` of the whole must be the sum of its parts."""

    whole: str
    count: int
    parts: dict[str, int]

    @property
    def difference(self) -> int:
        """Messages missing; below 0 where there are too many."""
        return self.count - sum(self.parts.values())


@dataclass(frozen=True)
class TrackedAudit:
    """The tracked messages of a namespace at one instant."""

    namespace: str
    messages: int
    """Settled since counting began."""
    pending: dict[str, int]
    """Requests in each pending list."""
    laws: list[Invariant]
    problems: list[str]
    """Everything that does not add up, each in words; empty is what is promised."""
    notes: list[str]
    """What else a reader has to know."""

    @property
    def holds(self) -> bool:
        return not self.problems


async def audit_tracked(redis: "Redis", keys: Keys) -> TrackedAudit | None:
    """Both laws of ``keys``' messages; None where no policy says that they are tracked."""
    calls = [("HLEN", keys.policy), ("HGET", keys.policy, "pending")]
    calls += [("ZCARD", keys.deadlines), ("ZCARD", keys.delayed)]
    calls += [("HGETALL", keys.metric(name)) for name in COUNTERS]
    found, (size, base, in_flight, delayed, *hashes) = await read_pending(redis, [keys], calls)
    if not size:
        return None
    all_lists, starts = found[keys.namespace].sure, found[keys.namespace].starts
    requests = [each for each in all_lists if each.base == decoded(base or b"")]
    problems, notes = pending_problems(keys, all_lists), pending_notes(starts, all_lists)
    numbers = {
        name: parse_counters(name, _counts(fields), problems) for name, fields in zip(COUNTERS, hashes, strict=True)
    }
    under_way = {"in flight": in_flight, "delayed": delayed}
    laws = [_taken_invariant(numbers, requests), _registered_invariant(numbers, under_way)]
    problems += [describe_imbalance(law) for law in laws if law.difference and (starts.agree or law.whole != "taken")]
    reasons = sum(number for reason, number in numbers["dead"].items() if reason != "count")
    if reasons != (dead := numbers["dead"].get("count", 0)):
        problems.append(f"dead: count is {dead:,}, its reasons add up to {reasons:,}")
    settled = numbers["taken"].get("count", 0) - sum(each.counted + each.missing for each in requests)
    lengths = {each.name: each.messages for each in requests}
    return TrackedAudit(keys.namespace, settled, lengths, laws, problems, notes)


def _taken_invariant(numbers: Mapping[str, Mapping[str, int]], requests: Sequence[PendingList]) -> Invariant:
    """What no script has seen yet counts as taken; what an operator knows to be gone is a part."""
    accepted = sum(each.gone - each.lost for each in requests)
    parts = {
        "registered": numbers["registered"].get("count", 0),
        "untracked": numbers["untracked"].get("count", 0),
        "dead: poison": numbers["dead"].get("poison", 0),
        "dead: badRequest": numbers["dead"].get("badRequest", 0),
        "pending": sum(each.messages for each in requests),
        **({"lost: accepted": accepted} if accepted else {}),
    }
    return Invariant("taken", numbers["taken"].get("count", 0) + sum(each.uncounted for each in requests), parts)


def _registered_invariant(numbers: Mapping[str, Mapping[str, int]], under_way: Mapping[str, int]) -> Invariant:
    untaken = numbers["dead"].get("queueTimeout", 0)
    parts = {
        "done": numbers["done"].get("count", 0),
        "done late": numbers["done:late"].get("completed", 0),
        "dead: timeout": numbers["dead"].get("timeout", 0),
        "dead: failed": numbers["dead"].get("failed", 0),
        **({"dead: queueTimeout": untaken} if untaken else {}),
        "expired": numbers["expired"].get("count", 0),
        **under_way,
    }
    return Invariant("registered", numbers["registered"].get("count", 0), parts)


def describe_imbalance(law: Invariant) -> str:
    """What is wrong with a law, in words."""
    amount = f"{law.difference:,} missing" if law.difference > 0 else f"{-law.difference:,} too many"
    parts = " + ".join(f"{name} {count:,}" for name, count in law.parts.items())
    return f"{law.whole} {law.count:,} is not {parts}: {amount}"


def _counts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name: value for name, value in texts(fields).items() if name not in MEASURES}
