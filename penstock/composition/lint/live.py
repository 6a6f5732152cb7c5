"""Lint rules on the servers of a composition: their settings, the types of its keys, and its live instances."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.base.encoding import decoded, decoded_fields, encoded
from penstock.base.errors import WrongType
from penstock.base.keys import Keys
from penstock.base.shape import End, property_of
from penstock.base.urls import server_of
from penstock.composition.findings import Finding, at, at_property, display_name
from penstock.composition.lint.replies import unfit
from penstock.composition.model import Composition, Part
from penstock.inspect.hazards import describe_expiry, expiring_keys
from penstock.inspect.namespace import instances, namespaces, service_keys
from penstock.inspect.ownership import Ownership

OWN: Final = {
    "counter": "string",
    "ids": "list",
    "owners": "zset",
    "lists": "hash",
    "lease": "hash",
    "policy": "hash",
    "events": "stream",
    "done": "list",
    "dead": "list",
    "message_ids": "list",
    "deadlines": "zset",
    "delayed": "zset",
    "sequence": "hash",
    "link": "hash",
}
"""The types of a service's own keys, by their names in ``Keys``."""


@dataclass(frozen=True)
class Address:
    """The URL of a server, and the part that names it."""

    url: str
    part: Part
    end: End | None = None
    property: str = "redis"

    def finding(self, message: str) -> Finding:
        if self.end:
            return at("server", self.part, self.end, message)
        return at_property("server", self.part, self.property, message)


def servers(composition: Composition) -> dict[str, Address]:
    """Return each server of the composition once, by ``Place.server``."""
    found: dict[str, Address] = {}
    for part in composition.parts:
        for address in _addresses(part):
            found.setdefault(server_of(address.url), address)
    return found


async def check(redis: "Redis", composition: Composition, server: str, address: Address) -> list[Finding]:
    """Return the findings on one server, whose client is ``redis``; nothing is changed there."""
    return [
        *[address.finding(words) for words in await _unsafe(redis)],
        *await _wrong_types(redis, composition, server),
        *await _expiring(redis, composition, server),
        *await _absent(redis, composition, server),
        *await _unfit_replies(redis, composition, server),
    ]


async def is_cluster(redis: "Redis") -> bool:
    """Return True if the server is a node of a Redis Cluster."""
    return bool((await redis.info("cluster")).get("cluster_enabled"))


async def keeps(redis: "Redis") -> bool:
    """Return True if the server persists its data, or if this user may not ask."""
    with suppress(ResponseError):
        if (await redis.info("persistence")).get("aof_enabled"):
            return True
        return bool((await redis.config_get("save")).get("save"))
    return True


async def _unsafe(redis: "Redis") -> list[str]:
    """Return why the server may lose messages."""
    found = []
    policy = (await redis.info("memory")).get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(
            f"its server deletes messages when its memory is full: maxmemory-policy {policy}; expected noeviction"
        )
    if not await keeps(redis):
        found.append("its server keeps nothing on disk: a restart loses all messages; expected appendonly yes")
    return found


async def _wrong_types(redis: "Redis", composition: Composition, server: str) -> list[Finding]:
    ends = [(part, end) for part, end in composition.ends("reads", "writes", "keeps") if end.place.server == server]
    own = [
        (part, name, kind)
        for part in composition.parts
        if part.namespace and part.server == server
        for name, kind in OWN.items()
    ]
    names = [end.key for _, end in ends] + [getattr(Keys(str(part.namespace)), name) for part, name, _ in own]
    async with redis.pipeline(transaction=False) as wire:
        for name in names:
            wire.type(encoded(name))
        replies = await wire.execute(raise_on_error=False) if names else []
    types = ["none" if isinstance(reply, ResponseError) else decoded(reply) for reply in replies]
    found = []
    for (part, end), kind in zip(ends, types, strict=False):
        if kind not in ("none", end.kind) and (part.service or kind != "stream"):
            found.append(at("type", part, end, f"{end.key!r} is a {kind} on {server}; expected a {end.kind}"))
    for (part, _, expected), name, kind in zip(own, names[len(ends) :], types[len(ends) :], strict=True):
        if kind not in ("none", expected) and name not in {end.key for _, end in ends}:
            message = f"{name!r} is a {kind} on {server}; expected a {expected}"
            found.append(at_property("type", part, "redisNamespace", message))
    return list(dict.fromkeys(found))


async def _expiring(redis: "Redis", composition: Composition, server: str) -> list[Finding]:
    """Find lists with a TTL: those of the files, and pending lists of instances."""
    ends = [(part, end) for part, end in composition.ends("reads", "writes", "keeps") if end.place.server == server]
    left = await expiring_keys(redis, (end.key for _, end in ends))
    found = [at("expires", part, end, describe_expiry(end.key, left[end.key])) for part, end in ends if end.key in left]
    for part in composition.parts:
        if not part.namespace or part.settings is None or part.server != server:
            continue
        with suppress(ResponseError, WrongType):  # of a wrong type, which is reported, or on another node of a cluster
            lists = [
                one
                for one in await service_keys(redis, Keys(part.namespace))
                if one.name not in {e.key for _, e in ends}
            ]
            left = await expiring_keys(redis, (one.name for one in lists))
            found += [
                at_property("expires", part, "redisNamespace", describe_expiry(one.name, left[one.name], one))
                for one in lists
                if one.name in left
            ]
    return list(dict.fromkeys(found))


async def _absent(redis: "Redis", composition: Composition, server: str) -> list[Finding]:
    """Find services that the composition starts and that have no live instances."""
    found = []
    for part in composition.parts:
        if not (part.namespace and part.command) or server_of(part.urls[1]) != server:
            continue
        try:
            alive = await instances(redis, redis, Keys(part.namespace))
        except (ResponseError, WrongType):  # of a wrong type, which is reported, or on another node of a cluster
            continue
        if not any(one.service == part.service for one in alive):
            message = f"{display_name(part)} has no live instances on {server}"
            found.append(at_property("running", part, "redisNamespace", message))
    return found


async def _unfit_replies(redis: "Redis", composition: Composition, server: str) -> list[Finding]:
    """Find reply lists that belong to registered services outside of the composition."""
    parts = [part for part in composition.parts if part.setting("reply_lists") is not None and part.server == server]
    if not parts:
        return []
    known = {part.namespace for part in composition.parts}
    others = [name for name in await namespaces(redis) if name not in known]
    async with redis.pipeline(transaction=False) as wire:
        for name in others:
            wire.hgetall(encoded(Keys(name).lists))
        replies = await wire.execute(raise_on_error=False) if others else []
    roles = {
        name: decoded_fields(reply)
        for name, reply in zip(others, replies, strict=True)
        if not isinstance(reply, ResponseError)
    }
    return [finding for part in parts for finding in unfit(part, Ownership(roles))]


def _addresses(part: Part) -> Iterator[Address]:
    if part.settings is None:
        yield from (Address(end.url, part, end) for end in part.ends)
        return
    for field, value in part.settings:
        if "redis" in field and isinstance(value, str) and "://" in value:
            yield Address(value, part, property=property_of(field))
