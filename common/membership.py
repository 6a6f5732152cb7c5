"""Membership of a namespace: register, renew, adopt from dead instances, and hold the lease if it is ordered."""

import asyncio
import random
import time
from typing import Final, Generic, TypeVar

from redis.asyncio import Redis
from structlog.typing import FilteringBoundLogger

from common.context import Context
from common.orphans import Orphans
from common.registered_lists import announce
from common.registry import Presence, Registry
from common.settings.base import ServiceSettings
from penstock.base.keys import Keys
from penstock.base.shape import shape_json
from penstock.core.atomic import AtomicWrites
from penstock.core.lease import Lease
from penstock.core.metrics import OF_EVERY_SERVICE, count

S = TypeVar("S", bound=ServiceSettings)
CARETAKERS: Final = 2
"""How many instances of a namespace, on average, look for dead ones while each renews once."""
EVERY: Final = 4
"""A lone instance looks for others at every fourth renewal. Every fourth look announces the lists again, in case
somebody has deleted them."""
HOLD_POLL_SECONDS: Final = 0.05
MAX_WORDS: Final = 2_000
"""Words of one command: a script can pass on some 8,000."""


class Membership(Generic[S]):
    """Keeps one instance in its namespace; the intervals are those of its settings."""

    def __init__(
        self,
        registry_redis: "Redis",
        redis: "Redis",
        keys: Keys,
        settings: S,
        log: FilteringBoundLogger,
    ) -> None:
        self._redis, self._keys, self._settings, self._log = redis, keys, settings, log
        self._registry = Registry(registry_redis, keys, settings, log)
        self._orphans = Orphans(redis, keys, self._registry, settings)
        self._one_server = registry_redis is redis
        self._lease: Lease | None = None
        self._presence = Presence.LOST
        self._noted = ""
        """What the registration says that this instance waits for."""
        self._announced = self._counted = False
        self._renewals = self._looks = 0
        """Since the registration."""
        self._former: set[str] = set()
        self._last_token: int | None = None
        self._renew_at = self._hold_at = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def enter(self, context: Context[S]) -> None:
        """Register if necessary, adopt what dead instances left, and wait for the lease if the service is ordered."""
        async with self._one_at_a_time:
            if self._presence is Presence.HERE:
                await self._renew_registration(context)
            if self._presence is Presence.LOST:
                await self._register()
            if self._presence is Presence.DELETED:
                return
            if not self._announced:
                await self._announce()
            context.id, context.registration = self._registry.id, self._registry.key if self._one_server else None
            context.adopted += await self._orphans.adopt(self._registry.alive)
        await self._wait_for_lease(context)
        if context.token is not None:
            async with self._one_at_a_time:
                context.adopted += await self._orphans.adopt(self._registry.alive, leads=True)
        while context.running and await self._redis.exists(self._keys.hold):  # penstock apply lets all begin at once
            await asyncio.sleep(HOLD_POLL_SECONDS)

    async def check(self, context: Context[S]) -> bool:
        """Return whether the run may go on; renew registration and lease if due. Call it every second or so.

        The registration also says soon what the instance waits for, and that it waits no longer.
        """
        async with self._one_at_a_time:
            if self._registry.lost_neighbour:
                await self._registry.compact()
                await self._take_care(context)
            if time.monotonic() >= self._renew_at or context.unregistered.is_set():
                context.unregistered.clear()
                await self._renew(context)
            elif self._presence is Presence.HERE and self._noted != context.trouble:
                await self._renew_registration(context, compact=False)
            elif self._presence is Presence.HERE:
                self._presence = await self._registry.check()
        return self._presence is Presence.HERE and await self._has_lease(context)

    async def _renew(self, context: Context[S]) -> None:
        self._renew_at = 0.0  # until all of it is done
        looks = self._is_caretaker()
        self._renewals += 1
        await self._renew_registration(context, compact=looks)
        if self._presence is Presence.HERE:
            await self._orphans.record_ownership(now=self._registry.renewed if self._one_server else None)
            await self._expire_metrics()
            if looks or self._orphans.changed:
                await self._take_care(context)
            self._renew_at = time.monotonic() + self._settings.service_renew

    async def _renew_registration(self, context: Context[S], *, compact: bool = True) -> None:
        trouble = context.trouble
        self._presence = await self._registry.renew(compact=compact, trouble=trouble)
        self._noted = trouble

    def _is_caretaker(self) -> bool:
        """Return whether this renewal looks for dead instances: by chance among several, by count for a lone one."""
        others = max(self._orphans.owners - 1, len(self._registry.alive))
        return random.random() * (1 + others) < CARETAKERS if others else self._renewals % EVERY == 0

    async def _take_care(self, context: Context[S]) -> None:
        """Adopt what dead instances left, and see that others find what they must know of this namespace."""
        if self._looks % EVERY == 0:
            await announce(self._redis, self._keys, self._settings, self._log)
        self._looks += 1
        leads = context.token is not None
        adopted = await self._orphans.adopt(self._registry.alive, shared=False, leads=leads)
        if adopted.total():
            context.adopted += adopted
            await context.wake()

    @property
    def id(self) -> str:
        """Return the id of the last registration; empty before the first."""
        return self._registry.id

    @property
    def is_registered(self) -> bool:
        """Return whether the last check found the registration."""
        return self._presence is Presence.HERE

    @property
    def deleted(self) -> bool:
        """Return whether somebody deleted or overwrote the registration."""
        return self._presence is Presence.DELETED

    @property
    def gone(self) -> str:
        """Return, in words, what somebody did to the registration if it is ``deleted``."""
        return self._registry.gone

    @property
    def reload_order(self) -> str | None:
        """Return the field ``reload`` of the registration."""
        return self._registry.reload_order

    async def answer(self, order: str, refused: str) -> None:
        """Count a reload order and answer it: ``refused`` says why it was refused, and is empty if it was not."""
        async with AtomicWrites(self._redis) as writes:
            writes.hincrby(self._keys.metric("reload"), "failed" if refused else "count", 1)
            await writes.execute()
        await self._registry.answer(order, refused)

    def change(self, settings: S) -> None:
        """Use ``settings`` from the next ``enter`` on, as the same instance with the same lease."""
        self._settings = self._registry.settings = settings
        self._orphans.change(settings)
        self._set_lease()
        self._announced, self._renew_at = False, 0.0

    async def leave(self) -> None:
        if self._lease:
            await self._lease.release()
        if self._registry.id:
            await self._orphans.forget_ownership(*self._former)
            await self._registry.deregister()

    async def _register(self) -> None:
        self._former |= {self._registry.id} - {""}
        await self._registry.register()
        self._renew_at = time.monotonic() + self._settings.service_renew
        self._set_lease()
        self._last_token, self._noted = None, ""
        self._announced = self._counted = False
        self._renewals = self._looks = 0
        self._presence = Presence.HERE

    def _set_lease(self) -> None:
        if self._settings.ordered and self._registry.id:
            self._lease = Lease(self._redis, self._keys.lease, self._registry.id, self._settings.lease_expire)

    async def _announce(self) -> None:
        """Record on the server of the lists, once, who may hold a pending list and which lists the service works on."""
        await self._orphans.record_ownership(*self._former)
        async with AtomicWrites(self._redis) as writes:
            writes.delete(self._keys.lists)
            words = [word for pair in self._settings.lists().items() for word in pair]
            for first in range(0, len(words), MAX_WORDS):
                writes.hset(self._keys.lists, items=words[first : first + MAX_WORDS])
            writes.set(self._keys.shape, shape_json(self._settings))
            if not self._counted:
                count(writes, self._keys.metric("start"))
            await writes.execute()
        await announce(self._redis, self._keys, self._settings, self._log)
        self._announced = self._counted = True

    async def _wait_for_lease(self, context: Context[S]) -> None:
        """Stand by until this instance has the lease."""
        self._last_token, context.token = context.token or self._last_token, None
        while self._lease and context.running:
            context.token = await self._lease.hold()
            if context.token is not None:
                if context.token != self._last_token:
                    self._log.info("active", token=context.token)
                self._last_token = context.token
                return
            context.outage.over()  # the server has answered, and nothing waits for it
            await context.pause(min(1.0, self._settings.lease_expire / 3))

    async def _has_lease(self, context: Context[S]) -> bool:
        if self._lease is None or context.token is None or time.monotonic() < self._hold_at:
            return True
        held = await self._lease.hold()
        self._hold_at = time.monotonic() + self._settings.lease_expire / 4
        return held == context.token

    async def _expire_metrics(self) -> None:
        if self._settings.metrics_expire:
            async with self._redis.pipeline(transaction=False) as wire:
                names = (*OF_EVERY_SERVICE, *self._settings.metrics())
                for key in (self._keys.held, self._keys.accepted, *map(self._keys.metric, names)):
                    wire.expire(key, self._settings.metrics_expire)
                await wire.execute()
