"""Takes what peers send: on disk first, then acknowledged; and does what they ask for about their subscriptions."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from penstock.base.log import Log, Seldom
from penstock.outbox import wire
from penstock.outbox.commands import COMMANDS, MAX_KEYS, REMOVE, SUBSCRIBE, Command
from penstock.outbox.commits import GroupCommit
from penstock.outbox.errors import DiskFull
from penstock.outbox.routes import Routes, bytes_of
from penstock.outbox.store import SEPARATOR, Arrived, Store
from penstock.outbox.turns import Turns

MAX_SUBSCRIPTIONS: Final = 100_000
MAX_SUBSCRIBED_BYTES: Final = 64 * 1024 * 1024
"""Of the keys of all subscriptions, which are in memory."""
MAX_DESTINATIONS: Final = 10_000
"""Addresses, beyond which no new one may subscribe."""
LOGGED_KEYS: Final = 10
SWEEP_ROWS: Final = 16
MEASURE_SECONDS: Final = 5.0
"""Between two looks at how much of a full store is of peers."""
log = Log("outbox")


Row = tuple[bytes, str, bytes]
"""Id, keys and data of a message."""


class Order(NamedTuple):
    """A command, and the number of the destination that it names."""

    command: Command
    number: int
    store: bytes | None
    """Of the peer, if it subscribes its own address."""


@dataclass
class Arrivals:
    """Messages of one peer that are stored together."""

    sender: str
    origin: str
    """Who can mark ids as seen: the sender's store, as others may say that they have its address."""
    until: float | None
    rows: list[Row] = field(default_factory=list)
    commands: dict[bytes, Order] = field(default_factory=dict)
    new: list[Arrived] = field(default_factory=list)
    """Those that were not seen before, once they are stored."""
    carried_out: list[Order] = field(default_factory=list)
    asked: dict[str, set[str]] = field(default_factory=dict)
    """Keys that its commands subscribe to, by address, without those that were subscribed to before."""
    finds_full: bool = False
    """Nothing of it was stored: peers have as many bytes of the store as they may have."""

    @property
    def size(self) -> int:
        return sum(len(keys) + len(data) for _, keys, data in self.rows)


class Taking:
    """Stores what has come. ``take`` is a write of ``GroupCommit``."""

    def __init__(self, store: Store, store_bytes: int, dedupe: float | None) -> None:
        self._seq, self._most = store.last_incoming(), store_bytes
        self._former_until = store.converted_at + 2 * (dedupe or 0)
        """Marks that end before may be beside some of a former version, which were of the sender's address."""
        self._hand = b""
        self.taken = 0
        """Bytes of what was stored."""
        self._others: int | None = None
        """Bytes in use but for ``taken``, of peers; None before they were measured."""

    def measured(self, size: int, taken: int) -> None:
        """Know that peers had ``size`` bytes of the store in use when ``taken`` was as given."""
        self._others = size - taken

    def _is_full(self, size: int) -> bool:
        """Return whether peers have all that they may have; what the program has published is not theirs."""
        return size >= self._most and (self._others is None or self._others + self.taken >= self._most)

    def take(self, store: Store, batches: list[Arrivals]) -> None:
        """Store what is new of ``batches`` and mark it as seen; carry out their commands."""
        size = store.size
        for batch in batches:
            batch.new, batch.carried_out = [], []
            batch.finds_full = self._is_full(size)
            if batch.finds_full:
                self._forget_seen(store, len(batch.rows))  # makes room, in the end
                continue
            size += batch.size
            self.taken += batch.size
            rows = (
                batch.rows
                if batch.until is None
                else self._unseen(store, batch.origin, batch.sender, batch.rows, batch.until)
            )
            if batch.commands:
                rows = [row for row in rows if not self._is_carried_out(store, batch, row[0])]
            sender, seq = batch.sender, self._seq
            batch.new = [Arrived(seq, id, sender, keys, data) for seq, (id, keys, data) in enumerate(rows, seq + 1)]
            self._seq += len(rows)
            store.arrive(batch.new)

    def _unseen(self, store: Store, origin: str, sender: str, rows: list[Row], until: float) -> list[Row]:
        """Return those of ``rows`` whose ids are new from this sender, and mark them as seen."""
        self._forget_seen(store, len(rows))
        ids = [row[0] for row in rows]
        if sender and until < self._former_until:
            former = marks_of(sender, ids)
            new = store.unseen(former)
            rows = [row for row, mark in zip(rows, former, strict=True) if mark in new]
            ids = [row[0] for row in rows]
        marks = marks_of(origin, ids)
        if store.see_all(marks, until):
            return rows
        new = store.unseen(marks)
        store.see(new, until)
        found = []
        for mark, row in zip(marks, rows, strict=True):
            if mark in new:
                new.remove(mark)
                found.append(row)
        return found

    def _forget_seen(self, store: Store, rows: int) -> None:
        self._hand = store.forget_seen(self._hand, SWEEP_ROWS + rows) or b""

    def _is_carried_out(self, store: Store, batch: Arrivals, id: bytes) -> bool:
        order = batch.commands.get(id)
        if order is None:
            return False
        self._carry_out(store, *order)
        batch.carried_out.append(order)
        return True

    def _carry_out(self, store: Store, command: Command, number: int, identity: bytes | None) -> None:
        if command.verb == SUBSCRIBE:
            if identity:
                store.pin(command.address, identity)
            store.add_destination(command.address, number)
            store.add_subscriptions(command.address, command.keys)
        else:
            store.remove_subscriptions(command.address, None if command.verb == REMOVE else command.keys)


def marks_of(origin: str, ids: Sequence[bytes]) -> list[bytes]:
    """Return what marks each of ``ids`` as seen from ``origin``: nobody can make a duplicate of what another sends.

    A subscriber knows the ids of what other subscribers get, too. The first half is that of the id: it begins with the
    time, so that new marks are at the end of the table.
    """
    keyed = blake2b(origin.encode(), digest_size=8)
    marks = list[bytes]()
    for id in ids:
        mark = keyed.copy()
        mark.update(id)
        marks.append(id[:8] + mark.digest())
    return marks


class Inbox:
    """``serve`` runs for each peer that connects."""

    def __init__(
        self,
        store: Store,
        commits: GroupCommit,
        routes: Routes,
        numbers: Mapping[str, int],
        number_of: Callable[[str], int],
        allowed: wire.Allowed,
        dedupe: float | None,
        store_bytes: int,
        arrived: Callable[[Sequence[Arrived]], None],
        turns: Turns,
    ) -> None:
        self._store, self._commits, self._routes, self._numbers = store, commits, routes, numbers
        self._turns, self._warn = turns, Seldom(log.warning)
        self._number_of, self._allowed, self._dedupe, self._arrived = number_of, allowed, dedupe, arrived
        self._pinned = store.pinned()
        """The identity of the store at each address that has subscribed."""
        self._asked = self._asked_bytes = 0
        """Subscriptions that commands add which are being stored, and the bytes of their keys."""
        self._taking = Taking(store, store_bytes, dedupe)
        self._take = self._taking.take
        self._is_measuring, self._measure_after = False, 0.0
        self.refused = 0
        """Messages and commands that we did not take."""
        self.held_off = 0
        """Messages and commands that we did not take yet, each time that they came: the store was full."""

    async def serve(self, peer: wire.Peer) -> None:
        """Take what ``peer`` sends until it goes. Raise ``WireError``."""
        while True:
            messages = await peer.receive()
            batch, refused = self._checked(peer, messages)
            try:
                async with self._turns.turn():
                    await self._commits.write(self._take, [batch], self._stored)
            except DiskFull as error:
                log.error("cannot store what comes", reason=str(error))
                peer.close("the disk is full")
                return
            finally:
                self._asked -= sum(map(len, batch.asked.values()))
                self._asked_bytes -= sum(map(bytes_of, batch.asked.values()))
            if batch.finds_full:
                self._hold_off(peer, batch)
                await self._measure()
                return
            self.refused += len(refused)
            peer.acknowledge(messages[-1].seq, refused)

    def _hold_off(self, peer: wire.Peer, batch: Arrivals) -> None:
        if not self.held_off:
            log.error("the store is full: peers keep what they send, and try again")
        self.held_off += len(batch.rows)
        peer.close("the store is full")

    async def _measure(self) -> None:
        """Learn how much of the store is of peers, unless that was learnt just now."""
        if self._is_measuring or time.monotonic() < self._measure_after:
            return
        self._is_measuring, begun, taken = True, time.monotonic(), self._taking.taken
        try:
            self._taking.measured(await asyncio.to_thread(self._size_of_peers), taken)
        finally:
            self._is_measuring, now = False, time.monotonic()
            self._measure_after = now + max(MEASURE_SECONDS, 10 * (now - begun))

    def _size_of_peers(self) -> int:
        with closing(Store.read(self._store.path.parent)) as store:
            return store.size_of_peers()

    def _checked(self, peer: wire.Peer, messages: Sequence[wire.MessageFrame]) -> tuple[Arrivals, dict[int, str]]:
        until = None if not self._dedupe else self._store.clock + self._dedupe
        batch, refused = Arrivals(peer.address, peer.store.hex(), until), dict[int, str]()
        rows = batch.rows
        for message in messages:
            seq, id, names, data, _ = message
            keys = names[0] if len(names) == 1 else SEPARATOR.join(names)
            if keys.count(SEPARATOR) != len(names) - 1:
                refused[seq] = "a key has a line feed"
                continue
            if names[0] in COMMANDS:
                try:
                    batch.commands[id] = self._command(peer, message, batch)
                except ValueError as error:
                    refused[seq] = str(error)
                    continue
            rows.append((id, keys, data))
        return batch, refused

    def _command(self, peer: wire.Peer, message: wire.MessageFrame, batch: Arrivals) -> Order:
        """Return the command in ``message``. Raise ``ValueError`` if it is none, or not allowed."""
        command = Command.parse(message.keys[0], message.data)
        if reason := self._allowed.refusal(peer.address, peer.names, command.keys, command.address):
            self._warn("a subscription is refused", peer=peer.address, reason=reason)
            raise ValueError(reason)
        self._require_pinned(peer)
        number = self._numbers.get(command.address, 0)  # 0 is nobody's
        if command.verb != SUBSCRIBE:
            return Order(command, number, None)
        if not command.keys:
            raise ValueError("expected keys to subscribe to")
        asked = batch.asked.setdefault(command.address, set())
        new = self._routes.new(number, command.keys) - asked
        if (
            (not number and len(self._numbers) >= MAX_DESTINATIONS)
            or self._routes.count(number) + len(asked) + len(new) > MAX_KEYS
            or len(self._routes) + self._asked + len(new) > MAX_SUBSCRIPTIONS
            or self._routes.bytes + self._asked_bytes + bytes_of(new) > MAX_SUBSCRIBED_BYTES
        ):
            raise ValueError("too many subscriptions")
        asked.update(new)
        self._asked += len(new)
        self._asked_bytes += bytes_of(new)
        is_own = command.address == peer.address
        if is_own:
            self._pinned.setdefault(peer.address, peer.store)
        return Order(command, self._number_of(command.address), peer.store if is_own else None)

    def _require_pinned(self, peer: wire.Peer) -> None:
        """Raise ``ValueError`` if the address that ``peer`` says is its own belongs to another store."""
        if self._pinned.get(peer.address, peer.store) != peer.store:
            reason = f"{peer.address} has subscribed with another store: `penstock outbox trust {peer.address}` there"
            self._warn("a subscription is refused", "store", peer=peer.address, host=peer.host, reason=reason)
            raise ValueError(reason)

    def trust(self, addresses: Sequence[str]) -> None:
        """Know that addresses may come with another store."""
        for address in addresses:
            self._pinned.pop(address, None)

    def _stored(self, batches: Sequence[Arrivals]) -> None:
        for batch in batches:
            for order in batch.carried_out:
                self._carried_out(*order)
            if batch.new:
                self._arrived(batch.new)

    def _carried_out(self, command: Command, number: int, _: bytes | None) -> None:
        if command.verb == SUBSCRIBE:
            if self._numbers.get(command.address) == number:  # it was not forgotten in the same transaction
                self._routes.add(number, command.keys)
        else:
            self._routes.remove(number, None if command.verb == REMOVE else command.keys)
        what, keys = command.verb.strip("_").replace("_", " "), list(command.keys[:LOGGED_KEYS])
        log.info(what, address=command.address, keys=keys, count=len(command.keys))
