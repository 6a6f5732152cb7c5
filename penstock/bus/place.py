"""A queue on its server: attach to it and keep it, run calls there, and follow it to another server."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from penstock.base.encoding import parse_whole
from penstock.base.errors import Gone, Moving, Unavailable, WrongCall
from penstock.base.log import Log
from penstock.bus.events import Emitter
from penstock.bus.host import Host
from penstock.bus.keys import QueueKeys, available_channel, check_attaching, lease_key, metadata_key
from penstock.bus.scripts import ATTACH
from penstock.core.instance import Instance
from penstock.core.link import Outage, again
from penstock.core.script import Script
from penstock.core.wire import Reply

AWAY_SECONDS: Final = 0.2
"""Seconds for which a bus with an outbox waits for ``attach`` while one of its servers is away."""
_log: Final = Log("penstock.bus")


class Follower(Protocol):
    """A consumption of a queue, which hears what becomes of that."""

    def note_attached(self) -> None:
        """Note that the queue is attached."""

    def note_recreated(self) -> None:
        """Note that the queue was created again."""

    def note_closed(self) -> None:
        """Note that somebody has closed the queue."""

    async def note_moved(self, old: Instance) -> None:
        """Note that the queue is on another server than ``old``."""


class Place(Emitter):
    """A queue by its name, with its keys, its server, and whether it is attached to.

    While it is, one that its server has lost is created again.
    """

    def __init__(self, bus: Host, name: str) -> None:
        super().__init__()
        self.name, self.bus = name, bus
        self.keys = QueueKeys.of(name)
        self.lease = lease_key(name)
        self.available = available_channel(name)
        self.instance: Instance
        """Its server once attached."""
        self.followers: Sequence[Follower] = ()
        self.seconds = 0
        """The ttl of the queue once attached."""
        self.attached_at = 0
        """When (us, by the clock of its server) it was attached."""
        self.pushed = self.consumed = 0
        """Messages that this object has pushed and handed out."""
        self._metadata = metadata_key(name)
        self._ready = asyncio.Event()
        self._reviving = asyncio.Lock()
        self._alive_at = 0.0
        self._options: dict[str, Any] = {}
        self._attaching: asyncio.Task[bool] | None = None
        self._attachers = 0
        self._discoverable = self._closed = False
        self._goes_on = False
        """Whether an ``attach`` that has returned goes on."""

    @property
    def is_attached(self) -> bool:
        """Return whether messages can be pushed and consumed."""
        return self._ready.is_set()

    async def exists(self) -> bool:
        """Return whether the queue exists."""
        return bool(await (await self.home()).command("EXISTS", self.keys.metadata))

    async def call(self, script: Script, **named: Any) -> Any:
        """Run a script that may run twice on the queue's server; if the queue is moved to another one, there.

        Raise as ``Instance.run`` does, and ``Gone`` if the queue is nowhere.
        """
        return await self._wherever(lambda instance: instance.run(script, **named))

    async def call_durably(self, script: Script, **named: Any) -> Any:
        """As ``call_once``, and wait until it is durable: see ``Instance.run_durably``."""
        return await self._wherever(lambda instance: instance.run_durably(script, **named))

    async def call_once(self, script: Script, **named: Any) -> Any:
        """As ``call``, for a script that must not run twice: raise ``Unconfirmed`` if its reply was lost."""
        return await self._wherever(lambda instance: instance.run_once(script, **named))

    async def finish(self, sent: Reply | None, script: Script, **named: Any) -> Any:
        """As ``call_once``; if the script was ``sent``, run it only if the server has not executed it."""
        if sent is not None:
            with suppress(Moving, Gone):
                return await self.instance.finish(sent, script, **named)
        return await self.call_once(script, **named)

    async def follow(self, instance: Instance) -> bool:
        """Wait while the queue is moved away from ``instance``; return True if it is elsewhere, or there to stay."""
        if not self.is_attached:
            self.bus.forget_home(self._metadata)
            return await self.bus.locate(self._metadata) not in (None, instance)
        async with self._reviving:
            if self.instance is not instance:
                return True
            found = await self.bus.locate(self._metadata)
            if found in (None, instance):
                return False
            assert found is not None
            self.instance = found
            self._alive_at = time.monotonic()
            _log.info("queue followed", queue=self.name, server=found.address)
            for each in tuple(self.followers):
                await each.note_moved(instance)
            return True

    async def attach(self, *, ttl: int = 30, maxsize: int = 0, discoverable: bool = False) -> bool:
        """Create the queue, or join it with the ttl and maxsize that it has; return whether it existed.

        It lives for ``ttl`` seconds after the last client that is attached has gone, then all of it is deleted. A queue
        with ``maxsize`` messages refuses more; 0 is no limit. One that is ``discoverable`` is found from other sites.

        If the bus has an outbox, and a server is away, return False soon, and attach when it is back.
        """
        self.bus.check_connected()
        if self.is_attached:
            raise WrongCall(f"queue {self.name}: attached already")
        check_attaching(ttl, maxsize)
        if self._attaching is None:
            self._options = {"ttl": int(ttl), "maxsize": int(maxsize), "discover": "true" if discoverable else "false"}
            self._goes_on = False
            self._attaching = self.bus.spawn(self._attach())
            self._attaching.add_done_callback(self._end_attaching)
        attaching = self._attaching
        self._attachers += 1
        try:
            if self.bus.away and not await self._attached_or_away(attaching, self.bus.away):
                self._goes_on = True
                return False
            return await asyncio.shield(attaching)
        finally:
            self._attachers -= 1
            if not self._attachers and not attaching.done() and not self._goes_on:  # all were cancelled
                self._attaching = None
                attaching.cancel()

    @property
    def options(self) -> Mapping[str, Any]:
        """Return what ``attach`` was called with, as ``attach.lua`` has it."""
        return self._options

    def check_pushable(self) -> None:
        """Raise ``Gone`` after the queue was closed, ``WrongCall`` before ``attach`` was called."""
        if self._closed:
            raise Gone(f"queue {self.name} was closed: attach to it anew")
        if not self.is_attached and self._attaching is None:
            raise WrongCall(f"queue {self.name}: with an outbox, expected `attach` before `push`")

    async def wait_attached(self) -> None:
        """Wait for ``attach``.

        Raise ``Gone`` after the queue was closed, ``Unavailable`` if it takes too long or the bus is disconnected.
        """
        if self._closed:
            raise Gone(f"queue {self.name} was closed: attach to it anew")
        if self.is_attached:
            return
        self.bus.ends_with(self)
        async with self.bus.bounded(lambda: f"queue {self.name} is not attached"):
            while not self.is_attached:
                if self.bus.leaves:
                    raise Unavailable(f"queue {self.name}: the bus was disconnected")
                await self._ready.wait()

    def note_alive(self, when: float) -> None:
        """Note that the queue existed at ``when`` (monotonic), and tell other sites if it may be found there."""
        self._alive_at = when
        if self._discoverable:
            self.bus.announce(self._metadata, self.seconds)

    def note_ttl(self, seconds: int) -> None:
        """Note that somebody has given the queue another ttl (s)."""
        if self.is_attached and seconds != self.seconds:
            self.seconds = seconds
            self.bus.keep_alive(self)

    async def note_gone(self, since: float) -> bool:
        """Find out why the queue did not exist for a call of ``since`` (monotonic).

        Return True if it was moved, or created again, False if somebody closed it.
        """
        if await self.follow(self.instance):
            return True
        async with self._reviving:
            if not self.is_attached:
                return False
            if self._alive_at >= since:  # after another call it was created again
                return True
            lived = time.monotonic() - self._alive_at
            if lived < self.seconds and self.instance.lost_at < self._alive_at:
                self.note_closed()
                return False
            if not await self.exists():
                reason = "its ttl has passed" if lived >= self.seconds else "its server has lost it"
                _log.warning("queue lost with its messages", queue=self.name, reason=reason)
            exists = await self._create()
            self.emit("attached", exists)
            for each in self.followers:
                each.note_recreated()
            return True

    def note_closed(self) -> None:
        """Note that somebody has closed the queue."""
        if self.is_attached:
            self.bus.forget_home(self._metadata)
            self._closed = True
            self._left()
            for each in tuple(self.followers):
                each.note_closed()
            self.emit("closed")

    async def _end_attach(self) -> None:
        """Give up an ``attach`` that has not ended."""
        if attaching := self._attaching:
            self._attaching = None
            attaching.cancel()
            await asyncio.wait({attaching})

    async def _attached_or_away(self, attaching: "asyncio.Task[bool]", away: asyncio.Event) -> bool:
        """Return whether ``attaching`` has ended, once it has, or a server is away, or the patience has ended.

        The server that is away need not be the one of the queue: so it gets a moment.
        """
        waiting = asyncio.ensure_future(away.wait())
        try:
            patience = self.bus.patience
            await asyncio.wait({attaching, waiting}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not attaching.done():
            await asyncio.wait({attaching}, timeout=AWAY_SECONDS)
        return attaching.done()

    async def _attach(self) -> bool:
        self.emit("attaching")
        return await again(self._attach_once, Outage(None), lasts=self._gives_up)

    def _gives_up(self, error: Exception) -> bool:
        goes_on = self.bus.away and not self.bus.leaves and self._attaching is asyncio.current_task()
        return not goes_on or not isinstance(error, Unavailable)

    async def _attach_once(self) -> bool:
        try:
            self.instance = await self.bus.home(self._metadata, anew=True)
            while True:
                try:
                    exists = await self._create()
                    break
                except Moving:
                    found = await self.bus.locate(self._metadata)
                    self.instance = found or await self.bus.home(self._metadata, anew=True)
        except asyncio.CancelledError:
            raise Unavailable(f"queue {self.name}: detached, or the bus was disconnected") from None
        self._closed = False
        self._ready.set()
        self.bus.ends_with(self)
        self.bus.keep_alive(self)
        for each in self.followers:
            each.note_attached()
        self.emit("attached", exists)
        return exists

    async def _create(self) -> bool:
        begun = time.monotonic()
        exists, self.seconds, discover, now = await self.instance.run(ATTACH, **self.keys.named, **self._options)
        self.attached_at = parse_whole(now) or 0
        self._discoverable = discover == b"true"
        self.note_alive(begun)
        return bool(exists)

    def _end_attaching(self, task: "asyncio.Task[bool]") -> None:
        error = None if task.cancelled() else task.exception()  # asyncio logs what nobody has asked for
        if self._attaching is not task:  # given up
            return
        self._attaching = None
        if error:
            self.emit("error", error)

    def _left(self) -> None:
        self._ready.clear()
        self.bus.abandon(self)
        self.bus.ended(self)

    async def _wherever(self, run: Callable[[Instance], Awaitable[Any]]) -> Any:
        while True:
            instance = await self.home()
            try:
                return await run(instance)
            except Moving:
                await self.follow(instance)
            except Gone:
                if not await self.follow(instance):
                    raise

    async def home(self) -> Instance:
        """Return the server of the queue."""
        return self.instance if self.is_attached else await self.bus.home(self._metadata)
