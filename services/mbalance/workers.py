"""The workers of the lists: which are registered, and where they keep what they have in hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from penstock.base.encoding import decoded
from penstock.base.keys import Keys, pending_of
from penstock.core.script import Script
from services.mbalance.settings import Settings

MAX_LISTS: Final = 7_000
"""Names of lists and registrations in one call; each is looked at in it."""
_stranded: Final = Script.read(Path(__file__).parent / "lua" / "stranded.lua")


class Workers:
    """What the scripts need to know of the workers: ``lists`` and ``groups``, as ``parts/workers.lua`` has them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = [Keys(name) for name in settings.workers]
        self.watched = bool(settings.workers or settings.registrations)
        lists = len(settings.out)
        self._most = (MAX_LISTS - lists) // (lists * (2 if settings.in_hand else 1))
        """Instances of one namespace that a call has room for."""
        self.named: dict[str, Any] = {}
        self._arrange([[] for _ in settings.out])

    async def refresh(self, redis: "Redis") -> bool:
        """Read which instances are listed in the namespaces of ``workers``; return True if ``named`` has changed.

        If a namespace lists more than ``_most``, only the first ``_most`` of those that are alive count.
        """
        if not self._keys:
            return False
        async with redis.pipeline(transaction=False) as calls:
            for keys in self._keys:
                calls.lrange(keys.ids, 0, -1)
            listed = [sorted(map(decoded, ids)) for ids in await calls.execute()]
        if max(map(len, listed)) > self._most:
            listed = [ids[: self._most] for ids in await self._alive(redis, listed)]
        before = self.named
        self._arrange(listed)
        return self.named != before

    async def _alive(self, redis: "Redis", listed: Sequence[Sequence[str]]) -> list[list[str]]:
        async with redis.pipeline(transaction=False) as calls:
            for keys, ids in zip(self._keys, listed, strict=True):
                for id in ids:
                    calls.exists(keys.instance(id))
            alive = iter(await calls.execute())
        return [[id for id in ids if next(alive)] for ids in listed]

    async def stranded(self, redis: "Redis") -> int:
        """Return how many messages wait where no worker is alive, if there is one elsewhere."""
        named = {name: self.named[name] for name in ("lists", "outs", "registered", "groups")}
        return int(await _stranded(redis, **named))

    def _arrange(self, ids: Sequence[Sequence[str]]) -> None:
        settings = self._settings
        hands: list[list[str]] = [[] for _ in settings.out]
        registrations: list[list[str]] = [[key] for key in settings.registrations] or [[] for _ in settings.out]
        for place, name in enumerate(settings.in_hand):
            hands[place] = [pending_of(name, id) for id in ids[place]] if settings.workers else [name]
        for place, keys in enumerate(self._keys):
            registrations[place] = [keys.instance(id) for id in ids[place]]
        weights = settings.weights or [1] * len(settings.out)
        states = [[word for key in keys for word in (key, f"{key}:steps")] for keys in registrations]
        self.named = {
            "lists": settings.out,
            "groups": [
                word
                for weight, held, found in zip(weights, hands, states, strict=True)
                for word in (weight, len(held), len(found) // 2, *held, *found)
            ],
            "outs": len(settings.out),
            "registered": int(self.watched),
        }
