"""Publish and subscribe without a broker: see docs/outbox.md."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from penstock.base.errors import WrongCall
from penstock.base.log import Log, Seldom
from penstock.base.payload import as_payload
from penstock.core.backoff import Backoff
from penstock.outbox import wire
from penstock.outbox.commands import REMOVE, SUBSCRIBE, UNSUBSCRIBE, Command
from penstock.outbox.commits import GroupCommit
from penstock.outbox.deliveries import Deliveries
from penstock.outbox.errors import Damaged, DiskFull
from penstock.outbox.frames import MAX_KEYS_BYTES
from penstock.outbox.handlers import Function, Handler, Handlers
from penstock.outbox.handling import Handling
from penstock.outbox.ids import as_text, new_id
from penstock.outbox.inbox import Inbox
from penstock.outbox.keys import Keys, as_keys, message_keys
from penstock.outbox.lock import Lock
from penstock.outbox.notes import Noted, note_of, publish_noted
from penstock.outbox.spool import BUS, Spools
from penstock.outbox.store import SEPARATOR, Copy, Counts, Published, Store
from penstock.outbox.turns import Turns

RETRIES: Final = Backoff((), 1.0, 60.0)
RECONNECTS: Final = Backoff((), 0.1, 15.0)
CLOSE_SECONDS: Final = 10.0
STORE_BYTES: Final = 16 * 1024**3
READ_REST: Final = 4.0
"""Rest after a read of what waits for a server, as a multiple of its time: to send and to remove it takes longer."""
COPY_BYTES: Final = 400
"""About what changes in the store for each copy of a message."""
log = Log("outbox")


@dataclass(frozen=True)
class Status:
    """What an outbox has. ``str(status)`` is one line."""

    counts: Counts
    away: dict[str, str]
    """Why each destination that waits for messages cannot be reached now."""
    commits: int
    """Transactions since the start."""
    strangers: Counter[str]
    """Connections that were refused, by the reason."""
    refused: int
    """Messages and commands of peers that were refused."""
    held_off: int
    """Messages and commands of peers that found the store full: the peers keep them and try again."""
    trouble: str = ""
    """Why the store cannot be written, e.g. as the disk is full, or what of it is damaged; empty if all is well."""

    def __str__(self) -> str:
        counts = self.counts
        return (
            f"{counts.keys} keys, {counts.subscribers} subscribers, {counts.incoming} incoming, "
            f"{counts.outgoing} outgoing and {counts.dead} dead"
        )


class Outbox:
    """A sender and a receiver with a store in ``datadir``, which is made, for its owner alone, if it does not exist.

    ``bind``: host:port to listen at, or several; none only sends. ``advertise``: where others reach us, by default
    ``bind``. ``dedupe``: how long (s) duplicates are recognised; 0: never. ``attempts``: how often the handlers of a
    message run before it is a dead letter, with the delays of ``backoff`` between; None: for ever, also if it kills the
    process each time. ``concurrency``: how many messages are handled at once. ``reconnects``: the delays between
    attempts to reach a destination. ``store_bytes``: while what peers have sent takes as many, nothing is taken from
    them, and they try again; what is published here does not count.

    Use it as ``async with``: raise ``Locked`` if the datadir is in use, ``Damaged``, ``DiskFull``, or ``OSError`` if an
    address is taken. After that, calls that store something raise ``DiskFull`` if they cannot, or ``Damaged``, also at
    the end, once the file of the store was deleted.
    """

    def __init__(
        self,
        *,
        datadir: str | Path,
        bind: str | Iterable[str] = (),
        advertise: str = "",
        security: wire.Security | None = None,
        allowed: wire.Allowed | None = None,
        dedupe: float = 86_400,
        attempts: int | None = 5,
        backoff: Backoff = RETRIES,
        reconnects: Backoff = RECONNECTS,
        concurrency: int = 10,
        limits: wire.Limits | None = None,
        store_bytes: int = STORE_BYTES,
    ) -> None:
        self.datadir = Path(datadir).absolute()
        self._bind = [bind] if isinstance(bind, str) else list(bind)
        if not advertise and (len(self._bind) > 1 or any(map(_is_any, self._bind))):
            raise WrongCall("expected advertise, as bind does not say where others reach this outbox")
        if (attempts is not None and attempts < 1) or concurrency < 1 or dedupe < 0:
            raise WrongCall("expected attempts and concurrency of 1 or more, and dedupe of 0 or more")
        if store_bytes < 1:
            raise WrongCall("expected store_bytes of 1 or more")
        if advertise and not wire.is_address(advertise):
            raise WrongCall(f"advertise: {advertise!r} is no address: expected host:port")
        self._given = self.advertise = advertise
        self._security = security or wire.Security.none()
        self._allowed = allowed or wire.Allowed()
        self._dedupe, self._attempts, self._concurrency = dedupe or None, attempts, concurrency
        self._backoff, self._reconnects = backoff, reconnects
        self._limits, self._store_bytes = limits or wire.Limits(), store_bytes
        self.max_bytes: Final = self._limits.max_message_bytes - MAX_KEYS_BYTES
        """The size of the largest message that can be published."""
        self._drained: asyncio.Future[None] | None = None
        self._opened: AsyncExitStack | None = None
        self._is_open = False
        """Also while it closes: handlers that run may still publish."""
        self._handling: Handling | None = None
        self._spools = set[str]()
        self._warn = Seldom(log.warning)
        self._handlers = Handlers(self._handlers_changed)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(_make, self.datadir)
        async with AsyncExitStack() as opened:
            lock = Lock(self.datadir)
            opened.callback(lock.release)
            store = await asyncio.to_thread(Store.open, self.datadir, has_log=lock.has_log)
            opened.callback(store.close)
            opened.callback(lock.note_log, False)
            await asyncio.to_thread(lambda: lock.note_log(store.begin_log()))
            self._reader = store.beside()
            opened.callback(self._reader.close)
            self._commits = GroupCommit(store)
            opened.push_async_callback(self._commits.close)
            await self._start(store)
            self._opened, self._is_open = opened.pop_all(), True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _start(self, store: Store) -> None:
        self._seq = store.last_outgoing()
        self._turns = Turns(rest=READ_REST)
        deliveries = self._deliveries = Deliveries(
            self._reader, self._commits, self._connect, self._reconnects, self._check_drained
        )
        if self._attempts is None:
            with store.transaction():
                store.acquit()
        if store.peers_bound != self._store_bytes:
            with suppress(DiskFull), store.transaction():  # it is for people: status shows it
                store.note_peers_bound(self._store_bytes)
        handling = self._handling = Handling(
            self._reader,
            self._commits,
            self._attempts,
            self._backoff,
            self._concurrency,
            self._handlers,
            self._check_drained,
        )
        inbox = self._inbox = Inbox(
            store,
            self._commits,
            deliveries.routes,
            deliveries.numbers,
            deliveries.number_of,
            self._allowed,
            self._dedupe,
            self._store_bytes,
            handling.arrived,
            Turns(lambda: handling.is_behind),
        )
        self._identity = wire.Identity(self._given or "".join(self._bind[:1]), store.identity)
        self._listener: wire.Listener | None = None
        if self._bind:
            self._listener = await wire.listen(
                self._bind,
                self._identity,
                self._security,
                inbox.serve,
                limits=self._limits,
                on_refused=self._log_stranger,
            )
            if not self._given:
                self.advertise = self._listener.addresses[0]
                self._identity = wire.Identity(self.advertise, store.identity)
        handling.start()
        deliveries.start()

    # ---- sending

    async def publish(self, keys: Keys, data: Any, *, json: bool = False) -> str:
        """Store ``data`` for all who are subscribed to one of ``keys``, once each; return its id once it is on disk.

        Nothing is stored if nobody is. ``data`` is bytes or text, or any JSON value if ``json``. Raise ``WrongCall``.
        """
        self._require_open()
        names, body = message_keys(keys), as_payload(data, json=json)
        copies = self._deliveries.routes.copies(names)
        id = new_id()
        if copies:
            message = self._message(id, names, body, copies)
            size = len(body) + COPY_BYTES * len(copies)
            await self._commits.write(Store.publish, (message,), self._deliveries.offer, size)
        return as_text(id)

    def subscribers(self, keys: Keys) -> int:
        """Return for how many destinations ``publish`` would store a message now. Raise ``WrongCall``."""
        self._require_open()
        return len(self._deliveries.routes.copies(message_keys(keys)))

    async def publish_all(self, messages: Sequence[tuple[Keys, bytes]], source: str, note: str) -> None:
        """Publish messages of ``source`` together with its new ``note``, for ``note_of``: all are on disk, or none.

        A program that moves messages here knows by its note, after a crash, which of them it has moved.
        """
        self._require_open()
        stored = list[Published]()
        for keys, data in messages:
            names = message_keys(keys)
            if copies := self._deliveries.routes.copies(names):
                stored.append(self._message(new_id(), names, data, copies))
        await self._commits.write(publish_noted, [Noted(source, note, stored)], self._deliveries.offer_noted)

    def note_of(self, source: str) -> str | None:
        """Return the last note of ``source``, None if there is none."""
        self._require_open()
        return note_of(self._reader, source)

    async def send(self, key: Keys, data: Any, address: str, *, json: bool = False) -> str:
        """Store ``data`` for ``address``, which need not have subscribed; return its id once it is on disk."""
        self._require_open()
        names, body = message_keys(key), as_payload(data, json=json)
        message = self._message(new_id(), names, body, [Copy(self._deliveries.number_of(address), None)])
        row = (address, message)
        await self._commits.write(Store.send, [row], self._deliveries.offer_sent, len(body) + COPY_BYTES)
        return as_text(message.id)

    async def subscribe(self, address: str, keys: Keys) -> None:
        """Ask ``address`` for all that is published there with one of ``keys``; return once that is on disk here.

        It is asked until it has acknowledged, across restarts of both. To ask again changes nothing.
        """
        await self._ask(SUBSCRIBE, address, as_keys(keys))

    async def unsubscribe(self, address: str, keys: Keys) -> None:
        """Ask ``address`` for messages with ``keys`` no more; as ``subscribe``."""
        await self._ask(UNSUBSCRIBE, address, as_keys(keys))

    async def remove_destination(self, address: str) -> None:
        """Ask ``address`` for nothing any more, whatever the keys; as ``subscribe``."""
        await self._ask(REMOVE, address, ())

    async def forget(self, address: str) -> None:
        """Drop a destination that is gone for good: its subscriptions here, and what waits for it.

        What is sent to it meanwhile may be dropped, too.
        """
        self._require_open()
        await self._deliveries.forget(address)
        self._inbox.trust([address])

    async def trust(self, address: str) -> None:
        """Let another store subscribe with ``address``, e.g. as that outbox was installed anew: the next that does."""
        self._require_open()
        await self._commits.write(Store.trust, [address], self._inbox.trust)

    async def _ask(self, verb: str, address: str, keys: tuple[str, ...]) -> None:
        self._require_open()
        if not self.advertise:
            raise WrongCall("expected bind or advertise: others cannot reach this outbox")
        body = Command(verb, self.advertise, keys).as_json()
        message = self._message(new_id(), (verb,), body, [Copy(self._deliveries.number_of(address), None)])
        row = (address, message, None if verb == REMOVE else keys, verb == SUBSCRIBE)
        await self._commits.write(Store.ask, [row], self._deliveries.offer_sent)

    def _require_open(self) -> None:
        if not self._is_open:
            raise WrongCall("the outbox is closed: expected `async with Outbox(...)` around this call")

    def _message(self, id: bytes, keys: Sequence[str], body: bytes, copies: Sequence[Copy]) -> Published:
        if len(body) > self.max_bytes:
            raise WrongCall(f"a message of {len(body):,} bytes is too large: the limit is {self.max_bytes:,}")
        self._seq += 1
        return Published(self._seq, id, SEPARATOR.join(keys), body, copies)

    def _log_stranger(self, kind: str, host: str, reason: str) -> None:
        self._warn("a connection is refused", kind, host=host, reason=reason)

    async def _connect(self, address: str) -> wire.Peer:
        return await wire.connect(address, self._identity, self._security, limits=self._limits)

    # ---- lists of a server

    def spools(self, server: str, *, of_bus: bool = False) -> Spools:
        """Return what waits for lists of the Redis server ``server``, or queues of the bus with this first server.

        It is held until ``release``. Raise ``WrongCall`` if it is in use.
        """
        self._require_open()
        return Spools(self._reader, self._commits, self._turns, f"{BUS}{server}" if of_bus else server, self._spools)

    # ---- handlers

    def every(self, keys: Keys, function: Function) -> Handler:
        """Call ``function`` with each message that has one of ``keys``; ``off`` of what is returned ends that.

        ``function`` gets a ``Message``; a message is removed from the store once all of its handlers, or what they
        return to await, have returned. If one raises, all run again after a delay. They also run again if the process
        ends before the removal is on disk.
        """
        return self._handlers.every(keys, function)

    def once(self, keys: Keys, function: Function) -> Handler:
        """Call ``function`` once, as soon as messages with all of ``keys`` have come; with the last of them."""
        return self._handlers.once(keys, function)

    def any(self, keys: Keys, function: Function) -> Handler:
        """Call ``function`` once, with the first message that has one of ``keys``."""
        return self._handlers.any(keys, function)

    def all(self, function: Function) -> Handler:
        """Call ``function`` with every message."""
        return self._handlers.all(function)

    def _handlers_changed(self) -> None:
        if self._handling is not None:
            self._handling.start_again()

    # ---- state

    async def drain(self) -> None:
        """Wait until nothing is incoming or outgoing."""
        self._require_open()
        await asyncio.sleep(0)
        while not self._reader.is_drained:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _check_drained(self, _: object = None) -> None:
        if self._drained is not None and self._reader.is_drained:
            self._drained.set_result(None)
            self._drained = None

    async def status(self) -> Status:
        """Count what is stored; takes some 0.1 s for a million messages."""
        try:
            self._reader.require_file()
        except Damaged as error:
            self._commits.note_damage(error)
            counts = self._reader.counts()
        else:
            counts = await asyncio.to_thread(self._counts)
        return Status(
            counts,
            self._deliveries.away,
            self._commits.counts["commits"],
            Counter() if self._listener is None else self._listener.counts,
            self._inbox.refused,
            self._inbox.held_off,
            self._commits.trouble,
        )

    def _counts(self) -> Counts:
        store = Store.read(self.datadir)
        try:
            return store.counts()
        finally:
            store.close()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait ``seconds`` for handlers that run, end all connections and free the datadir. Again does nothing."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        async with opened:
            if self._listener is not None:
                await self._listener.close()
            if self._handling is not None:
                await self._handling.close(seconds)
            await self._deliveries.close()
        self._is_open = False


def _make(datadir: Path) -> None:
    """Make ``datadir`` for its owner alone, with its name on disk, and that of each directory above that is new."""
    new = [each for each in (datadir, *datadir.parents) if not each.exists()]
    datadir.mkdir(0o700, parents=True, exist_ok=True)
    for each in new:
        above = os.open(each.parent, os.O_RDONLY)
        try:
            os.fsync(above)
        finally:
            os.close(above)


def _is_any(bind: str) -> bool:
    return wire.host_and_port(bind)[0] in ("0.0.0.0", "::")


__all__ = ["Outbox", "Status"]
