"""The current state of a namespace: its live instances, registered lists and counters, and its desired shape."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.base.encoding import decoded, decoded_fields, encoded
from penstock.base.errors import WrongType
from penstock.base.keys import Keys
from penstock.base.shape import Place, Use, shape_json
from penstock.composition.model import Part
from penstock.core.metrics import parse_metric
from penstock.inspect import namespace as namespaces
from penstock.inspect.changes import key_of
from penstock.inspect.namespace import instances

RegisteredShape = Mapping[str, Any]
"""The JSON that a service registers, as ``composition.live.registered.shape_json`` writes it."""
MOVED_ROLES: Final = ("in", "answers", "done", "out", "replies")
"""Roles of lists whose messages are moved after a rename; services move their pending lists themselves."""


class ListUse(NamedTuple):
    """A list of a service, its role, and how the service uses it."""

    key: str
    role: str
    use: Use


@dataclass(frozen=True)
class ReloadState:
    """A live instance, and the last orders to reload its settings that it was given and has finished."""

    id: str
    started: float
    """Seconds since the epoch, rounded down."""
    reload_requested: str
    reload_done: str


@dataclass(frozen=True, eq=False)
class CurrentState:
    """A namespace as it runs; ``redis`` is the server of its lists, ``registry`` that of its registrations."""

    part: Part
    redis: "Redis"
    registry: "Redis"
    shape: RegisteredShape | None
    """The shape registered by the last start or reload; None if there is none that can be parsed."""
    desired: RegisteredShape
    """The shape that the service would register with the settings of its file."""
    instances: tuple[ReloadState, ...]
    notes: Mapping[str, str]
    owed: Mapping[str, int]
    """Messages that the service has counted for each list; ``count`` for all of them."""

    @property
    def namespace(self) -> str:
        return str(self.part.namespace)

    @property
    def keys(self) -> Keys:
        return Keys(self.namespace)

    def place(self, key: str) -> Place:
        return Place(key, self.part.server)

    @property
    def fans_out(self) -> bool:
        """Return True if the service may have several outputs, so that a rename cannot be told from a new one."""
        return isinstance(self.part.setting("out"), list)

    @property
    def before(self) -> set[ListUse]:
        return _lists(self.shape) if self.shape else set()

    @property
    def after(self) -> set[ListUse]:
        return _lists(self.desired)

    @property
    def reload_order(self) -> str:
        """Return the prefix of our orders to reload with the desired shape."""
        sorted_json = json.dumps(self.desired, sort_keys=True)
        return f"apply {sha1(sorted_json.encode(), usedforsecurity=False).hexdigest()[:12]}"

    @property
    def reload_unfinished(self) -> bool:
        """Return True if one of our orders is unanswered, or did not reach an instance that was running by then."""
        ours = [one for one in self.instances if one.reload_requested.startswith(self.reload_order)]
        if any(one.reload_requested != one.reload_done for one in ours):
            return True
        first = min((float(one.reload_done.rpartition(" ")[2]) for one in ours), default=0)
        return any(one.started < first for one in self.instances if one not in ours)


async def read_current(part: Part, redis: "Redis", registry: "Redis") -> CurrentState:
    """Return the state of ``part``, which must have a namespace. Raise ``WrongType``, naming the key."""
    keys = Keys(str(part.namespace))
    calls = [("GET", keys.shape), ("HGETALL", key_of(keys.namespace)), ("HGETALL", keys.metric("taken"))]
    async with redis.pipeline(transaction=False) as wire:
        for command, key in calls:
            wire.execute_command(command, encoded(key))
        replies = await wire.execute(raise_on_error=False)
    for (_, key), reply in zip(calls, replies, strict=True):
        if isinstance(reply, ResponseError):
            raise WrongType(f"{key}: {reply}")
    shape, notes, taken = replies
    assert part.settings is not None  # it has a namespace
    return CurrentState(
        part,
        redis,
        registry,
        _parse_shape(shape),
        json.loads(shape_json(part.settings)),
        tuple([await _read_reload(registry, keys, one) for one in await instances(redis, registry, keys)]),
        decoded_fields(notes),
        {decoded(name): int(parse_metric(count) or 0) for name, count in taken.items()},
    )


async def lengths(redis: "Redis", keys: Iterable[str]) -> dict[str, int]:
    """Return the length of each list. Raise ``WrongType``, naming a key that is not a list."""
    names = list(keys)
    async with redis.pipeline(transaction=False) as wire:
        for name in names:
            wire.llen(encoded(name))
        replies = await wire.execute(raise_on_error=False) if names else []
    for name, reply in zip(names, replies, strict=True):
        if isinstance(reply, ResponseError):
            raise WrongType(f"{name} is not a list: {reply}; delete or rename it")
    return dict(zip(names, replies, strict=True))


async def _read_reload(registry: "Redis", keys: Keys, one: namespaces.Instance) -> ReloadState:
    read: Any = registry.hmget(encoded(keys.instance(one.id)), "reload", "reloaded")
    reload_requested, reload_done = (decoded(value or b"") for value in await read)
    return ReloadState(one.id, one.started or 0, reload_requested, reload_done)


def _parse_shape(reply: bytes | None) -> RegisteredShape | None:
    """Return the registered shape; None if there is none, or another version wrote what cannot be parsed."""
    try:
        shape: RegisteredShape = json.loads(decoded(reply or b"null"))
        _lists(shape), shape["service"], shape["watches"]
    except (ValueError, KeyError, TypeError):
        return None
    return shape


def _lists(shape: RegisteredShape) -> set[ListUse]:
    """Return the lists of ``shape`` that are on the service's own server."""
    return {
        ListUse(end["key"], end["role"], end["use"])
        for end in [*shape["ends"], *shape["watched"]]
        if end["kind"] == "list" and end["role"] in MOVED_ROLES and "server" not in end
    }
