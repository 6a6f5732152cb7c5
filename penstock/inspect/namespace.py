"""Inspect namespaces, read-only: live instances, lists, and the lease."""

import json
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from penstock.base.encoding import decoded, decoded_fields, encoded, parse_number, parse_whole
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicRead, replies_of
from penstock.core.connection import server_time
from penstock.inspect.pending import read_pending
from penstock.tracking.dead_letters import Letter

NAMESPACE_KEYS: Final = {":ids": "LIST", ":owners": "ZSET", ":lists": "HASH"}
"""Suffixes and types of the keys that every namespace has; keys of others may match, too."""

RENEWAL_SLACK_SECONDS: Final = 5.0
"""How late a heartbeat may be."""

INSTANCES_PER_READ: Final = 1_000
"""Instances in one atomic read."""

ROLES: Final = ("in", "pending", "out", "in flight", "delayed", "done", "answers", "replies", "dead")
LENGTHS: Final = {"list": "LLEN", "stream": "XLEN", "zset": "ZCARD", "set": "SCARD", "hash": "HLEN", "string": "STRLEN"}


@dataclass(frozen=True)
class Instance:
    """A live instance. Times are seconds, ages by the server's clock."""

    id: str
    host: str
    pid: str
    service: str
    version: str
    started: float | None
    """Time of its start, since the epoch."""
    renewed_ago: float | None
    ttl: int
    """Seconds until it counts as dead, unless it renews; -1: never."""
    late: bool = False
    """Whether a heartbeat is overdue: the instance is dead, hangs, or cannot reach the server."""
    waits: str = ""
    """What it waits for, in words; empty if it works."""


@dataclass(frozen=True)
class ServiceKey:
    """A key that holds messages of a service."""

    name: str
    role: str
    type: str
    """``none`` if the key does not exist: an empty list."""
    length: int
    oldest: float | None
    """Age of the oldest entry (s), if entries have a time: dead letters and streams."""


@dataclass(frozen=True)
class LeaseState:
    """The lease of ordered services: its holder is the active replica."""

    owner: str
    token: int
    """The fencing token."""
    expires_in: float
    """Seconds; below 0 if the lease has expired."""


async def namespaces(*servers: "Redis") -> list[str]:
    """Return all namespaces in which a service has registered on any of ``servers``, by a scan of all keys."""
    found = set()
    for redis in servers:
        for end, kind in NAMESPACE_KEYS.items():
            async for key in redis.scan_iter(f"*{end}", count=1000, _type=kind):
                if not (key.endswith(b":message:ids") or b":message:xid:" in key):  # keys of messages
                    found.add(decoded(key).removesuffix(end))
    return sorted(found)


async def instances(redis: "Redis", service_redis: "Redis", keys: Keys, *, lenient: bool = False) -> list[Instance]:
    """Return the live instances, newest first, also those that the bounded list ``<ns>:ids`` no longer has.

    Raise ``WrongType``, naming the key; if ``lenient``, such a key is empty.
    """
    async with AtomicRead(service_redis) as listing, AtomicRead(redis) as owning:
        listing.lrange(encoded(keys.ids), 0, -1)
        owning.zrange(encoded(keys.owners), 0, -1)
        (listed,), (owners,) = await _execute(listing, lenient), await _execute(owning, lenient)
    ids = sorted({decoded(id) for id in [*(listed or ()), *(owners or ())]}, key=lambda id: (len(id), id), reverse=True)
    return [
        one
        for start in range(0, len(ids), INSTANCES_PER_READ)
        for one in await _alive(service_redis, keys, ids[start : start + INSTANCES_PER_READ], lenient)
    ]


async def _execute(snapshot: AtomicRead, lenient: bool) -> list[Any]:
    return await (replies_of(snapshot) if lenient else snapshot.execute())


async def _alive(service_redis: "Redis", keys: Keys, ids: list[str], lenient: bool) -> list[Instance]:
    async with AtomicRead(service_redis) as snapshot:
        snapshot.time()
        for id in ids:
            snapshot.hgetall(encoded(keys.instance(id)))
            snapshot.ttl(encoded(keys.instance(id)))
        now, *replies = await _execute(snapshot, lenient)
    seconds = now[0] + now[1] / 1e6
    pairs = zip(ids, replies[::2], replies[1::2], strict=True)
    return [_instance(id, fields, ttl, seconds) for id, fields, ttl in pairs if fields]


@dataclass(frozen=True)
class OtherServers:
    """The servers of a namespace (host, port and database); empty for the server that was asked."""

    lists: str = ""
    registry: str = ""


async def other_servers(redis: "Redis", keys: Keys) -> OtherServers:
    """Return the other servers of lists and registrations, as the namespace's services recorded them on ``redis``."""
    if await redis.exists(encoded(keys.lists)):
        return OtherServers(registry=_registry(await redis.get(encoded(keys.shape))))
    for id in await redis.lrange(encoded(keys.ids), 0, -1):
        if lists := await redis.hget(encoded(keys.instance(decoded(id))), "lists"):
            return OtherServers(lists=decoded(lists))
    return OtherServers()


def _registry(shape: Any) -> str:
    try:
        return str(json.loads(shape or b"{}").get("registry", ""))
    except (ValueError, AttributeError, RecursionError):
        return ""


async def instances_of_service(redis: "Redis", service_redis: "Redis", service: str) -> list[tuple[str, Instance]]:
    """Return the live instances of ``service``, each with its namespace, by a scan of all keys."""
    names = await namespaces(redis, service_redis)
    alive = [(name, one) for name in names for one in await instances(redis, service_redis, Keys(name))]
    return [(name, one) for name, one in alive if one.service == service]


def _instance(id: str, fields: dict[bytes, bytes], ttl: int, now: float) -> Instance:
    words = decoded_fields(fields)
    renewed = parse_number(words.get("renewed")) or parse_number(words.get("started"))
    host, pid, service, version = (words.get(name, "-") for name in ("host", "pid", "service", "version"))
    renewed_ago = None if renewed is None else max(0.0, now - renewed)
    late = is_late(renewed_ago, parse_number(words.get("renew")))
    started, waits = parse_number(words.get("started")), words.get("waiting", "")
    return Instance(id, host, pid, service, version, started, renewed_ago, ttl, late, waits)


def is_late(renewed_ago: float | None, renew: float | None) -> bool:
    """Return True if an instance that renews every ``renew`` seconds is overdue; False if a value is unknown."""
    return renewed_ago is not None and renew is not None and renewed_ago > renew + RENEWAL_SLACK_SECONDS


async def service_keys(redis: "Redis", keys: Keys) -> list[ServiceKey]:
    """Return the lists that the namespace's services registered, and all pending lists in use.

    A namespace that tracks messages also has the sets of those in flight and delayed. Raise ``WrongType``.
    """
    found, (named,) = await read_pending(redis, [keys], [("HGETALL", keys.lists)], lenient=True)
    if isinstance(named, Exception):
        raise named
    roles = {name: role for name, role in decoded_fields(named).items() if role != "pending"}
    roles |= {each.name: "pending" for each in found[keys.namespace].all}
    if await redis.exists(encoded(keys.policy)):
        roles |= {keys.deadlines: "in flight", keys.delayed: "delayed"}
    named = sorted(roles.items(), key=lambda pair: ROLES.index(pair[1]) if pair[1] in ROLES else len(ROLES))
    return [await _service_key(redis, name, role) for name, role in named]


async def _service_key(redis: "Redis", name: str, role: str) -> ServiceKey:
    key = encoded(name)
    kind = decoded(await redis.type(key))
    length = await redis.execute_command(LENGTHS[kind], key) if kind in LENGTHS else 0
    return ServiceKey(name, role, kind, length, await _oldest(redis, key, kind, role))


async def _oldest(redis: "Redis", key: bytes, kind: str, role: str) -> float | None:
    made: float | None = None
    if kind == "list" and role == "dead":
        letter: Any = await redis.lindex(key, -1)
        at = Letter(letter or b"").at
        made = None if at is None else at * 1000
    elif kind == "stream":
        entries: Any = await redis.xrange(key, count=1)
        made = int(entries[0][0].partition(b"-")[0]) if entries else None
    if made is None:
        return None
    return max(0.0, await server_time(redis) - made / 1000)


async def read_hash(redis: "Redis", key: str) -> dict[bytes, bytes]:
    """Return the fields of a hash, none without one. Raise ``WrongType`` with its name if it is no hash."""
    async with AtomicRead(redis) as read:
        read.hgetall(key)
        [fields] = await read.execute()
    return dict(fields)


async def read_lease(redis: "Redis", keys: Keys) -> LeaseState | None:
    """Return the lease; None if no service of the namespace is ordered."""
    fields = await read_hash(redis, keys.lease)
    if not fields.get(b"owner"):
        return None
    expires = (parse_number(fields.get(b"expires")) or 0) / 1000
    token = parse_whole(fields.get(b"token")) or 0
    return LeaseState(decoded(fields[b"owner"]), token, expires - await server_time(redis))
