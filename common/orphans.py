"""Orphaned pending lists, of dead instances or from before a reload: this instance adopts them."""

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
from penstock.base.encoding import decoded
from penstock.base.keys import Keys, pending_of
from penstock.core.atomic import AtomicRead, AtomicWrites
from penstock.core.script import Script
from penstock.inspect.pending import parse_holdings

_adopt: Final = Script.read(Path(__file__).parent / "lua" / "adopt.lua")
GRACE_SECONDS: Final = 60
"""Seconds that a blocked command may still add to a list after its registration ended or its name changed."""
Names = Sequence[str]
"""The names of the pending lists of one instance at one time, without its id."""


class Orphans:
    """Moves what lies in pending lists of no live instance into those of this one."""

    def __init__(self, redis: "Redis", keys: Keys, registry: Registry, settings: ServiceSettings) -> None:
        self._redis, self._keys, self._registry, self._settings = redis, keys, registry, settings
        self._names: dict[Names, float] = {settings.pending_lists: inf}
        """The present and former names of this instance's lists, and until when (monotonic) each may be filled."""
        self.owners = 0
        """Live instances at the last ``adopt``; dead ones stay on record for some time."""
        self._listed, self._seen = 0, 0
        """Owners on record, now and at the last ``adopt``."""

    def change(self, settings: ServiceSettings) -> None:
        """Use ``settings`` from now on; call ``record_ownership`` before you take a message."""
        until = time.monotonic() + GRACE_SECONDS
        self._names = {settings.pending_lists: inf} | {
            names: min(end, until) for names, end in self._names.items() if names != settings.pending_lists
        }
        self._settings = settings

    async def record_ownership(self, *former: str, now: int | None = None) -> None:
        """Record which pending lists this instance may hold; call it before the first message and at every renewal.

        Record its ``former`` ids, too: an instance that slept until it was forgotten may take a message on waking.
        ``now`` is the server's time (s since the epoch); if it is None, ask the server.
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
        """Return whether the number of owners differs from that at the last ``adopt``."""
        return self._listed != self._seen

    async def adopt(self, alive: Set[str] = frozenset(), *, shared: bool = True, leads: bool = False) -> Counter[str]:
        """Adopt every dead instance's pending lists, the oldest instance last, so that its messages go first.

        Skip instances that were just seen ``alive``. With ``shared`` adopt the list of services without a namespace,
        too. An instance that ``leads`` by lease adopts shared lists that other settings have named. Return how many
        messages were adopted, by the name of the pending list without an id.
        """
        adopted: Counter[str] = Counter()
        if not self._settings.pending_lists:
            self._seen = self._listed
            return adopted
        held, mine = await self._held(), self._registry.id
        if leads:
            for names in dict.fromkeys(names for each in held.values() for names in each):
                adopted += await self._adopt_from(None, [names])
        elif not self._settings.ordered:
            adopted += await self._adopt_from(mine, [*self._names])
        doubtful = [id for id in held if id not in (mine, *alive)]
        dead = await self._registry.dead(doubtful) if doubtful else []
        self.owners = len(held) - len(dead)
        self._seen = 0 if dead else len(held)  # what becomes of the dead is seen at the next one
        for id in sorted(dead, key=lambda id: (len(id), id), reverse=True):
            adopted += await self._adopt_from(id, held[id])
        if shared and not self._settings.ordered:
            adopted += await self._adopt_from(None, [])
        return adopted

    async def _held(self) -> dict[str, list[Names]]:
        """Return the names of pending lists by owner id; empty for owners that recorded none."""
        async with AtomicRead(self._redis) as snapshot:
            snapshot.zrange(self._keys.owners, 0, -1)
            snapshot.hgetall(self._keys.holdings)
            owners, said = await snapshot.execute()
        return {decoded(id): [*parse_holdings(said.get(id, "[]"))] for id in owners}

    async def _adopt_from(self, id: str | None, held: Sequence[Names]) -> Counter[str]:
        """Adopt what ``id`` left in lists of the names ``held``, and of the present names."""
        adopted: Counter[str] = Counter()
        targets: dict[str, str] = {}
        for names in (*held, self._settings.pending_lists):
            targets |= self._settings.adopts(names)
        own_id = None if self._settings.ordered else self._registry.id
        forgotten = id not in (None, self._registry.id) and not await self._left(id, held, besides=targets)
        for name, target in targets.items():
            orphan, own = pending_of(name, id), pending_of(target, own_id)
            if orphan != own:
                last = forgotten and name == [*targets][-1]
                adopted[target] += await _adopt(
                    self._redis,
                    orphan=orphan,
                    own=own,
                    owners=self._keys.owners if last else None,
                    holdings=self._keys.holdings if last else None,
                    holds=self._keys.held,
                    missing=self._keys.metric("missing"),
                    id=id or "",
                    grace=GRACE_SECONDS + self._settings.service_expire,
                )
        return adopted

    async def _left(self, id: str | None, held: Iterable[Names], besides: Container[str] = ()) -> bool:
        """Return whether ``id`` left messages under the names ``held``, except those of the names ``besides``.

        With a lease, also look in shared lists of other names than the present ones.
        """
        names = {name for each in held for name in each}
        lists = [pending_of(name, id) for name in names if name not in besides]
        if self._settings.ordered:
            lists += names.difference(self._settings.pending_lists)
        return bool(lists and await self._redis.exists(*lists))

    async def forget_ownership(self, *former: str) -> None:
        """Remove the record of each id that has nothing pending."""
        for id in (self._registry.id, *former):
            if not await self._left(id, self._names):
                async with AtomicWrites(self._redis) as writes:
                    writes.zrem(self._keys.owners, id)
                    writes.hdel(self._keys.holdings, id)
                    await writes.execute()
