"""Membership of a namespace: registered, renewed, heir to the dead, and active by lease where order is asked for."""

import asyncio
import random
import time
from typing import Final, Generic, TypeVar

from redis.asyncio import Redis
from structlog.typing import FilteringBoundLogger

from common.context import Context
from common.lease import Lease
from common.orphans import Orphans
from common.registered_lists import announce
from common.registry import Presence, Registry
from common.settings.base import ServiceSettings
from common.upgrade import agree
from penstock.atomic import AtomicWrites
from penstock.composition.live.registered import shape_json
from penstock.keys import Keys
from penstock.metrics import count

S = TypeVar("S", bound=ServiceSettings)
LOOKING: Final = 2
"""Instances of a namespace that look after the others while all renew once, on average: more would find the same."""
SELDOM: Final = 4
"""At every fourth renewal the only instance looks for others, even if none has come. Every fourth look announces the
lists again, in case somebody has deleted them."""
WORDS: Final = 2_000
"""Words of one command: a script can pass on some 8,000 at most."""


class Membership(Generic[S]):
    """What one instance has to say in its namespace, and when; the times are those of its settings."""

    def __init__(
        self,
        registry_redis: "Redis",
        redis: "Redis",
        keys: Keys,
        service: str,
        settings: S,
        log: FilteringBoundLogger,
    ) -> None:
        self._redis, self._keys, self._settings, self._log = redis, keys, settings, log
        self._registry = Registry(registry_redis, keys, service, settings, log)
        self._orphans = Orphans(redis, keys, self._registry, settings)
        self._in_reach = registry_redis is redis
        self._lease: Lease | None = None
        self._presence = Presence.LOST
        self._introduced = self._counted = False
        self._renewals = self._looks = 0
        """Since the registration."""
        self._former: set[str] = set()
        self._told: int | None = None
        self._renew_at = self._hold_at = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def enter(self, context: Context[S]) -> None:
        """Register, unless that is done; adopt what the dead left; wait for the lease where there is one."""
        async with self._one_at_a_time:
            if self._presence is Presence.HERE:
                self._presence = await self._registry.renew(trouble=context.trouble.reason or "")
            if self._presence is Presence.LOST:
                await self._register()
            if self._presence is Presence.DELETED:
                return
            if not self._introduced:
                await self._introduce()
            context.id, context.registration = self._registry.id, self._registry.key if self._in_reach else None
            await self._agree()
            context.adopted += await self._orphans.adopt(self._registry.alive)
        await self._lead(context)
        if context.token is not None:
            async with self._one_at_a_time:
                await self._agree()
                context.adopted += await self._orphans.adopt(self._registry.alive, leads=True)

    async def attend(self, context: Context[S]) -> bool:
        """Every second or so: whether the run may go on. Renews registration and lease when they are due."""
        async with self._one_at_a_time:
            if time.monotonic() >= self._renew_at or context.suspect.is_set():
                context.suspect.clear()
                await self._renew(context)
            elif self._presence is Presence.HERE:
                self._presence = await self._registry.look()
        return self._presence is Presence.HERE and await self._keeps_lease(context)

    async def _renew(self, context: Context[S]) -> None:
        self._renew_at = 0.0  # until all of it is done
        looks = self._looks_after_others()
        self._renewals += 1
        self._presence = await self._registry.renew(compact=looks, trouble=context.trouble.reason or "")
        if self._presence is Presence.HERE:
            await self._orphans.own(now=self._registry.renewed if self._in_reach else None)
            await self._expire_metrics()
            if looks or self._orphans.changed:
                await self._look_after_others(context)
            self._renew_at = time.monotonic() + self._settings.service_renew

    def _looks_after_others(self) -> bool:
        """Whether this renewal is one that does: by chance among many, now and then if nobody else is there."""
        others = max(self._orphans.owners - 1, len(self._registry.alive))
        return random.random() * (1 + others) < LOOKING if others else self._renewals % SELDOM == 0

    async def _look_after_others(self, context: Context[S]) -> None:
        """Take over what dead instances left, and see that others find what they must know of this namespace."""
        if self._looks % SELDOM == 0:
            await announce(self._redis, self._keys, self._settings, self._log)
        self._looks += 1
        await self._agree()
        leads = context.token is not None
        adopted = await self._orphans.adopt(self._registry.alive, shared=False, leads=leads)
        if adopted.total():
            context.adopted += adopted
            await context.wake()

    @property
    def id(self) -> str:
        """The id that this instance registered under last; empty before that."""
        return self._registry.id

    @property
    def is_registered(self) -> bool:
        """Whether the registration was there when it was looked at last."""
        return self._presence is Presence.HERE

    @property
    def dismissed(self) -> bool:
        """Whether somebody deleted the registration."""
        return self._presence is Presence.DELETED

    @property
    def order(self) -> str | None:
        """What ``reload`` in the registration says."""
        return self._registry.order

    async def answer(self, order: str, refused: str) -> None:
        """Count an order to read the settings anew, and answer it: why it is ``refused``, empty where it is not."""
        async with AtomicWrites(self._redis) as writes:
            writes.hincrby(self._keys.metric("reload"), "failed" if refused else "count", 1)
            await writes.execute()
        await self._registry.answer(order, refused)

    def change(self, settings: S) -> None:
        """Go by ``settings`` from the next ``enter`` on, as the same instance, with the same lease."""
        self._settings = self._registry.settings = settings
        self._orphans.change(settings)
        self._lend()
        self._introduced, self._renew_at = False, 0.0

    async def leave(self) -> None:
        if self._lease:
            await self._lease.release()
        if self._registry.id:
            await self._orphans.disown(*self._former)
            await self._registry.leave()

    async def _register(self) -> None:
        self._former |= {self._registry.id} - {""}
        await self._registry.enter()
        self._renew_at = time.monotonic() + self._settings.service_renew
        self._lend()
        self._told = None
        self._introduced = self._counted = False
        self._renewals = self._looks = 0
        self._presence = Presence.HERE

    def _lend(self) -> None:
        if self._settings.ordered and self._registry.id:
            self._lease = Lease(self._redis, self._keys.lease, self._registry.id, self._settings.lease_expire)

    async def _introduce(self) -> None:
        """Say once, on the server of the lists, who may hold a pending list now and which lists it works on."""
        await self._orphans.own(*self._former)
        async with AtomicWrites(self._redis) as writes:
            writes.delete(self._keys.lists)
            words = [word for pair in self._settings.lists().items() for word in pair]
            for first in range(0, len(words), WORDS):
                writes.hset(self._keys.lists, items=words[first : first + WORDS])
            writes.set(self._keys.shape, shape_json(self._settings))
            if not self._counted:
                count(writes, self._keys.metric("start"))
                writes.hincrby(self._keys.metric("start"), "counting", 1)
            await writes.execute()
        await announce(self._redis, self._keys, self._settings, self._log)
        self._introduced = self._counted = True

    async def _agree(self) -> None:
        """Before anything is adopted: an older instance may have adopted it and not said so."""
        await agree(self._redis, self._keys, self._registry, self._settings, self._log)

    async def _lead(self, context: Context[S]) -> None:
        """Stand by until the lease is ours."""
        self._told, context.token = context.token or self._told, None
        while self._lease and context.running:
            context.token = await self._lease.hold()
            if context.token is not None:
                if context.token != self._told:
                    self._log.info("active", token=context.token)
                self._told = context.token
                return
            context.trouble.over()  # nothing of ours waits for the server, which has answered
            await context.pause(min(1.0, self._settings.lease_expire / 3))

    async def _keeps_lease(self, context: Context[S]) -> bool:
        if self._lease is None or context.token is None or time.monotonic() < self._hold_at:
            return True
        held = await self._lease.hold()
        self._hold_at = time.monotonic() + self._settings.lease_expire / 4
        return held == context.token

    async def _expire_metrics(self) -> None:
        if self._settings.metrics_expire:
            async with self._redis.pipeline(transaction=False) as wire:
                names = ("start", "reload", "error", "missing", "revived", "buried", *self._settings.metrics())
                for key in (self._keys.held, self._keys.accepted, *map(self._keys.metric, names)):
                    wire.expire(key, self._settings.metrics_expire)
                await wire.execute()
