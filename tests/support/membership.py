"""Instances of a namespace without processes: registries, pending lists and registrations that a test controls."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import structlog
from redis.asyncio import Redis

from common.orphans import Orphans
from common.registry import Registry
from penstock.base.encoding import decoded
from penstock.base.keys import Keys
from services.mpush.settings import Settings
from tests.support.given import made

KEYS = Keys("demo:mpush")


def settings(**more: Any) -> Settings:
    return made(redis_namespace=KEYS.namespace, **more)


def registry(redis: "Redis", pid: object = "self", **more: Any) -> Registry:
    """Return a registry before its registration, for another process of this host if ``pid`` is given."""
    made = Registry(redis, KEYS, settings(**more), structlog.get_logger())
    if pid != "self":
        made._pid = str(pid)
    return made


async def registered(redis: "Redis", pid: object = "self", **more: Any) -> Registry:
    instance = registry(redis, pid, **more)
    await instance.register()
    return instance


@dataclass
class Instance:
    """A registered instance and its pending list."""

    redis: "Redis"
    registry: Registry
    orphans: Orphans
    messages: "count[int]" = field(default_factory=count)

    @classmethod
    async def enter(cls, redis: "Redis", **more: Any) -> "Instance":
        there = await registered(redis, **more)
        instance = cls(redis, there, Orphans(redis, KEYS, there, settings(**more)))
        await instance.orphans.record_ownership()
        return instance

    @property
    def pending(self) -> str:
        return f"pending:{self.registry.id}"

    async def take(self, *messages: str) -> None:
        """Put ``messages``, oldest first, into the pending list."""
        await self.redis.lpush(self.pending, *messages)

    async def die(self) -> None:
        await self.redis.delete(self.registry.key)


async def oldest_first(redis: "Redis", key: str) -> list[str]:
    return [decoded(message) for message in reversed(await redis.lrange(key, 0, -1))]


async def register(redis: Redis, namespace: str, id: str, *, data: Redis | None = None, expire: int = 60) -> None:
    """Write the registration of a service; ``data`` is the server of its lists if it is another one."""
    keys, now = Keys(namespace), (await redis.time())[0]
    fields: dict[Any, Any] = {
        "host": "oak",
        "pid": "77",
        "started": now - 100,
        "renewed": now - 5,
        "service": "mpush",
        "version": "1",
    }
    await redis.hset(keys.instance(id), mapping=fields)
    await redis.expire(keys.instance(id), expire)
    await redis.lpush(keys.ids, id)
    await (data or redis).zadd(keys.owners, {id: now})
    roles: dict[Any, Any] = {
        "work in": "in",
        "work pending": "pending",
        "out0": "out",
        "out1": "out",
        keys.dead: "dead",
    }
    await (data or redis).hset(keys.lists, mapping=roles)
