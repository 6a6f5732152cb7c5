"""Pending lists that nobody works on, of dead instances or from before a reload: nothing in them is lost."""

import json
import time
from collections import Counter
from collections.abc import Container, Iterable, Sequence, Set
from math import inf
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from common.registry import Registry
from common.settings.base import ServiceSettings
from penstock.atomic import AtomicRead, AtomicWrites
from penstock.encoding import decoded
from penstock.inspect.pending import parse_holdings
from penstock.keys import Keys, pending_of
from penstock.script import Script

_adopt: Final = Script.read(Path(__file__).parent / "lua" / "adopt.lua")
GRACE: Final = 60
"""How long (s) a blocked command may still add to a list, beyond its instance's registration or a change of names."""
Names = Sequence[str]
"""Of the pending lists of one instance at one time, without its id."""


class Orphans:
    """What lies in pending lists that no live instance works on, taken over by this one."""

    def __init__(self, redis: "Redis", keys: Keys, registry: Registry, settings: ServiceSettings) -> None:
        self._redis, self._keys, self._registry, self._settings = redis, keys, registry, settings
        self._names: dict[Names, float] = {settings.pending_lists: inf}
        """What this instance's lists are called, and were called, and until when (monotonic) they may be filled."""
        self.owners = 0
        """How many live instances there were at the last `adopt`; the dead are kept on record for some time after."""
        self._listed, self._looked_at = 0, 0
        """How many owners are on record, and how many were at the last `adopt`."""

    def change(self, settings: ServiceSettings) -> None:
        """From now on work by ``settings``; call ``own`` before anything is taken."""
        until = time.monotonic() + GRACE
        self._names = {settings.pending_lists: inf} | {
            names: min(end, until) for names, end in self._names.items() if names != settings.pending_lists
        }
        self._settings = settings

    async def own(self, *former: str, now: int | None = None) -> None:
        """Say which pending lists this instance may hold: before it takes its first message, and on every renewal.

        Under its ``former`` ids, too: one that slept so long that it was forgotten may have taken a message on waking.
        ``now`` is the time of the server (s since the epoch); without it the server is asked.
        """
        then, mine = time.monotonic(), self._registry.id
        self._names = {
            names: end for names, end in self._names.items() if end > then or await self._left(mine, [names])
        }
        seconds = (await self._redis.time())[0] if now is None else now
        ids, names = (mine, *former), json.dumps(list(self._names))
        async with AtomicWrites(self._redis) as writes:
            writes.zadd(self._keys.owners, dict.fromkeys(ids, seconds))
            writes.hset(self._keys.holdings, mapping=dict.fromkeys(ids, names))
            writes.zcard(self._keys.owners)
            *_, self._listed = await writes.execute()

    @property
    def changed(self) -> bool:
        """Return True if `own` has counted more or fewer owners than the last `adopt`."""
        return self._listed != self._looked_at

    async def adopt(self, alive: Set[str] = frozenset(), *, shared: bool = True, leads: bool = False) -> Counter[str]:
        """Take over every dead instance's pending lists, the oldest instance last, so that its messages go first.

        Those that were just seen ``alive`` are not looked at. ``shared`` looks into the list of services without a
        namespace, too: they leave what they leave before we start. Who ``leads`` by lease takes over shared lists that
        other settings have named. Returns how many messages were adopted, by the name of the pending list without an
        id.
        """
        adopted: Counter[str] = Counter()
        if not self._settings.pending_lists:
            self._looked_at = self._listed
            return adopted
        held, mine = await self._held(), self._registry.id
        if leads:
            for names in dict.fromkeys(names for each in held.values() for names in each):
                adopted += await self._take_over(None, [names])
        elif not self._settings.ordered:
            adopted += await self._take_over(mine, [*self._names])
        doubtful = [id for id in held if id not in (mine, *alive)]
        dead = await self._registry.dead(doubtful) if doubtful else []
        self.owners = len(held) - len(dead)
        self._looked_at = 0 if dead else len(held)  # what becomes of the dead is seen at the next one
        for id in sorted(dead, key=lambda id: (len(id), id), reverse=True):
            adopted += await self._take_over(id, held[id])
        if shared and not self._settings.ordered:
            adopted += await self._take_over(None, [])
        return adopted

    async def _held(self) -> dict[str, list[Names]]:
        """Return the names of pending lists by owner id; empty for owners that recorded none."""
        async with AtomicRead(self._redis) as snapshot:
            snapshot.zrange(self._keys.owners, 0, -1)
            snapshot.hgetall(self._keys.holdings)
            owners, said = await snapshot.execute()
        return {decoded(id): [*parse_holdings(said.get(id, "[]"))] for id in owners}

    async def _take_over(self, id: str | None, held: Sequence[Names]) -> Counter[str]:
        """What ``id`` left in lists of the names ``held``, and of ours."""
        adopted: Counter[str] = Counter()
        heirs: dict[str, str] = {}
        for names in (*held, self._settings.pending_lists):
            heirs |= self._settings.heirs(names)
        own_id = None if self._settings.ordered else self._registry.id
        forgotten = id not in (None, self._registry.id) and not await self._left(id, held, besides=heirs)
        for name, heir in heirs.items():
            orphan, own = pending_of(name, id), pending_of(heir, own_id)
            if orphan != own:
                last = forgotten and name == [*heirs][-1]
                adopted[heir] += await _adopt(
                    self._redis,
                    orphan=orphan,
                    own=own,
                    owners=self._keys.owners if last else None,
                    holdings=self._keys.holdings if last else None,
                    holds=self._keys.held,
                    missing=self._keys.metric("missing"),
                    id=id or "",
                    grace=GRACE + self._settings.service_expire,
                )
        return adopted

    async def _left(self, id: str | None, held: Iterable[Names], besides: Container[str] = ()) -> bool:
        """Whether ``id`` left anything under the names ``held``, but for its lists of the names ``besides``.

        With a lease also in what is shared under other names than ours.
        """
        names = {name for each in held for name in each}
        lists = [pending_of(name, id) for name in names if name not in besides]
        if self._settings.ordered:
            lists += names.difference(self._settings.pending_lists)
        return bool(lists and await self._redis.exists(*lists))

    async def disown(self, *former: str) -> None:
        """Leave no trace where nothing is pending."""
        for id in (self._registry.id, *former):
            if not await self._left(id, self._names):
                async with AtomicWrites(self._redis) as writes:
                    writes.zrem(self._keys.owners, id)
                    writes.hdel(self._keys.holdings, id)
                    await writes.execute()
