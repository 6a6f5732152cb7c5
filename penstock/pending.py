"""The pending lists of a namespace: whose they are, what they hold, and what has disappeared from them.

Everything is read at one instant, together with what the caller wants to hold it against.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio import Redis

from penstock.agreement import Starts
from penstock.keys import Keys, pending_of
from penstock.names import decoded, encoded
from penstock.snapshot import Snapshot

Call = tuple[str | bytes | int, ...]
"""A command that only reads; its first argument is the key."""


@dataclass(frozen=True)
class PendingList:
    """One list; ``owner`` is the id of the instance that works on it, None where instances share it."""

    name: str
    base: str
    """Its name without the id."""
    owner: str | None
    messages: int
    """How many it holds."""
    counted: int = 0
    """How many the scripts of the service have put there and not removed."""
    missing: int = 0
    """How many the scripts have found gone, at any time."""
    accepted: int = 0
    """How many of those an operator knows about."""
    problem: str = ""
    """Why it cannot be read."""

    @property
    def uncounted(self) -> int:
        """Messages that no script has seen yet: they came by BLMOVE just now, or somebody else put them there."""
        return max(self.messages - self.counted, 0)

    @property
    def gone(self) -> int:
        """Messages that somebody has removed, at any time."""
        return self.missing + max(self.counted - self.messages, 0)

    @property
    def lost(self) -> int:
        """Those that are gone, without those that an operator knows about."""
        return max(self.gone - self.accepted, 0)


@dataclass(frozen=True)
class Pending:
    """The pending lists of one namespace."""

    all: list[PendingList]
    starts: Starts

    @property
    def sure(self) -> list[PendingList]:
        """All of them, without a loss that may be none: an older instance takes lists over and does not say so."""
        if self.starts.agree:
            return self.all
        return [replace(each, counted=min(each.counted, each.messages)) for each in self.all]


@dataclass(frozen=True)
class _Named:
    """What says which lists there are."""

    roles: Mapping[str, str]
    owners: Sequence[str]
    holdings: Mapping[str, str]
    counts: tuple[Mapping[str, str], ...]
    ordered: bool
    starts: Starts

    @property
    def bases(self) -> list[str]:
        roles = [name for name, role in self.roles.items() if role == "pending"]
        return list(dict.fromkeys([*roles, *(name for said in self.holdings.values() for name in _names(said))]))

    @property
    def lists(self) -> list[str]:
        """All that instances may work on, and all that were ever counted."""
        theirs = [pending_of(base, id) for base in self.bases for id in (None, *self.owners)]
        return list(dict.fromkeys([*theirs, *sorted(name for counts in self.counts for name in counts)]))

    def split(self, name: str) -> tuple[str, str | None]:
        """The base and the owner of a list."""
        base, _, id = name.rpartition(":")
        return (base, id) if base in self.bases and id.isdigit() else (name, None)


def _calls(keys: Keys) -> list[Call]:
    hashes = (keys.lists, keys.holdings, keys.held, keys.metric("missing"), keys.accepted, keys.metric("start"))
    more: list[Call] = [("ZRANGE", keys.owners, 0, -1), ("EXISTS", keys.lease), ("HGET", keys.policy, "pending")]
    return [*(("HGETALL", name) for name in hashes), *more]


async def read(
    redis: "Redis", namespaces: Iterable[Keys], calls: Sequence[Call] = ()
) -> tuple[dict[str, Pending], list[Any]]:
    """The pending lists of each namespace, and the replies to ``calls``, at one instant.

    Raises ``WrongType``, naming the key, except for the lists themselves.
    """
    all_keys = list(namespaces)
    own = [_calls(keys) for keys in all_keys]
    lists: list[list[str]] = [[] for _ in all_keys]
    while True:
        lengths: list[Call] = [("LLEN", name) for names in lists for name in names]
        fixed = [*(call for each in own for call in each), *calls]
        replies = await _at_once(redis, [*fixed, *lengths], may_fail=len(lengths))
        step = len(own[0]) if own else 0
        named = [_named(replies[place * step : (place + 1) * step]) for place in range(len(all_keys))]
        if [each.lists for each in named] == lists:
            break
        lists = [each.lists for each in named]
    found = iter(replies[len(fixed) :])
    result = {
        keys.namespace: Pending(_in_use(each, [_list(each, name, next(found)) for name in each.lists]), each.starts)
        for keys, each in zip(all_keys, named, strict=True)
    }
    return result, replies[len(fixed) - len(calls) : len(fixed)]


async def _at_once(redis: "Redis", calls: Sequence[Call], may_fail: int) -> list[Any]:
    """The last ``may_fail`` replies may be errors."""
    async with Snapshot(redis) as snapshot:
        for command, *words in calls:
            snapshot.execute_command(command, *(encoded(word) if isinstance(word, str) else word for word in words))
        replies = await snapshot.execute(raise_on_error=False)
    for reply in replies[: len(calls) - may_fail]:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _named(replies: Sequence[Any]) -> _Named:
    roles, holdings, held, missing, accepted, start, owners, ordered, tracked = replies
    counts = tuple(map(texts, (held, missing, accepted)))
    counts[1].pop("count", None)
    roles = texts(roles) | ({decoded(tracked): "pending"} if tracked else {})
    starts = Starts.read(texts(start))
    return _Named(roles, [decoded(id) for id in owners], texts(holdings), counts, bool(ordered), starts)


def _list(named: _Named, name: str, reply: Any) -> PendingList:
    base, owner = named.split(name)
    problems = [str(reply)] if isinstance(reply, Exception) else []
    words = [counts.get(name, "0") for counts in named.counts]
    problems += [f"{name}: counted as {word!r}, expected a whole number" for word in words if not word.isdigit()]
    messages = 0 if isinstance(reply, Exception) else int(reply)
    held, missing, accepted = (int(word) if word.isdigit() else 0 for word in words)
    return PendingList(name, base, owner, messages, held, missing, accepted, "; ".join(problems))


def _in_use(named: _Named, lists: list[PendingList]) -> list[PendingList]:
    """Without those that nobody works on and nothing is known of: with a lease, all instances share one list."""
    shared = set(named.bases)
    return [
        each
        for each in lists
        if not named.ordered or each.name in shared or each.messages or each.counted or each.missing or each.problem
    ]


def _names(said: str) -> list[str]:
    """What an instance has said of its lists: ``[["pending"]]``; nothing where that cannot be understood."""
    try:
        return [name for names in json.loads(said) for name in names if isinstance(name, str)]
    except (ValueError, TypeError):
        return []


def texts(fields: Mapping[bytes, Any]) -> dict[str, str]:
    return {decoded(name): decoded(value) for name, value in fields.items()}
