"""Conservation: what a hop took is what it delivered, buried, dropped or still holds, for every list it feeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from penstock.keys import Keys, in_use, pending_of
from penstock.names import decoded, encoded
from penstock.snapshot import Snapshot

COUNTERS: Final = ("taken", "delivered", "dead", "dropped")
"""The metrics that move in the transaction that moves the messages; each has ``count`` and one field a list."""


@dataclass(frozen=True)
class Leg:
    """The copies of one list: ``settled`` were owed to it, ``pending`` are going to be."""

    name: str
    settled: int
    delivered: int
    dead: int
    dropped: int
    pending: int

    @property
    def taken(self) -> int:
        return self.settled + self.pending

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
    legs: list[Leg]
    problems: list[str]
    """Everything that does not add up, each in words; empty is what is promised."""

    @property
    def holds(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class _Instant:
    """What one snapshot read."""

    roles: dict[str, str]
    counters: dict[str, dict[str, str]]
    lengths: dict[str, int]
    problems: list[str]


async def audit(redis: "Redis", keys: Keys) -> Audit | None:
    """The sum of ``keys``' hop, on the server of its lists; None where no service ever wrote anything there."""
    instant = await _read(redis, keys)
    if not instant.roles and not any(instant.counters.values()):
        return None
    problems = list(instant.problems)
    numbers = {name: numbers_of(name, fields, problems) for name, fields in instant.counters.items()}
    counts = {name: fields.pop("count", 0) for name, fields in numbers.items()}
    held = sum(instant.lengths.values())
    names = [name for name, role in instant.roles.items() if role == "out"]
    names += sorted({name for fields in numbers.values() for name in fields} - set(names))
    legs = [_leg(name, numbers, held) for name in names]
    problems += [_imbalance(leg) for leg in legs if leg.difference]
    problems += _disagreements(counts, numbers)
    return Audit(keys.namespace, counts["taken"], instant.lengths, legs, problems)


async def _read(redis: "Redis", keys: Keys) -> _Instant:
    """All that counts, at one instant; who may have a pending list is read before, and again if that has changed."""
    roles: dict[str, str] = {}
    owners: list[str] = []
    while True:
        lists = [pending_of(name, id) for name, role in roles.items() if role == "pending" for id in [None, *owners]]
        found, present, ordered, *counters, lengths = await _replies(redis, keys, lists)
        if (_texts(found), [decoded(id) for id in present]) == (roles, owners):
            break
        roles, owners = _texts(found), [decoded(id) for id in present]
    held = dict(zip(lists, lengths, strict=True))
    return _Instant(
        roles,
        {counter: _texts(fields) for counter, fields in zip(COUNTERS, counters, strict=True)},
        {
            name: length
            for name, length in held.items()
            if isinstance(length, int) and in_use(name, length, roles, ordered)
        },
        [str(reply) for reply in lengths if isinstance(reply, Exception)],
    )


async def _replies(redis: "Redis", keys: Keys, lists: list[str]) -> list[Any]:
    """Roles, owners, whether there is a lease, each counter's hash, and the lengths of ``lists``.

    Any of the lengths may be an error that names the list.
    """
    hashes = [keys.lists, *map(keys.metric, COUNTERS)]
    async with Snapshot(redis) as snapshot:
        for name in hashes:
            snapshot.hgetall(encoded(name))
        snapshot.zrange(encoded(keys.owners), 0, -1)
        snapshot.exists(encoded(keys.lease))
        for name in lists:
            snapshot.llen(encoded(name))
        replies = await snapshot.execute(raise_on_error=False)
    for reply in replies[: len(hashes) + 1]:
        if isinstance(reply, Exception):
            raise reply
    roles, *counters = replies[: len(hashes)]
    owners, ordered, *lengths = replies[len(hashes) :]
    return [roles, owners, bool(ordered), *counters, lengths]


def numbers_of(counter: str, fields: Mapping[str, str], problems: list[str]) -> dict[str, int]:
    """The fields of a counter; one that is no whole number is left out, and told among ``problems``."""
    numbers = {}
    for name, value in fields.items():
        try:
            numbers[name] = int(value)
        except ValueError:
            problems.append(f"{counter}: {name} is {value!r}, expected a whole number")
    return numbers


def _leg(name: str, numbers: Mapping[str, Mapping[str, int]], pending: int) -> Leg:
    settled, delivered, dead, dropped = (numbers[counter].get(name, 0) for counter in COUNTERS)
    return Leg(name, settled, delivered, dead, dropped, pending)


def _imbalance(leg: Leg) -> str:
    amount = f"{leg.difference:,} missing" if leg.difference > 0 else f"{-leg.difference:,} too many"
    parts = f"delivered {leg.delivered:,} + dead {leg.dead:,} + dropped {leg.dropped:,} + pending {leg.pending:,}"
    return f"{leg.name}: taken {leg.taken:,} is not {parts}: {amount}"


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


def _texts(fields: Mapping[bytes, Any]) -> dict[str, str]:
    return {decoded(name): decoded(value) for name, value in fields.items()}
