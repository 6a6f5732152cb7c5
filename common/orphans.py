"""Pending lists of dead instances: nothing that an instance owns dies with it."""

from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from common.registry import Registry
from common.settings import ServiceSettings
from penstock.keys import Keys, pending_of
from penstock.lua import Script
from penstock.names import decoded

_adopt: Final = Script.read(Path(__file__).parent / "lua" / "adopt.lua")
GRACE: Final = 60
"""How long (s) a dead instance's blocked command may still add to its list, beyond its registration's life."""


class Orphans:
    """What dead instances of a namespace left in their pending lists, taken over by a live one."""

    def __init__(self, redis: "Redis", keys: Keys, registry: Registry, settings: ServiceSettings) -> None:
        self._redis, self._keys, self._registry, self._settings = redis, keys, registry, settings

    async def own(self, *former: str) -> None:
        """Say that this instance may hold a pending list: before it takes its first message, and on every renewal.

        Under its ``former`` ids, too: one that slept so long that it was forgotten may have taken a message on waking.
        """
        seconds, _ = await self._redis.time()
        await self._redis.zadd(self._keys.owners, dict.fromkeys((self._registry.id, *former), seconds))

    async def adopt(self, alive: Set[str] = frozenset(), *, shared: bool = True) -> Counter[str]:
        """Take over every dead instance's pending lists, the oldest instance last, so that its messages go first.

        Those that were just seen ``alive`` are not looked at. ``shared`` looks into the list of services without a
        namespace, too: they leave what they leave before we start. Returns how many messages were adopted, by the name
        of the pending list without an id.
        """
        adopted: Counter[str] = Counter()
        if not self._settings.pending_lists:
            return adopted
        owners = [decoded(id) for id in await self._redis.zrange(self._keys.owners, 0, -1)]
        doubtful = [id for id in owners if id not in (self._registry.id, *alive)]
        dead = await self._registry.dead(doubtful) if doubtful else []
        for id in sorted(dead, key=lambda id: (len(id), id), reverse=True):
            adopted += await self._take_over(id)
        if shared and not self._settings.ordered:
            adopted += await self._take_over(None)
        return adopted

    async def _take_over(self, id: str | None) -> Counter[str]:
        grace = GRACE + self._settings.service_expire
        adopted: Counter[str] = Counter()
        for base in (names := self._settings.pending_lists):
            adopted[base] = await _adopt(
                self._redis,
                orphan=pending_of(base, id),
                own=pending_of(base, None if self._settings.ordered else self._registry.id),
                owners=self._keys.owners if base == names[-1] else None,
                id=id or "",
                grace=grace,
            )
        return adopted

    async def disown(self, *former: str) -> None:
        """Leave no trace where nothing is pending."""
        for id in (self._registry.id, *former):
            lists = [pending_of(base, id) for base in self._settings.pending_lists]
            if not lists or not await self._redis.exists(*lists):
                await self._redis.zrem(self._keys.owners, id)
