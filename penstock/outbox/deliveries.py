"""All destinations: their numbers, what they have subscribed to here, and what is on its way to each."""

import asyncio
import resource
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from penstock.base.errors import WrongCall
from penstock.core.backoff import Backoff
from penstock.outbox import wire
from penstock.outbox.commits import GroupCommit
from penstock.outbox.delivery import Connects, Delivery
from penstock.outbox.notes import Noted
from penstock.outbox.routes import Routes
from penstock.outbox.store import Published, Store

ROOM_SECONDS: Final = 0.1
"""Between two looks at which connections may rest."""


class Deliveries:
    """A ``Delivery`` for each destination for which messages wait, or have waited since the start."""

    def __init__(
        self,
        reader: Store,
        commits: GroupCommit,
        connect: Connects,
        backoff: Backoff,
        settled: Callable[[object], None],
    ) -> None:
        self._reader, self._commits, self._connect, self._backoff = reader, commits, connect, backoff
        self._settled = settled
        self.numbers = reader.destinations()
        """Of all addresses."""
        self._addresses = {number: address for address, number in self.numbers.items()}
        self._next_number = max(self.numbers.values(), default=0) + 1
        self.routes = Routes()
        for key, address in reader.subscriptions():
            self.routes.add(self.numbers[address], [key])
        self._by_number = dict[int, Delivery]()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most_connected = (sys.maxsize if files == resource.RLIM_INFINITY else files) // 2
        self._room_made = 0.0

    @property
    def all(self) -> list[Delivery]:
        return list(self._by_number.values())

    @property
    def away(self) -> dict[str, str]:
        """Why each destination that waits for messages cannot be reached now."""
        return {each.address: each.error for each in self._by_number.values() if each.error}

    def start(self) -> None:
        """Send what waits."""
        for address, number in self.numbers.items():
            if self._reader.waits_for(number):
                self._deliver(address, number)

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._by_number.values()))

    def number_of(self, address: str) -> int:
        """Return the number of ``address``, which may be new. Raise ``WrongCall`` if it is none."""
        found = self.numbers.get(address)
        if found is None:
            if not wire.is_address(address):
                raise WrongCall(f"{address!r} is no address: expected host:port")
            found = self.numbers[address] = self._next_number
            self._addresses[found] = address
            self._next_number += 1
        return found

    def offer(self, messages: Sequence[Published]) -> None:
        """Let go what was just stored, in this order."""
        for message in messages:
            for number, keys in message.copies:
                delivery = self._by_number.get(number) or self._deliver_to(number)
                if delivery is not None:
                    delivery.offer(message, keys)

    def offer_noted(self, noted: Sequence[Noted]) -> None:
        for each in noted:
            self.offer(each.messages)

    def offer_sent(self, sent: Sequence[tuple[Any, ...]]) -> None:
        """As ``offer``, of rows that begin with an address and a message: the address may have been forgotten."""
        for address, message, *_ in sent:
            number = self.numbers.setdefault(address, message.copies[0].destination)
            self._addresses[number] = address
            self.offer([message])

    async def forget(self, address: str) -> None:
        """Remove a destination, its subscriptions, and what waits for it."""
        number = self.numbers.get(address)
        if number is None:
            return
        self.routes.remove(number)
        await self._commits.write(Store.leave, [address], lambda _: self._end(number))
        while self._reader.waits_for(number):
            await self._commits.write(Store.drop, [number], lambda _: self._end(number))
        await self._commits.write(Store.forget, [address], self._forgotten)

    def _end(self, number: int) -> None:
        delivery = self._by_number.pop(number, None)
        if delivery is not None:
            delivery.forget()

    def _forgotten(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            number = self.numbers.pop(address, 0)
            self._addresses.pop(number, None)
            self.routes.remove(number)
            self._end(number)
        self._settled(None)

    def _deliver_to(self, number: int) -> Delivery | None:
        """Return a new delivery; None if the destination was forgotten meanwhile."""
        address = self._addresses.get(number)
        return None if address is None else self._deliver(address, number)

    def _deliver(self, address: str, number: int) -> Delivery:
        delivery = self._by_number[number] = Delivery(
            address, number, self._connected, self._reader, self._commits, self._backoff, self._settled
        )
        return delivery

    async def _connected(self, address: str) -> wire.Peer:
        self._make_room()
        return await self._connect(address)

    def _make_room(self) -> None:
        """Let idle connections rest if there are nearly as many as may be: each destination has its turn."""
        now = asyncio.get_running_loop().time()
        if len(self._by_number) <= self.most_connected or now < self._room_made + ROOM_SECONDS:
            return
        self._room_made, half = now, self.most_connected // 2
        connected = [each for each in self._by_number.values() if each.is_connected]
        if len(connected) >= half:
            for each in filter(attrgetter("is_idle"), connected[:half]):
                each.rest()
