"""A bus: queues, channels, objects, topics and services on one or several servers, as busmq has them."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self, TypeVar, Unpack, overload

from redis.exceptions import RedisError

from penstock.base.encoding import decoded, parse_whole
from penstock.base.errors import PenstockError, Unauthorized, Unavailable, WrongCall
from penstock.base.log import Log
from penstock.base.payload import checked
from penstock.bus.channel import Channel
from penstock.bus.events import Emitter
from penstock.bus.fallback import BusOutbox, check_outbox
from penstock.bus.keep_alive import KeepAlive
from penstock.bus.keys import CLOSED, MOVED, NOTIFICATIONS
from penstock.bus.persistable import Persistable
from penstock.bus.place import Place
from penstock.bus.placement import INDEX, Homes, Placement
from penstock.bus.pubsub import PubSub
from penstock.bus.queue import Queue
from penstock.bus.service import Service
from penstock.bus.taking import Claim
from penstock.core.durability import DURABILITY, Level
from penstock.core.instance import WATCH_SECONDS, Instance, check_url
from penstock.core.link import passes
from penstock.core.patience import Patience
from penstock.core.tasks import Tasks
from penstock.core.writer import CONFIRM_SECONDS

if TYPE_CHECKING:
    from penstock.bus.federation import (
        FederatedChannel,
        FederatedPersistable,
        FederatedPubSub,
        FederatedQueue,
        FederatedService,
        Sites,
    )
    from penstock.bus.federation.site import SiteOptions
    from penstock.outbox import Outbox

LEAVE_SECONDS: Final = 4.0
"""Seconds for which a server is waited for that does not answer."""
_log: Final = Log("penstock.bus")
BUFFER: Final = 10_000
"""Maximum number of calls that wait for one server."""
T = TypeVar("T")


class Leaver(Protocol):
    """An object of a bus."""

    async def leave(self) -> Any:
        """End in order."""


class Leaving:
    """The objects that are in use."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._instances = instances
        self._used = dict[Leaver, None]()

    def add(self, each: Leaver) -> None:
        """Have ``each`` leave before those that were added earlier."""
        self._used[each] = None

    def remove(self, each: Leaver) -> None:
        """Note that ``each`` has ended by itself."""
        self._used.pop(each, None)

    async def leave_all(self) -> None:
        """End all objects, for a bounded time while a server does not answer."""
        left_at = time.monotonic()
        while self._used:
            leaving = {asyncio.ensure_future(_leave(each)) for each in self._next()}
            while leaving:
                _, leaving = await asyncio.wait(leaving, timeout=WATCH_SECONDS)
                if not any(each.is_away for each in self._instances):
                    left_at = time.monotonic()
                elif time.monotonic() - left_at > LEAVE_SECONDS:
                    _log.warning("not left in order", objects=len(leaving), reason="a server does not answer")
                    for each in leaving:
                        each.cancel()
                    await asyncio.gather(*leaving, return_exceptions=True)
                    leaving = set()

    def _next(self) -> list[Leaver]:
        """Remove and return the latest; with a queue those before it that are queues, too."""
        together = [self._used.popitem()[0]]
        while self._used and isinstance(together[0], Queue) and isinstance(next(reversed(self._used)), Queue):
            together.append(self._used.popitem()[0])
        return together


async def _leave(each: Leaver) -> None:
    try:
        await each.leave()
    except (PenstockError, RedisError, OSError) as error:
        _log.warning("not left in order", object=str(each), reason=str(error))


class Bus(Emitter):
    """Queues and more on the keys of busmq 3.1.0: ``async with Bus("redis://localhost:6379") as bus:``.

    With several URLs, ``placement`` chooses the server of each new name; existing ones are found wherever they are.
    ``patience`` is how long (s) a call waits while its server is away, full or read-only, before it raises
    ``Unavailable``; None waits without end. At most ``buffer`` calls wait for one server.

    ``durability`` is what a push waits for: nothing (``memory``), the server's disk (``aof``), or replicas
    (``replicas:N`` or ``replicas:majority``). If that is not confirmed within 10 s, or ``patience`` if that is shorter,
    it raises ``NotDurable``: the message is in the queue, and a failover may lose it.

    ``outbox`` is a ``penstock.outbox.Outbox``, or the data directory of one: while servers are out of reach, ``push``
    to a queue stores there and returns, and what is stored is pushed in order, once, when they are back. Then neither
    ``connect`` nor ``attach`` waits for them. Channels, topics, services and objects of other sites do not use it. Only
    one process at a time uses a data directory, and it knows the bus by its first URL.

    Events: ``online`` once the first server is there, ``offline`` once none is, ``degraded`` (their URLs) while some
    are away, ``instance:up`` and ``instance:down`` (its URL) for each.

    Without a URL it only federates objects of other sites (``federate``).
    """

    EVENTS: ClassVar = frozenset({"online", "offline", "degraded", "instance:up", "instance:down", "error"})

    def __init__(
        self,
        *urls: str,
        placement: Placement | str = Placement.BUSMQ,
        patience: float | None = 60.0,
        buffer: int = BUFFER,
        durability: str = "memory",
        outbox: "Outbox | str | Path | None" = None,
    ) -> None:
        super().__init__()
        check_outbox(outbox, urls)
        for url in urls:
            check_url(url)
        if placement not in [*Placement]:
            raise WrongCall(f"placement={placement}: expected {' or '.join(Placement)}")
        if not re.fullmatch(DURABILITY, durability):
            raise WrongCall(f"durability={durability}: expected memory, aof, replicas:N or replicas:majority")
        self.id = secrets.token_hex(8)
        self._patience, self._buffer = Patience(patience), buffer
        level = self._level(durability)
        self.instances = [Instance(url, self._patience, buffer, self._changed, level, log=_log) for url in urls]
        self._homes = Homes(self.instances, INDEX[Placement(placement)], self._patience)
        self._outbox = None if outbox is None else BusOutbox(outbox, self.instances, self._homes)
        self._alive = KeepAlive(self.instances, self.spawn)
        self._leaving = Leaving(self.instances)
        self._tasks = Tasks(_log, partial(self.emit, "error"))
        self._connecting: asyncio.Future[None]
        self._sites: Sites | None = None
        self._leaves = self._is_online = False

    def _level(self, durability: str) -> Level | None:
        """Return what confirms the pushes of one server; None if nothing does."""
        return None if durability == "memory" else Level(durability, min(CONFIRM_SECONDS, self._patience.most()))

    @property
    def patience(self) -> float | None:
        """Return how long (s) a call waits; None without end."""
        return self._patience.seconds

    def bounded(self, why: Callable[[], str]) -> AbstractAsyncContextManager[None]:
        """Raise ``Unavailable`` with ``why()`` if a block waits for longer than ``patience``."""
        return self._patience.bounded(why)

    @property
    def buffer(self) -> int:
        """Return how many calls wait for one server at most."""
        return self._buffer

    @property
    def leaves(self) -> bool:
        """Return whether it is being disconnected, or was."""
        return self._leaves

    @property
    def outbox(self) -> BusOutbox | None:
        """Return what keeps pushes to queues while servers are away."""
        return self._outbox

    @property
    def away(self) -> asyncio.Event | None:
        """Return what is set while a server is away, if pushes go to an outbox then; None without one."""
        return self._outbox.away if self._outbox else None

    @property
    def waiting(self) -> int:
        """Return how many messages wait in the outbox for queues of this bus."""
        return self._outbox.waiting if self._outbox else 0

    @property
    def first(self) -> Instance:
        """Return the first server, which has all topics. Raise ``WrongCall`` if the bus has none."""
        if not self.instances:
            raise WrongCall("the bus has no server of its own: expected an object of another site (`federate`)")
        return self.instances[0]

    @property
    def is_online(self) -> bool:
        """Return whether at least one server is there."""
        return self._is_online

    def queue(self, name: str) -> Queue:
        """Return the queue ``name``: ``attach`` to it, then push and consume."""
        return Queue(self, name, self._outbox)

    def channel(self, name: str, local: str = "local", remote: str = "remote") -> Channel:
        """Return one end of the channel ``name``: ``connect`` or ``listen``, then send."""
        for each in (name, local, remote):
            checked(each)
        return Channel(self, name, local, remote)

    def persistable(self, name: str, value: Any, fields: "list[str] | None" = None) -> Persistable:
        """Return ``value``, a dataclass, a pydantic model or another object, to be saved and loaded as ``name``.

        ``fields`` are those to keep, by default all of a dataclass or model.
        """
        checked(name)
        return Persistable(self, name, value, fields)

    def pubsub(self, name: str) -> PubSub:
        """Return the topic ``name``: its messages reach those who listen at that moment."""
        checked(name)
        return PubSub(self, name)

    def service(self, name: str) -> Service:
        """Return the service ``name``: ``serve`` it, or ``connect`` and send requests."""
        checked(name)
        return Service(self, name)

    @overload
    def federate(self, local: Queue, url: str, **options: Unpack["SiteOptions"]) -> "FederatedQueue": ...
    @overload
    def federate(self, local: Channel, url: str, **options: Unpack["SiteOptions"]) -> "FederatedChannel": ...
    @overload
    def federate(self, local: PubSub, url: str, **options: Unpack["SiteOptions"]) -> "FederatedPubSub": ...
    @overload
    def federate(self, local: Persistable, url: str, **options: Unpack["SiteOptions"]) -> "FederatedPersistable": ...
    @overload
    def federate(self, local: Service, url: str, **options: Unpack["SiteOptions"]) -> "FederatedService": ...

    def federate(self, local: Any, url: str, **options: Unpack["SiteOptions"]) -> Any:
        """Return ``local`` as it is at another site: an object with the same methods, whose calls go to ``url``.

        ``url`` is that of a gateway, such as ``wss://a.example/bus``, and ``secret`` its secret. Node's busmq as the
        server, which takes the secret from the query alone, needs ``secret_in_query``. The first call for a URL opens
        ``sockets`` websockets (1), with the context ``tls`` if it is given, which all its objects share; they are
        opened again whenever they end. Raise ``WrongCall`` if a later call asks for others.

        If the bus has servers of its own, queues that the other site announces are noted there, and found with
        ``Queue.find``.
        """
        self.check_connected()
        if self._sites is None:
            from penstock.bus.federation import Sites

            self._sites = Sites(self, NOTIFICATIONS)
        return self._sites.federate(local, url, options)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Connect to all servers; return once one is there.

        Raise ``Unavailable`` if none is for ``patience``, and ``Unauthorized`` if one refuses the login before. With an
        outbox return once each was tried, and raise as ``Outbox`` does.
        """
        if self._outbox:
            self._check_disconnected()
            await self._outbox.open()
        self.start()
        try:
            if self._outbox:
                await asyncio.wait({self._connecting}, timeout=self.patience)
                self._outbox.start()
            if not self._outbox or self._connecting.done():
                async with self.bounded(lambda: "; ".join(f"{each.address}: {each.reason}" for each in self.instances)):
                    await asyncio.shield(self._connecting)
        except BaseException:
            await self.disconnect()
            raise

    def start(self) -> None:
        """Begin to connect, and do not wait for it: calls wait for their servers, each up to ``patience``."""
        self._check_disconnected()
        self._patience.hurries = self._leaves = False
        self._connecting = asyncio.get_running_loop().create_future()
        for instance in self.instances:
            instance.subscriber.add(CLOSED, self._note_closed)
            instance.subscriber.add(MOVED, self._note_moved)
            instance.start()
        self.spawn(self._alive.run())
        self.spawn(self._alive.run_renewals())
        if not self.instances:
            self._is_online = True
            self._connecting.set_result(None)
            self.emit("online")
        self._connecting.add_done_callback(lambda each: each.cancelled() or each.exception())  # nobody may wait for it

    async def disconnect(self) -> None:
        """Detach from everything, give back what was not handled, and close the connections."""
        self._patience.hurries = self._leaves = True
        if self._tasks and not self._connecting.done():
            self._connecting.set_exception(Unavailable("the bus was disconnected"))
        await self._leaving.leave_all()
        if self._outbox:
            await self._outbox.close()
        await self._close_sites()
        if not self.instances and self._is_online:
            self._is_online = False
            self.emit("offline")
        await self._tasks.cancel()
        for instance in self.instances:
            instance.subscriber.remove(CLOSED, self._note_closed)
            instance.subscriber.remove(MOVED, self._note_moved)
            await instance.close()
        self._homes.clear()

    def _check_disconnected(self) -> None:
        if self._tasks:
            raise WrongCall("the bus is connected already")

    def check_connected(self) -> None:
        """Raise ``WrongCall`` outside ``connect`` and ``disconnect``."""
        if not self._tasks:
            raise WrongCall("the bus is not connected: expected `async with Bus(...) as bus:` around this call")

    async def home(self, key: str, *, anew: bool = False) -> Instance:
        """Return the server that has ``key``, or that will: see ``Homes.home``."""
        self.check_connected()
        return await self._homes.home(key, anew=anew) if self.instances else self.first

    async def locate(self, key: str) -> Instance | None:
        """Return the server that has the metadata ``key``: see ``Homes.locate``."""
        return await self._homes.locate(key)

    def forget_home(self, key: str) -> None:
        """Ask again for the server of ``key`` the next time."""
        self._homes.forget(key)

    def keep_alive(self, queue: Place) -> None:
        """Keep ``queue`` alive from now on."""
        self._alive.add(queue)

    def renew(self, claim: Claim) -> None:
        """Renew the lease of ``claim`` until it is over, also while a handler blocks the event loop."""
        self._alive.renew(claim)

    def abandon(self, queue: Place) -> None:
        """Keep ``queue`` alive no more."""
        self._alive.remove(queue)

    def announce(self, key: str, ttl: int) -> None:
        """Tell other sites that the queue with the metadata ``key`` lives for ``ttl`` seconds."""
        self.spawn(self._announce({"event": "queue", "key": key, "ttl": ttl}))

    def ends_with(self, each: Any) -> None:
        """Call ``each.leave()`` when the bus is disconnected."""
        self._leaving.add(each)

    def ended(self, each: Any) -> None:
        """Note that ``each`` has ended by itself."""
        self._leaving.remove(each)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run ``work`` until it ends or the bus is disconnected. Emit ``error`` if it ends by a bug."""
        return self._tasks.begin(work)

    async def _close_sites(self) -> None:
        if self._sites is not None:
            sites, self._sites = self._sites, None
            await sites.close()

    def _changed(self, instance: Instance, error: Exception | None) -> None:
        up = [each for each in self.instances if each.is_up]
        is_enough = self._outbox is None or self._outbox.note()
        if error is None:
            self._alive.hurry(instance)
            self.emit("instance:up", instance.address)
            if not self._is_online:
                self._is_online = True
                self.emit("online")
            if is_enough and not self._connecting.done():
                self._connecting.set_result(None)
        else:
            if not self._connecting.done() and not passes(error):
                self._connecting.set_exception(Unauthorized(f"{instance.address}: {error}"))
            if self._outbox and is_enough and not self._connecting.done():
                self._connecting.set_result(None)
            self.emit("instance:down", instance.address)
            if not up and self._is_online:
                self._is_online = False
                self.emit("offline")
        down = [each.address for each in self.instances if each.is_up is False]
        if up and down and not self._leaves:
            self.emit("degraded", down)

    def _note_closed(self, payload: bytes | None) -> None:
        when, _, name = (payload or b"").partition(b" ")
        for queue in self._alive.named(decoded(name)):
            if queue.attached_at < (parse_whole(when) or 0):  # not attached anew since
                queue.note_closed()

    def _note_moved(self, name: bytes | None) -> None:
        for queue in self._alive.named(decoded(name or b"")):
            if queue.is_attached:
                self.spawn(self._follow(queue))

    async def _follow(self, queue: Place) -> None:
        try:
            await queue.follow(queue.instance)
        except (PenstockError, RedisError) as error:
            _log.warning("queue not followed", queue=queue.name, reason=str(error))

    async def _announce(self, notice: dict[str, object]) -> None:
        try:
            await self.pubsub(NOTIFICATIONS).publish(notice, json=True)
        except (PenstockError, RedisError) as error:
            _log.warning("queue not announced", reason=str(error), **notice)
