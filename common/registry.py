"""The registry of live instances: enter, renew, list, leave; and what the dead left behind."""

import os
import random
import socket
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError
from structlog.typing import FilteringBoundLogger

from common.settings.base import ServiceSettings
from penstock import __version__
from penstock.composition.model import server_of
from penstock.encoding import decoded
from penstock.keys import Keys
from penstock.script import Script

LUA: Final = Path(__file__).parent / "lua"
FEW: Final = 3
"""Instances of which each is looked at."""
_next_id, _register, _renew, _compact, _deregister, _answer = (
    Script.read(LUA / f"{verb}.lua") for verb in ("next_id", "register", "renew", "compact", "deregister", "answer")
)


class Presence(Enum):
    HERE = "here"
    DELETED = "deleted"
    """Somebody removed the registration: an order to stop."""
    LOST = "lost"
    """The server lost it, or it ran out unrenewed: register anew."""


class Registry:
    """One instance's place in the registry of its namespace, on the server of ``serviceRedis``."""

    def __init__(
        self, redis: "Redis", keys: Keys, service: str, settings: ServiceSettings, log: FilteringBoundLogger
    ) -> None:
        self._redis, self._keys, self._service, self._log = redis, keys, service, log
        self.settings = settings
        self._host, self._pid = socket.gethostname(), str(os.getpid())
        self.id = ""
        self.alive: set[str] = set()
        """The other listed instances that were alive when this one last entered or renewed."""
        self.order: str | None = None
        """What ``reload`` was when it was last looked at: each new value is an order to read the settings anew."""
        self._renewed = 0
        """When the registration was renewed last, by the server's clock (s since the epoch)."""
        self._refused = False
        """Whether the server has refused a renewal since: a replica's data may have been replaced meanwhile."""
        self._server = ""

    @property
    def key(self) -> str:
        return self._keys.instance(self.id)

    async def enter(self) -> str:
        """Register under the next free id; returns it. What an attempt before left, its reply lost, is taken back."""
        if self.id:
            await self._deregister()
        self._renewed = 0
        while not self._renewed:
            self._server, self._refused = await self._server_id(), False
            self.id = str(await _next_id(self._redis, counter=self._keys.counter))
            self._renewed = await _register(
                self._redis,
                instance=self.key,
                ids=self._keys.ids,
                id=self.id,
                host=self._host,
                pid=self._pid,
                service=self._service,
                version=__version__,
                expire=self.settings.service_expire,
                renew=self.settings.service_renew,
                capacity=self.settings.service_capacity,
                lists=self._lists(),
            )
        self._log.info("registered", key=self.key, host=self._host, pid=int(self._pid), started=self._renewed)
        await self.compact()
        return self.id

    def _lists(self) -> str:
        """The server of the lists, without a password, where it is another one than that of the registrations."""
        lists, registry = server_of(self.settings.redis), server_of(self.settings.service_redis or self.settings.redis)
        return "" if lists == registry else lists

    async def renew(self, *, compact: bool = True, trouble: str = "") -> Presence:
        """Keep the registration for another ``serviceExpire``. ``compact``: list it, and take the dead off the list.

        ``trouble`` is what the instance waits for: ``penstock status`` shows it.
        """
        try:
            renewed = await _renew(
                self._redis,
                instance=self.key,
                ids=self._keys.ids,
                id=self.id,
                host=self._host,
                pid=self._pid,
                expire=self.settings.service_expire,
                renew=self.settings.service_renew,
                capacity=self.settings.service_capacity if compact else 0,
                trouble=trouble,
            )
        except ResponseError:
            self._refused = True
            raise
        if not renewed:
            return await self._why_gone()
        self._renewed, order = renewed
        self._server, self._refused = await self._server_id(), False
        self.order = None if order is None else decoded(order)
        if compact:
            await self.compact()
        return Presence.HERE

    @property
    def renewed(self) -> int:
        """When the registration was renewed last, by its server's clock (s since the epoch)."""
        return self._renewed

    async def look(self) -> Presence:
        """Whether the registration is still there, and what it orders: one HMGET."""
        read: Any = self._redis.hmget(self.key, "host", "pid", "reload")
        host, pid, order = (None if field is None else decoded(field) for field in await read)
        if (host, pid) != (self._host, self._pid):
            return await self._why_gone()
        self.order = order
        return Presence.HERE

    async def answer(self, order: str, refused: str = "") -> None:
        """Write in the registration, if it is there, that the new settings are in force, or why they are refused."""
        await _answer(self._redis, instance=self.key, host=self._host, pid=self._pid, order=order, refused=refused)

    async def dead(self, ids: list[str]) -> list[str]:
        """Return those of ``ids`` that no live instance has.

        Of many at once it is asked how many of them exist. If all do, one call in as many looks closer: an order that
        came too late makes a key, and makes nobody alive.
        """
        counts = len(ids) > FEW and random.random() * len(ids) > 1
        if counts and await self._redis.exists(*map(self._keys.instance, ids)) == len(ids):
            return []
        async with self._redis.pipeline(transaction=False) as wire:
            for id in ids:
                wire.hexists(self._keys.instance(id), "host")
            alive = await wire.execute(raise_on_error=False)
        return [id for id, lives in zip(ids, alive, strict=True) if lives == 0]

    async def kinds(self, ids: Iterable[str]) -> tuple[set[str], set[str]]:
        """Return those of ``ids`` that are alive: which count what they take, and which are of an older version."""
        names = sorted(ids)
        async with self._redis.pipeline(transaction=False) as wire:
            for id in names:
                wire.hmget(self._keys.instance(id), "host", "counts")
            replies = await wire.execute(raise_on_error=False)
        alive = {id: reply[1] for id, reply in zip(names, replies, strict=True) if isinstance(reply, list) and reply[0]}
        counting = {id for id, counts in alive.items() if counts}
        return counting, alive.keys() - counting

    async def leave(self) -> None:
        removed, unlisted = await self._deregister()
        await self.compact()
        self._log.info("ended", key=self.key, **{"del": removed, "lrem": unlisted})

    async def _deregister(self) -> Any:
        return await _deregister(
            self._redis, instance=self.key, ids=self._keys.ids, id=self.id, host=self._host, pid=self._pid
        )

    async def compact(self) -> None:
        """Take the dead off the list of live instances, and note which of the others are ``alive``."""
        listed = [decoded(id) for id in await self._redis.lrange(self._keys.ids, 0, -1)]
        others = {id for id in listed if id != self.id}
        dead = await self.dead(sorted(others)) if others else []
        if dead:
            await _compact(self._redis, ids=self._keys.ids, instances=[self._keys.instance(id) for id in dead])
        self.alive = others - set(dead)

    async def _why_gone(self) -> Presence:
        """A registration that has not run out, on a server that takes renewals and has lost nothing, was deleted."""
        now, _ = await self._redis.time()
        expired = now - self._renewed >= self.settings.service_expire
        lost = expired or self._refused or await self._server_id() != self._server
        return Presence.LOST if lost else Presence.DELETED

    async def _server_id(self) -> str:
        """Another one after every restart of the server, after a failover, and after an eviction for want of memory."""
        found = await self._redis.info()
        return f"{found['run_id']} {found['evicted_keys']}"
