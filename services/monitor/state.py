"""State of the watched namespaces, read with as many commands for a million messages in flight as for none."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redis.asyncio import Redis

from penstock.base.encoding import decoded, encoded
from penstock.base.keys import Keys
from penstock.base.shape import parse_shape
from penstock.core.atomic import AtomicRead, replies_of
from penstock.core.connection import hang_up
from penstock.core.metrics import HASHES, parse_metric
from penstock.inspect import pending
from penstock.inspect.hazards import DISK_STATES
from penstock.inspect.link import LinkState, link_state
from penstock.inspect.namespace import Instance, instances
from penstock.inspect.waiting import Waiting

MAX_OLDEST_IDS: Final = 100
"""Maximum number of ids, the oldest first, that are searched for one that is in flight."""


@dataclass(frozen=True)
class ListLength:
    list: str
    role: str
    messages: int


@dataclass(frozen=True)
class NamespaceState:
    """State of one namespace at one instant; ages are seconds by the server's clock."""

    namespace: str
    tracked: bool
    """Whether mdispatch works in it; else ``timeout``, ``in_flight``, ``delayed`` and ``oldest`` mean nothing."""
    timeout: float | None
    """The policy's messageTimeout (s)."""
    in_flight: int
    delayed: int
    outcomes: int
    """Outcomes of tasks of hqueue that wait for their receivers."""
    oldest: float | None
    """Age of the oldest message in flight; 0 if none is, None if its record is gone."""
    lists: list[ListLength]
    instances: list[Instance]
    metrics: dict[str, dict[str, float]]
    """The numeric fields of every hash of ``HASHES``."""
    link: LinkState | None
    """None if no vpush works in it."""
    memory: float = 0
    """Used fraction of the server's maxmemory, or without one of its machine's memory; at 1 it refuses writes."""
    replica: bool = False
    """Whether the server is a replica, which takes no writes."""
    disk_failed: bool = False
    """Whether the server's last write to its disk has failed; then it refuses writes by default."""
    registered: str = ""
    """The service that works in it, or has; empty if none ever did."""
    queues: Sequence[Waiting] = ()
    """What waits for its service, and for programs."""

    @property
    def has(self) -> dict[str, bool]:
        """Return what it has, by ``Metric.of``."""
        http = bool(self.metrics["http"])
        return {
            "all": True,
            "tracked": self.tracked,
            "gateway": bool(self.metrics["gateway"]) or self.registered == "gateway",
            "http": http,
            "hqueue": self.tracked and http,
            "link": self.link is not None,
        }


async def read_states(redis: "Redis", service_redis: "Redis", namespaces: Iterable[str]) -> list[NamespaceState]:
    """Return the state of each of ``namespaces``. Raise ``RedisError``; a key of the wrong type counts as empty."""
    info = await _info(redis)
    if service_redis is not redis:
        await _info(service_redis)
    limit = info.get("maxmemory", 0) or info.get("total_system_memory", 0)
    used = info.get("used_memory", 0) - info.get("mem_not_counted_for_evict", 0)
    memory, replica = used / limit if limit else 0, info.get("role", "master") != "master"
    disk_failed = any(info.get(name, "ok") != "ok" for name in DISK_STATES)
    states = [await _read_state(redis, service_redis, Keys(namespace)) for namespace in namespaces]
    return [replace(state, memory=memory, replica=replica, disk_failed=disk_failed) for state in states]


async def _info(redis: "Redis") -> Any:
    """Return INFO, of which a hosted server may leave fields out; ask a replica anew: its address may have moved."""
    info = await redis.info()
    if info.get("role", "master") != "master":
        await hang_up(redis)
        info = await redis.info()
    return info


async def _read_state(redis: "Redis", service_redis: "Redis", keys: Keys) -> NamespaceState:
    async with AtomicRead(redis) as snapshot:
        snapshot.time()
        snapshot.hgetall(encoded(keys.policy))
        snapshot.hgetall(encoded(keys.lists))
        snapshot.zcard(encoded(keys.deadlines))
        snapshot.zcard(encoded(keys.delayed))
        snapshot.zcard(encoded(keys.outbox))
        snapshot.lrange(encoded(keys.message_ids), -MAX_OLDEST_IDS, -1)
        snapshot.zrange(encoded(keys.deadlines), 0, 0)
        snapshot.hgetall(encoded(keys.link))
        snapshot.hget(encoded(keys.lease), "expires")
        snapshot.get(encoded(keys.shape))
        for name in HASHES:
            snapshot.hgetall(encoded(keys.metric(name)))
        time, policy, named, *counted = await replies_of(snapshot)
    in_flight, delayed, outcomes, tail, first_due, noted, expires, shape, *metrics = counted
    lengths = await _lengths(redis, _roles(keys, policy or {}, named or {}))
    found, _ = await pending.read_pending(redis, [keys], lenient=True)
    lengths += [ListLength(one.name, "pending", one.messages) for one in found[keys.namespace].all if not one.problem]
    now = time[0] + time[1] / 1e6
    return NamespaceState(
        keys.namespace,
        tracked=bool(policy),
        timeout=_numbers(policy).get("messageTimeout"),
        in_flight=in_flight or 0,
        delayed=delayed or 0,
        outcomes=outcomes or 0,
        oldest=await _oldest(redis, keys, tail or [], first_due or [], now),
        lists=lengths,
        instances=await instances(redis, service_redis, keys, lenient=True),
        metrics={name: _numbers(fields) for name, fields in zip(HASHES, metrics, strict=True)},
        link=link_state(noted or {}, (parse_metric(expires) or 0) / 1000 > now, _waiting(lengths), now),
        registered=_registered(shape, policy or {}),
    )


def _registered(shape: bytes | None, policy: dict[bytes, bytes]) -> str:
    """Return the service that ``shape`` names, or that has written the ``policy``; empty if there are neither."""
    if found := parse_shape(shape or b"", ""):
        return found[0]
    return decoded(policy.get(b"keeper", b"mdispatch")) if policy else ""


def _roles(keys: Keys, policy: dict[bytes, bytes], named: dict[bytes, bytes]) -> dict[str, str]:
    """Return the role of every list of the namespace, without the pending lists."""
    roles = {decoded(policy.get(b"done", keys.done)): "done", keys.dead: "dead"} if policy else {}
    return roles | {decoded(name): decoded(role) for name, role in named.items() if role != b"pending"}


async def _lengths(redis: "Redis", roles: dict[str, str]) -> list[ListLength]:
    async with redis.pipeline(transaction=False) as pipeline:
        for name in roles:
            pipeline.llen(encoded(name))
        lengths = await replies_of(pipeline)
    return [
        ListLength(name, role, length)
        for (name, role), length in zip(roles.items(), lengths, strict=True)
        if length is not None
    ]


def _waiting(lengths: list[ListLength]) -> int | None:
    """Return how many messages are not taken or not settled; None if no list of theirs is known."""
    waiting = [one.messages for one in lengths if one.role in ("in", "pending")]
    return sum(waiting) if waiting else None


async def _oldest(redis: "Redis", keys: Keys, tail: list[bytes], first_due: list[bytes], now: float) -> float | None:
    """Return the age of the older of two messages: the oldest of ``tail`` in flight, and the one due first."""
    if not first_due:
        return 0.0
    async with redis.pipeline(transaction=False) as pipeline:
        pipeline.execute_command("ZMSCORE", encoded(keys.deadlines), *tail, *first_due)
        (scores,) = await replies_of(pipeline)
    in_flight = [id for id, score in zip(tail, scores or [], strict=False) if score is not None]
    async with redis.pipeline(transaction=False) as pipeline:
        for id in [*in_flight[-1:], *first_due]:
            pipeline.hmget(encoded(keys.message(decoded(id))), "timestamp", "delivered", "attempt")
        records = await replies_of(pipeline)
    since = [made for record in records if (made := _delivered_first(record or [])) is not None]
    return max(0.0, now - min(since)) if since else None


def _delivered_first(record: list[bytes | None]) -> float | None:
    """Return when a message was first delivered, or registered: the record has only the time of its last delivery."""
    timestamp, delivered, attempt = (parse_metric(value) for value in record or [None] * 3)
    return delivered if delivered is not None and attempt == 1 else timestamp


def _numbers(fields: dict[bytes, bytes] | None) -> dict[str, float]:
    numbers = {decoded(name): parse_metric(value) for name, value in (fields or {}).items()}
    return {name: found for name, found in numbers.items() if found is not None}
