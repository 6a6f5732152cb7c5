"""One namespace of a composition as it is on its servers, beside what its file wants."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.composition.draw.sketch import home
from penstock.composition.live.registered import shape_json
from penstock.composition.model import Part, Place, Use
from penstock.composition.rollout.notes import key_of
from penstock.encoding import decoded, encoded
from penstock.errors import WrongType
from penstock.inspect import namespace as namespaces
from penstock.inspect.namespace import instances
from penstock.keys import Keys
from penstock.metrics import number

Shape = Mapping[str, Any]
"""What a service has registered of itself, as ``topology.registered`` writes it."""
MOVED: Final = ("in", "answers", "done", "out", "replies")
"""Roles of lists whose messages are moved with a change of names; services see to what they have in hand."""


class Listed(NamedTuple):
    """A list of a service, the role it has there and what the service does with it."""

    key: str
    role: str
    use: Use


@dataclass(frozen=True)
class Instance:
    """A live one, and the last orders to read its settings anew that it has got and obeyed."""

    id: str
    started: float
    """Seconds since the epoch, rounded down."""
    ordered: str
    obeyed: str


@dataclass(frozen=True, eq=False)
class Present:
    """``redis`` is the server of the lists, ``registry`` the one of the registrations."""

    part: Part
    redis: "Redis"
    registry: "Redis"
    shape: Shape | None
    """What the service that started or reloaded last has registered; None where none that says so ever did."""
    wanted: Shape
    """What it would register by its file."""
    instances: tuple[Instance, ...]
    notes: Mapping[str, str]
    owed: Mapping[str, int]
    """Copies that the service has counted, by list, and of all messages ``count``."""

    @property
    def namespace(self) -> str:
        return str(self.part.namespace)

    @property
    def keys(self) -> Keys:
        return Keys(self.namespace)

    def place(self, key: str) -> Place:
        return Place(key, home(self.part))

    @property
    def fans_out(self) -> bool:
        """Whether the service may have any number of outputs, so that nobody knows which of them became which."""
        return isinstance(getattr(self.part.settings, "out", None), list)

    @property
    def before(self) -> set[Listed]:
        return _lists(self.shape) if self.shape else set()

    @property
    def after(self) -> set[Listed]:
        return _lists(self.wanted)

    @property
    def order(self) -> str:
        """How an order of ours to work by this shape begins."""
        text = json.dumps(self.wanted, sort_keys=True)
        return f"apply {sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]}"

    @property
    def disagrees(self) -> bool:
        """Whether an order of ours was not answered yet, or has reached some instances but not others before it."""
        ours = [one for one in self.instances if one.ordered.startswith(self.order)]
        if any(one.ordered != one.obeyed for one in ours):
            return True
        first = min((float(one.obeyed.rpartition(" ")[2]) for one in ours), default=0)
        return any(one.started < first for one in self.instances if one not in ours)


async def look(part: Part, redis: "Redis", registry: "Redis") -> Present:
    """What there is of ``part``, which has a namespace. Raises ``WrongType``."""
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
    return Present(
        part,
        redis,
        registry,
        _understood(shape),
        json.loads(shape_json(part.settings)),
        tuple([await _ordered(registry, keys, one) for one in await instances(redis, registry, keys)]),
        {decoded(name): decoded(note) for name, note in notes.items()},
        {decoded(name): int(number(count) or 0) for name, count in taken.items()},
    )


async def lengths(redis: "Redis", keys: Iterable[str]) -> dict[str, int]:
    """Messages in each list. Raises ``WrongType``, naming the key that is none."""
    names = list(keys)
    async with redis.pipeline(transaction=False) as wire:
        for name in names:
            wire.llen(encoded(name))
        replies = await wire.execute(raise_on_error=False) if names else []
    for name, reply in zip(names, replies, strict=True):
        if isinstance(reply, ResponseError):
            raise WrongType(f"{name} is no list: {reply}; delete or rename it")
    return dict(zip(names, replies, strict=True))


async def _ordered(registry: "Redis", keys: Keys, one: namespaces.Instance) -> Instance:
    read: Any = registry.hmget(encoded(keys.instance(one.id)), "reload", "reloaded")
    ordered, obeyed = (decoded(value or b"") for value in await read)
    return Instance(one.id, one.started or 0, ordered, obeyed)


def _understood(reply: bytes | None) -> Shape | None:
    """None for what another version may have written."""
    try:
        shape: Shape = json.loads(decoded(reply or b"null"))
        _lists(shape), shape["service"], shape["watches"]
    except (ValueError, KeyError, TypeError):
        return None
    return shape


def _lists(shape: Shape) -> set[Listed]:
    """Those on the service's own server."""
    return {
        Listed(end["key"], end["role"], end["use"])
        for end in [*shape["ends"], *shape["watched"]]
        if end["kind"] == "list" and end["role"] in MOVED and "server" not in end
    }
