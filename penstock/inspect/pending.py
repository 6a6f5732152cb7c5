"""Find the pending lists of a namespace: their owners, their lengths, what disappeared, and whether they are adopted.

The messages that wait in an mlimit are pending, too, in a sorted set that its instances share.

Only this module finds them. It reads them in one atomic read, together with what the caller compares them with.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redis.asyncio import Redis

from penstock.base.encoding import decoded, decoded_fields, encoded
from penstock.base.keys import Keys, pending_of
from penstock.core.atomic import AtomicRead

COMMANDS_PER_READ: Final = 4_000
"""Commands in one atomic read, if a lenient read is split."""
ReadCommand = tuple[str | bytes | int, ...]
"""A read-only command; its first argument is the key."""


@dataclass(frozen=True)
class PendingList:
    """One pending list; ``owner`` is the id of its instance, None if instances share it."""

    name: str
    base: str
    """The name without the id."""
    owner: str | None
    messages: int
    """Its length."""
    counted: int = 0
    """Messages that the service's scripts added and have not removed."""
    missing: int = 0
    """Messages that the scripts found removed, in total."""
    accepted: int = 0
    """How many of those an operator has accepted as lost."""
    alive: bool = False
    """Whether its owner is registered on this server."""
    known: bool = True
    """Whether an instance works on it, or adopts it at its next heartbeat or start."""
    problem: str = ""
    """Why it cannot be read, in words; empty if it can."""

    @property
    def uncounted(self) -> int:
        """Messages that no script has counted yet: BLMOVE has just moved them, or somebody else added them."""
        return max(self.messages - self.counted, 0)

    @property
    def gone(self) -> int:
        """Messages that somebody else removed, in total."""
        return self.missing + max(self.counted - self.messages, 0)

    @property
    def lost(self) -> int:
        """Removed messages that no operator has accepted as lost."""
        return max(self.gone - self.accepted, 0)


@dataclass(frozen=True)
class NamespacePending:
    """The pending lists of one namespace."""

    all: list[PendingList]
    owners: Sequence[str]
    """Ids of the instances that may have a pending list."""
    bases: Sequence[str]
    """Base names of their pending lists."""


@dataclass(frozen=True)
class _ListNames:
    """The keys that determine which pending lists exist."""

    roles: Mapping[str, str]
    owners: Sequence[str]
    holdings: Mapping[str, str]
    counts: tuple[Mapping[str, str], ...]
    ordered: bool

    @property
    def bases(self) -> list[str]:
        roles = [name for name, role in self.roles.items() if role == "pending"]
        held = (name for holding in self.holdings.values() for names in parse_holdings(holding) for name in names)
        return list(dict.fromkeys([*roles, *held]))

    @property
    def lists(self) -> list[str]:
        """Names of all lists that an instance may work on, and of all that were ever counted."""
        theirs = [pending_of(base, id) for base in self.bases for id in (None, *self.owners)]
        return list(dict.fromkeys([*theirs, *sorted(name for counts in self.counts for name in counts)]))

    def split(self, name: str) -> tuple[str, str | None]:
        """Return the base name and the owner of list ``name``."""
        base, _, id = name.rpartition(":")
        return (base, id) if base in self.bases and id.isdigit() else (name, None)


def _naming_commands(keys: Keys) -> list[ReadCommand]:
    hashes = (keys.lists, keys.holdings, keys.held, keys.metric("missing"), keys.accepted)
    more: list[ReadCommand] = [("ZRANGE", keys.owners, 0, -1), ("EXISTS", keys.lease), ("HGET", keys.policy, "pending")]
    return [*(("HGETALL", name) for name in hashes), *more]


async def read_pending(
    redis: "Redis", namespaces: Iterable[Keys], calls: Sequence[ReadCommand] = (), *, lenient: bool = False
) -> tuple[dict[str, NamespacePending], list[Any]]:
    """Return the pending lists of each namespace, and the replies to ``calls``, from one atomic read.

    Repeat the read until the set of lists does not change. Raise ``WrongType``, naming the key, except for the lists
    themselves, and ``TooMany`` for more lists than one atomic read allows. If ``lenient``, a key of the wrong type is
    empty, with its error among the replies, and a read of more than ``COMMANDS_PER_READ`` commands is split.
    """
    all_keys = list(namespaces)
    own = [_naming_commands(keys) for keys in all_keys]
    fixed = [*(call for each in own for call in each), *calls]
    named: list[_ListNames] = []
    while True:
        before = [(each.lists, each.owners) for each in named]
        asked = [call for keys, each in zip(all_keys, named, strict=False) for call in _list_commands(keys, each)]
        replies = await _read_all(redis, [*fixed, *asked], len(fixed), lenient=lenient)
        step = len(own[0]) if own else 0
        named = [_list_names(replies[place * step : (place + 1) * step]) for place in range(len(all_keys))]
        if [(each.lists, each.owners) for each in named] == before:
            break
    rest = iter(replies[len(fixed) :])
    found = {keys.namespace: _pending(keys, each, rest) for keys, each in zip(all_keys, named, strict=True)}
    return found, replies[len(fixed) - len(calls) : len(fixed)]


def _list_commands(keys: Keys, named: _ListNames) -> list[ReadCommand]:
    alive: list[ReadCommand] = [("EXISTS", keys.instance(id)) for id in named.owners]
    return [*alive, *(("ZCARD" if name == keys.waiting else "LLEN", name) for name in named.lists)]


async def _read_all(redis: "Redis", calls: Sequence[ReadCommand], checked: int, *, lenient: bool) -> list[Any]:
    """Return the replies, errors among them. Raise an error in the first ``checked`` replies, unless ``lenient``."""
    replies: list[Any] = []
    piece = COMMANDS_PER_READ if lenient else len(calls) or 1
    for start in range(0, len(calls), piece):
        async with AtomicRead(redis) as snapshot:
            for command, *words in calls[start : start + piece]:
                snapshot.execute_command(command, *(encoded(word) if isinstance(word, str) else word for word in words))
            replies += await snapshot.execute(raise_on_error=False)
    for reply in () if lenient else replies[:checked]:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _list_names(replies: Sequence[Any]) -> _ListNames:
    replies = [None if isinstance(reply, Exception) else reply for reply in replies]
    roles, holdings, held, missing, accepted, owners, ordered, tracked = replies
    counts = tuple(map(decoded_fields, (held, missing, accepted)))
    counts[1].pop("count", None)
    roles = decoded_fields(roles) | ({decoded(tracked): "pending"} if tracked else {})
    return _ListNames(roles, sorted(map(decoded, owners or ())), decoded_fields(holdings), counts, bool(ordered))


def _pending(keys: Keys, named: _ListNames, replies: Iterator[Any]) -> NamespacePending:
    alive = {id for id in named.owners if next(replies) == 1}
    lists = [_list(named, name, alive, next(replies)) for name in named.lists]
    lists = [replace(each, known=True) if each.name == keys.waiting else each for each in lists]
    return NamespacePending(_in_use(named, lists), named.owners, named.bases)


def _list(named: _ListNames, name: str, alive: Collection[str], reply: Any) -> PendingList:
    base, owner = named.split(name)
    known = base in named.bases and (owner is None or owner in named.owners)
    problems = [str(reply)] if isinstance(reply, Exception) else []
    words = [counts.get(name, "0") for counts in named.counts]
    problems += [f"{name}: counted as {word!r}, expected a whole number" for word in words if not word.isdigit()]
    messages = 0 if isinstance(reply, Exception) else int(reply)
    held, missing, accepted = (int(word) if word.isdigit() else 0 for word in words)
    numbers = (messages, held, missing, accepted)
    return PendingList(name, base, owner, *numbers, owner in alive, known, "; ".join(problems))


def _in_use(named: _ListNames, lists: list[PendingList]) -> list[PendingList]:
    """Return ``lists`` without unused ones of single instances: with a lease, all instances share one list."""
    shared = set(named.bases)
    return [
        each
        for each in lists
        if not named.ordered or each.name in shared or each.messages or each.counted or each.missing or each.problem
    ]


def parse_holdings(holding: str | bytes) -> list[tuple[str, ...]]:
    """Parse an instance's record of its lists, ``[["pending"]]``; return [] if it is malformed."""
    try:
        return [tuple(map(str, names)) for names in json.loads(holding)]
    except (ValueError, TypeError, RecursionError):
        return []


async def stray_lists(redis: "Redis", namespaces: Iterable[Keys]) -> dict[str, list[str]]:
    """Return, by namespace, lists named like a pending list that no instance works on or will adopt.

    Scan all keys once.
    """
    all_keys = list(namespaces)
    before, _ = await read_pending(redis, all_keys, lenient=True)
    bases = {base: keys for keys in all_keys for base in before[keys.namespace].bases}
    seen: dict[str, set[str]] = {}
    async for key in redis.scan_iter("*:[0-9]*", count=1000, _type="LIST"):
        base, _, id = decoded(key).rpartition(":")
        if base in bases and id.isdigit():
            seen.setdefault(bases[base].namespace, set()).add(decoded(key))
    after, _ = await read_pending(redis, [keys for keys in all_keys if keys.namespace in seen], lenient=True)
    return {name: sorted(seen[name] - {each.name for each in pending.all}) for name, pending in after.items()}
