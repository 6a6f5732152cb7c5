"""Audit of a hop: for each output list, taken = delivered + dead + dropped + pending."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from penstock.accounting.invariants import Invariant, parse_counters
from penstock.base.encoding import counted, decoded_fields, decoded_scores, encoded
from penstock.base.keys import Keys
from penstock.core.metrics import parts_of
from penstock.inspect.changes import is_moved
from penstock.inspect.pending import PendingList, read_pending

COUNTERS: Final = parts_of("hop")
"""Metrics that are written in the transaction that moves the messages; fields: ``count``, and one for each list."""


@dataclass(frozen=True)
class Output:
    """Copies for one output list; it was owed ``settled``, and will be owed ``pending``."""

    name: str
    settled: int
    delivered: int
    dead: int
    dropped: int
    pending: int
    lost: int = 0
    """Messages that were removed from a pending list before they could be copied."""

    @property
    def taken(self) -> int:
        return self.settled + self.pending + self.lost

    @property
    def difference(self) -> int:
        """How many copies are missing; below 0 if there are too many."""
        return self.invariant.difference

    @property
    def invariant(self) -> Invariant:
        parts = {"delivered": self.delivered, "dead": self.dead, "dropped": self.dropped, "pending": self.pending}
        return Invariant("taken", self.taken, parts)


@dataclass(frozen=True)
class Audit:
    """Audit of one namespace, from a consistent snapshot."""

    namespace: str
    messages: int
    """Settled since counting began."""
    pending: dict[str, int]
    """Messages in each pending list."""
    legs: list[Output]
    problems: list[str]
    """Violated invariants and lost messages, in words; empty if all promises were kept."""
    notes: list[str]
    """Facts that are not problems, in words."""

    @property
    def holds(self) -> bool:
        return not self.problems


async def audit(redis: "Redis", keys: Keys) -> Audit | None:
    """Audit the hop of ``keys`` on the server of its lists; return None if no service has ever written there."""
    names = [keys.lists, *map(keys.metric, (*COUNTERS, "settled", "start"))]
    found, (roles, *counters) = await read_pending(redis, [keys], [("HGETALL", name) for name in names])
    *counters, settled, start = counters
    if not roles and not any(counters):
        return None
    pending = found[keys.namespace].all
    problems, notes = pending_problems(keys, pending), pending_notes(pending)
    pairs = zip(COUNTERS, counters, strict=True)
    numbers = {name: parse_counters(name, fields, problems) for name, fields in pairs}
    counts = {name: fields.pop("count", 0) for name, fields in numbers.items()}
    outs = [name for name, role in decoded_fields(roles).items() if role == "out"]
    outs += sorted({name for fields in numbers.values() for name in fields} - set(outs))
    legs = [_output(name, numbers, pending) for name in outs]
    problems += [f"{leg.name}: {leg.invariant.problem}" for leg in legs if leg.difference]
    left = parse_counters("settled", settled, problems)
    problems += _total_mismatches(counts, numbers, left)
    held, gone = sum(each.counted for each in pending), sum(each.missing for each in pending)
    if b"count" in start:  # else somebody has deleted the counters, and no service has started since
        taken = Invariant("taken", counts["taken"], {"settled": left.get("count", 0), "held": held, "gone": gone})
        problems += [taken.problem] if taken.difference else []
    lengths = {each.name: each.messages for each in pending}
    notes += await consumer_notes(redis, keys, outs)
    return Audit(keys.namespace, counts["taken"] - held - gone, lengths, legs, problems, notes)


def pending_problems(keys: Keys, pending: Iterable[PendingList]) -> list[str]:
    """Return the problems of the pending lists, in words."""
    problems = [each.problem for each in pending if each.problem]
    problems += [_describe_loss(keys, each) for each in pending if each.lost]
    strays = (each for each in pending if each.messages and not each.known)
    return problems + [describe_stray(keys, each.name, each.messages) for each in strays]


def pending_notes(pending: Iterable[PendingList]) -> list[str]:
    """Return facts about pending lists that are not problems, in words."""
    left = sum(each.messages for each in pending if each.known and each.owner and not each.alive)
    words = "not registered on this server: one that runs takes them over at its next renewal, or the next that starts"
    return [f"{counted(left, 'message')} in pending lists of instances that are {words}"] if left else []


async def consumer_notes(redis: "Redis", keys: Keys, lists: Iterable[str]) -> list[str]:
    """Return, in words, what dead consumers of ``penstock.lists`` hold of lists, or of their former names, and nobody
    takes over since no consumer runs there.
    """
    former: Any = redis.hgetall(keys.changes)
    names = [*lists, *(name for name, note in decoded_fields(await former).items() if is_moved(note))]
    leases_of = [("ZRANGE", f"{name}:consumers", 0, -1, "WITHSCORES") for name in names]
    states_of = [("HGETALL", f"{name}:consumers:steps") for name in names]
    (seconds, _), *found = await _read(redis, [("TIME",), *leases_of, *states_of])
    notes = []
    for name, leases, said in zip(names, found[: len(names)], found[len(names) :], strict=True):
        states = decoded_fields(said or {})
        ends = decoded_scores(leases)
        ahead = [id for id, end in ends.items() if end > seconds * 1e6]
        dead = [*ends] if all(states.get(id, "").startswith("gone:") for id in ahead) else []
        held = await _read(redis, [("LLEN", f"{name}:consumer:{id}") for id in dead])
        if leases is None or None in held:
            what = f"this user may not read {name}:consumers and {name}:consumer:*"
            notes.append(f"{name}: not known what dead consumers of penstock.lists have in hand: {what}")
            continue
        if left := sum(many or 0 for many in held):
            what = f"{counted(left, 'message')} in hand of consumers of penstock.lists that have died"
            notes.append(f"{name}: {what}: the next one that takes from {name} takes them over")
    return notes


async def _read(redis: "Redis", calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the replies; an empty list for a key of another type, None for one that this user may not read."""
    if not calls:
        return []
    async with redis.pipeline(transaction=False) as wire:
        for verb, *words in calls:
            wire.execute_command(verb, *map(encoded, map(str, words)))
        replies = await wire.execute(raise_on_error=False)
    refused = [isinstance(reply, NoPermissionError) for reply in replies]
    found = [[] if isinstance(reply, Exception) else reply for reply in replies]
    return [None if no else reply for no, reply in zip(refused, found, strict=True)]


def describe_stray(keys: Keys, name: str, messages: int) -> str:
    """Return, in words, that no instance takes over the messages in list ``name``, and the command to change that."""
    base, _, id = name.rpartition(":")
    what = f"{name}: {counted(messages, 'message')} that no instance takes over"
    if not (base and id.isdigit()):
        return f"{what}: none works by a pending list of that name"
    return f"{what}: {id} is not in {keys.owners}. To have one that runs, or starts, do it: ZADD {keys.owners} 0 {id}"


def _describe_loss(keys: Keys, each: PendingList) -> str:
    were, them = ("message was", "it") if each.lost == 1 else ("messages were", "them")
    cause = f"somebody removed {them}, or the list expired"
    way_out = f"HSET {keys.accepted} {each.name} {each.gone}"
    return f"{each.name}: {each.lost:,} {were} taken and not settled, and gone: {cause}. To accept the loss: {way_out}"


def _output(name: str, numbers: Mapping[str, Mapping[str, int]], pending: Sequence[PendingList]) -> Output:
    settled, delivered, dead, dropped = (numbers[counter].get(name, 0) for counter in COUNTERS)
    held, lost = sum(each.messages for each in pending), sum(each.lost for each in pending)
    return Output(name, settled, delivered, dead, dropped, held, lost)


def _total_mismatches(
    counts: Mapping[str, int], numbers: Mapping[str, Mapping[str, int]], more: Mapping[str, int]
) -> list[str]:
    """Return counters whose total contradicts their lists.

    A list that was added later was owed less, and never ``more`` than a service that makes messages has noted.
    """
    problems = [
        f"taken: {name} was owed {owed:,} copies of {counts['taken']:,} messages"
        for name, owed in numbers["taken"].items()
        if owed > counts["taken"] + more.get(name, 0)
    ]
    for counter in COUNTERS[1:]:
        parts = sum(numbers[counter].values())
        if parts != counts[counter]:
            problems.append(f"{counter}: count is {counts[counter]:,}, its lists add up to {parts:,}")
    return problems
