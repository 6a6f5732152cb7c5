"""The registry of live instances: register, renew, list, deregister."""

import os
import random
import socket
from enum import Enum
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError
from structlog.typing import FilteringBoundLogger

from common.neighbours import has_ended, process
from common.settings.base import ServiceSettings
from penstock import __version__
from penstock.base.encoding import decoded
from penstock.base.keys import Keys
from penstock.base.urls import server_of
from penstock.core.script import Script

LUA: Final = Path(__file__).parent / "lua"
ALWAYS_CHECKED: Final = 3
"""Instances that are always checked one by one."""
_next_id, _register, _renew, _compact, _deregister, _answer = (
    Script.read(LUA / f"{verb}.lua") for verb in ("next_id", "register", "renew", "compact", "deregister", "answer")
)


class Presence(Enum):
    HERE = "here"
    DELETED = "deleted"
    """Somebody removed the registration, or it is another process's: an order to stop."""
    LOST = "lost"
    """The server lost it, or it ran out unrenewed: register anew."""


class Registry:
    """The registration of one instance in its namespace, on the server of ``serviceRedis``."""

    def __init__(self, redis: "Redis", keys: Keys, settings: ServiceSettings, log: FilteringBoundLogger) -> None:
        self._redis, self._keys, self._log = redis, keys, log
        self.settings = settings
        self._host, self._pid = socket.gethostname(), str(os.getpid())
        self._process = process(os.getpid())
        self._neighbours: dict[str, str] = {}
        """The processes of other instances that were alive at the last look, by id."""
        self.id = ""
        self.alive: set[str] = set()
        """The other listed instances that were alive at this one's last renewal that compacted."""
        self.gone = "deleted"
        """What became of the registration, once it is ``Presence.DELETED``, in words."""
        self.reload_order: str | None = None
        """The last value seen of the field ``reload``: each new value is an order to reload the settings."""
        self._renewed = 0
        """Time of the last renewal by the server's clock (s since the epoch)."""
        self._refused = False
        """Whether the server has refused a renewal since then: a replica's data may have been replaced meanwhile."""
        self._server = ""

    @property
    def key(self) -> str:
        return self._keys.instance(self.id)

    async def register(self) -> str:
        """Register under the next free id; return it. Remove first what an attempt left whose reply was lost."""
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
                service=self.settings.service,
                version=__version__,
                process=self._process,
                expire=self.settings.service_expire,
                renew=self.settings.service_renew,
                capacity=self.settings.service_capacity,
                lists=self._lists(),
            )
        self._log.info("registered", key=self.key, host=self._host, pid=int(self._pid), started=self._renewed)
        await self.compact()
        return self.id

    def _lists(self) -> str:
        """Return the server of the lists, without a password; empty if the registrations are on the same one."""
        lists, registry = server_of(self.settings.redis), server_of(self.settings.service_redis or self.settings.redis)
        return "" if lists == registry else lists

    async def renew(self, *, compact: bool = True, trouble: str = "") -> Presence:
        """Keep the registration for another ``serviceExpire``; return whether it is there.

        With ``compact`` also list it, and take dead instances off the list. ``trouble`` is what the instance waits for;
        ``penstock status`` shows it.
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
        self.reload_order = None if order is None else decoded(order)
        if compact:
            await self.compact()
        return Presence.HERE

    @property
    def renewed(self) -> int:
        """When the registration was renewed last, by its server's clock (s since the epoch)."""
        return self._renewed

    async def check(self) -> Presence:
        """Return whether the registration is there, and note its reload order: one HMGET."""
        read: Any = self._redis.hmget(self.key, "host", "pid", "reload")
        host, pid, order = (None if field is None else decoded(field) for field in await read)
        if (host, pid) != (self._host, self._pid):
            return await self._why_gone()
        self.reload_order = order
        return Presence.HERE

    async def answer(self, order: str, refused: str = "") -> None:
        """Write into the registration, if it exists, that the new settings apply, or why they are refused."""
        await _answer(self._redis, instance=self.key, host=self._host, pid=self._pid, order=order, refused=refused)

    async def dead(self, ids: list[str]) -> list[str]:
        """Return those of ``ids`` that no live instance has; deregister one whose process has ended here.

        Of many ids, count first how many exist. Even if all do, one call in as many checks them one by one, since an
        order that comes too late creates a key without an instance.
        """
        counts = len(ids) > ALWAYS_CHECKED and random.random() * len(ids) > 1
        if counts and await self._redis.exists(*map(self._keys.instance, ids)) == len(ids):
            return []
        async with self._redis.pipeline(transaction=False) as wire:
            for id in ids:
                wire.hmget(self._keys.instance(id), "host", "pid", "process")
            said = await wire.execute(raise_on_error=False)
        dead = list[str]()
        for id, found in zip(ids, said, strict=True):
            host, pid, name = (None, None, None) if isinstance(found, ResponseError) else found
            if not isinstance(found, ResponseError) and host is None:
                dead.append(id)
            elif has_ended(decoded(name or b"")):
                named = {"instance": self._keys.instance(id), "ids": self._keys.ids, "id": id}
                await _deregister(self._redis, **named, host=host, pid=pid)
                self._log.info("registration removed: its process has ended", key=named["instance"], pid=int(pid or 0))
                dead.append(id)
            else:
                self._neighbours[id] = decoded(name or b"")
        return dead

    @property
    def lost_neighbour(self) -> bool:
        """Return whether an instance that was alive at the last look has ended on this machine."""
        return any(map(has_ended, self._neighbours.values()))

    async def deregister(self) -> None:
        removed, unlisted = await self._deregister()
        await self.compact()
        self._log.info("ended", key=self.key, **{"del": removed, "lrem": unlisted})

    async def _deregister(self) -> Any:
        return await _deregister(
            self._redis, instance=self.key, ids=self._keys.ids, id=self.id, host=self._host, pid=self._pid
        )

    async def compact(self) -> None:
        """Take dead instances off the list of live ones, and note which of the others are ``alive``."""
        listed = [decoded(id) for id in await self._redis.lrange(self._keys.ids, 0, -1)]
        others = {id for id in listed if id != self.id}
        self._neighbours = {id: name for id, name in self._neighbours.items() if id in others}
        dead = await self.dead(sorted(others)) if others else []
        if dead:
            await _compact(self._redis, ids=self._keys.ids, instances=[self._keys.instance(id) for id in dead])
            for id in dead:
                self._neighbours.pop(id, None)
        self.alive = others - set(dead)

    async def _why_gone(self) -> Presence:
        """Return DELETED if the registration has not expired, on a server that has lost nothing and takes renewals."""
        now, _ = await self._redis.time()
        expired = now - self._renewed >= self.settings.service_expire
        lost = expired or self._refused or await self._server_id() != self._server
        read: Any = self._redis.hmget(self.key, "host", "pid")
        host, pid = (decoded(field or b"-") for field in await read)
        self.gone = "deleted" if host == pid == "-" else f"overwritten by pid {pid} on {host}"
        return Presence.LOST if lost else Presence.DELETED

    async def _server_id(self) -> str:
        """Return a text that changes with every restart of the server, failover, and eviction for lack of memory."""
        found = await self._redis.info()
        return f"{found['run_id']} {found.get('master_replid')} {found['evicted_keys']}"
