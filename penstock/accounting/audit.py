"""Conservation: what a hop took is what it delivered, buried, dropped or still holds, for every list it feeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

from penstock.accounting.upgrade import Starts
from penstock.inspect.pending import PendingList, read_pending, texts
from penstock.keys import Keys

COUNTERS: Final = ("taken", "delivered", "dead", "dropped")
"""The metrics that move in the transaction that moves the messages; each has ``count`` and one field a list."""


@dataclass(frozen=True)
class Output:
    """The copies of one list: ``settled`` were owed to it, ``pending`` are going to be, ``lost`` never will."""

    name: str
    settled: int
    delivered: int
    dead: int
    dropped: int
    pending: int
    lost: int = 0
    """Messages that somebody removed before they could be copied."""

    @property
    def taken(self) -> int:
        return self.settled + self.pending + self.lost

    @property
    def difference(self) -> int:
        """Copies missing; below 0 where there are too many."""
        return self.taken - self.delivered - self.dead - self.dropped - self.pending


@dataclass(frozen=True)
class Audit:
    """A namespace at one instant."""

    namespace: str
    messages: int
    """Settled since counting began."""
    pending: dict[str, int]
    """Messages in each pending list."""
    legs: list[Output]
    problems: list[str]
    """Everything that does not add up, each in words; empty is what is promised."""
    notes: list[str]
    """What else a reader has to know."""

    @property
    def holds(self) -> bool:
        return not self.problems


async def audit(redis: "Redis", keys: Keys) -> Audit | None:
    """The sum of ``keys``' hop, on the server of its lists; None where no service ever wrote anything there."""
    names = [keys.lists, *map(keys.metric, (*COUNTERS, "settled"))]
    found, (roles, *counters) = await read_pending(redis, [keys], [("HGETALL", name) for name in names])
    *counters, settled = counters
    if not roles and not any(counters):
        return None
    pending, starts = found[keys.namespace].sure, found[keys.namespace].starts
    problems, notes = pending_problems(keys, pending), pending_notes(starts, pending)
    numbers = {
        name: parse_counters(name, texts(fields), problems) for name, fields in zip(COUNTERS, counters, strict=True)
    }
    counts = {name: fields.pop("count", 0) for name, fields in numbers.items()}
    outs = [name for name, role in texts(roles).items() if role == "out"]
    outs += sorted({name for fields in numbers.values() for name in fields} - set(outs))
    legs = [_output(name, numbers, pending) for name in outs]
    problems += [_describe_imbalance(leg) for leg in legs if leg.difference]
    problems += _disagreements(counts, numbers)
    held = sum(each.counted + each.missing for each in pending)
    if starts.counting and starts.agree:
        left = parse_counters("settled", texts(settled), problems).get("count", 0)
        problems += _uncounted(counts["taken"], left, pending)
    lengths = {each.name: each.messages for each in pending}
    return Audit(keys.namespace, counts["taken"] - held, lengths, legs, problems, notes)


def pending_problems(keys: Keys, pending: Iterable[PendingList]) -> list[str]:
    """Return what is wrong with the pending lists, in words."""
    problems = [each.problem for each in pending if each.problem]
    problems += [_describe_loss(keys, each) for each in pending if each.lost]
    return problems + [
        describe_stray(keys, each.name, each.messages) for each in pending if each.messages and not each.known
    ]


def pending_notes(starts: Starts, pending: Iterable[PendingList]) -> list[str]:
    """Return what else there is to know, in words."""
    left = sum(each.messages for each in pending if each.known and each.owner and not each.alive)
    words = "not registered on this server: one that runs takes them over at its next renewal, or the next that starts"
    held = f"{left:,} message{'s' if left > 1 else ''} in pending lists of instances that are {words}"
    old = "an instance of an older version was started, which does not count what its pending list holds"
    unseen = f"{old}: what somebody removes from one is not missed until only newer instances run"
    return [*([held] if left else []), *([] if starts.agree else [unseen])]


def describe_stray(keys: Keys, name: str, messages: int) -> str:
    """Return in words that nobody takes over what lies in a list, and how to have it done."""
    base, _, id = name.rpartition(":")
    what = f"{name}: {messages:,} message{'s' if messages > 1 else ''} that no instance takes over"
    if not (base and id.isdigit()):
        return f"{what}: none works by a pending list of that name"
    return f"{what}: {id} is not in {keys.owners}. To have one that runs, or starts, do it: ZADD {keys.owners} 0 {id}"


def _describe_loss(keys: Keys, each: PendingList) -> str:
    were, them = ("message was", "it") if each.lost == 1 else ("messages were", "them")
    cause = f"somebody removed {them}, or the list expired"
    way_out = f"HSET {keys.accepted} {each.name} {each.gone}"
    return f"{each.name}: {each.lost:,} {were} taken and not settled, and gone: {cause}. To accept the loss: {way_out}"


def parse_counters(counter: str, fields: Mapping[str, str], problems: list[str]) -> dict[str, int]:
    """The fields of a counter; one that is no whole number is left out, and told among ``problems``."""
    numbers = {}
    for name, value in fields.items():
        try:
            numbers[name] = int(value)
        except ValueError:
            problems.append(f"{counter}: {name} is {value!r}, expected a whole number")
    return numbers


def _output(name: str, numbers: Mapping[str, Mapping[str, int]], pending: Sequence[PendingList]) -> Output:
    settled, delivered, dead, dropped = (numbers[counter].get(name, 0) for counter in COUNTERS)
    held, lost = sum(each.messages for each in pending), sum(each.lost for each in pending)
    return Output(name, settled, delivered, dead, dropped, held, lost)


def _describe_imbalance(leg: Output) -> str:
    amount = f"{leg.difference:,} missing" if leg.difference > 0 else f"{-leg.difference:,} too many"
    parts = f"delivered {leg.delivered:,} + dead {leg.dead:,} + dropped {leg.dropped:,} + pending {leg.pending:,}"
    return f"{leg.name}: taken {leg.taken:,} is not {parts}: {amount}"


def _uncounted(taken: int, settled: int, pending: Sequence[PendingList]) -> list[str]:
    """What entered must have left, or be held."""
    held, gone = sum(each.counted for each in pending), sum(each.missing for each in pending)
    missing = taken - settled - held - gone
    if not missing:
        return []
    amount = f"{missing:,} missing" if missing > 0 else f"{-missing:,} too many"
    return [f"taken {taken:,} is not settled {settled:,} + held {held:,} + gone {gone:,}: {amount}"]


def _disagreements(counts: Mapping[str, int], numbers: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Between a counter's total and its parts: a list added later took less than the service, none took more."""
    problems = [
        f"taken: {name} was owed {owed:,} copies of {counts['taken']:,} messages"
        for name, owed in numbers["taken"].items()
        if owed > counts["taken"]
    ]
    for counter in COUNTERS[1:]:
        parts = sum(numbers[counter].values())
        if parts != counts[counter]:
            problems.append(f"{counter}: count is {counts[counter]:,}, its lists add up to {parts:,}")
    return problems
