"""Counts who in a program wants a key: the first subscribes at the addresses that it comes from, the last ends that."""

from collections import Counter

from penstock.base.errors import WrongCall
from penstock.outbox.keys import Keys, as_keys
from penstock.outbox.outbox import Outbox


class Subscriptions:
    """The subscriptions of ``outbox`` that several parts of a program share. They are counted in memory."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._wanted = Counter[str]()
        self._sources = dict[str, set[str]]()

    async def bind(self, key: str, addresses: Keys) -> None:
        """Note that ``key`` comes from ``addresses``, too; subscribe there if it is wanted."""
        found = self._sources.setdefault(key, set())
        new = [address for address in as_keys(addresses) if address not in found]
        found.update(new)
        if self._wanted[key]:
            for address in new:
                await self._outbox.subscribe(address, key)

    async def unbind(self, key: str, addresses: Keys) -> None:
        """Note that ``key`` comes from ``addresses`` no more; end the subscriptions there."""
        found = self._sources.get(key, set())
        gone = [address for address in as_keys(addresses) if address in found]
        found.difference_update(gone)
        if self._wanted[key]:
            for address in gone:
                await self._outbox.unsubscribe(address, key)

    async def subscribe(self, key: str) -> None:
        """Want ``key`` once more; for the first, subscribe at all of its addresses."""
        self._wanted[key] += 1
        if self._wanted[key] == 1:
            for address in sorted(self._sources.get(key, ())):
                await self._outbox.subscribe(address, key)

    async def unsubscribe(self, key: str) -> None:
        """Want ``key`` once less; for the last, end the subscriptions. Raise ``WrongCall`` if nobody wants it."""
        if not self._wanted[key]:
            raise WrongCall(f"nobody wants {key!r}")
        self._wanted[key] -= 1
        if not self._wanted[key]:
            for address in sorted(self._sources.get(key, ())):
                await self._outbox.unsubscribe(address, key)
