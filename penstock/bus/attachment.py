"""Attach to a queue and keep it: while attached, a queue that its server has lost is created again."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from penstock.base.encoding import parse_whole
from penstock.base.errors import Gone, Moving, Unavailable, WrongCall
from penstock.base.log import Log
from penstock.bus.host import Host
from penstock.bus.location import Located
from penstock.bus.numbers import check_attaching
from penstock.bus.scripts import ATTACH
from penstock.core.link import Outage, again

AWAY_SECONDS: Final = 0.2
"""Seconds for which a bus with an outbox waits for ``attach`` while one of its servers is away."""
_log: Final = Log("penstock.bus")


class Attached(Located):
    """A queue that is attached to, or will be."""

    def __init__(self, bus: Host, name: str) -> None:
        super().__init__(bus, name)
        self.seconds = 0
        """The ttl of the queue once attached."""
        self.attached_at = 0
        """When (us, by the clock of its server) it was attached."""
        self._options: dict[str, Any] = {}
        self._attaching: asyncio.Task[bool] | None = None
        self._attachers = 0
        self._discoverable = self._closed = False
        self._goes_on = False
        """Whether an ``attach`` that has returned goes on."""

    async def attach(self, *, ttl: int = 30, maxsize: int = 0, discoverable: bool = False) -> bool:
        """Create the queue, or join it with the ttl and maxsize that it has; return whether it existed.

        It lives for ``ttl`` seconds after the last client that is attached has gone, then all of it is deleted. A queue
        with ``maxsize`` messages refuses more; 0 is no limit. One that is ``discoverable`` is found from other sites.

        If the bus has an outbox, and a server is away, return False soon, and attach when it is back.
        """
        self._bus.check_connected()
        if self.is_attached:
            raise WrongCall(f"queue {self.name}: attached already")
        check_attaching(ttl, maxsize)
        if self._attaching is None:
            self._options = {"ttl": int(ttl), "maxsize": int(maxsize), "discover": "true" if discoverable else "false"}
            self._goes_on = False
            self._attaching = self._bus.spawn(self._attach())
            self._attaching.add_done_callback(self._end_attaching)
        attaching = self._attaching
        self._attachers += 1
        try:
            if self._bus.away and not await self._attached_or_away(attaching, self._bus.away):
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
        self._bus.ends_with(self)
        async with self._bus.bounded(lambda: f"queue {self.name} is not attached"):
            while not self.is_attached:
                if self._bus.leaves:
                    raise Unavailable(f"queue {self.name}: the bus was disconnected")
                await self._ready.wait()

    def note_alive(self, when: float) -> None:
        """Note that the queue existed at ``when`` (monotonic), and tell other sites if it may be found there."""
        self._alive_at = when
        if self._discoverable:
            self._bus.announce(self._metadata, self.seconds)

    def note_ttl(self, seconds: int) -> None:
        """Note that somebody has given the queue another ttl (s)."""
        if self.is_attached and seconds != self.seconds:
            self.seconds = seconds
            self._bus.keep_alive(self)

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
            for each in self.consumptions:
                each.note_recreated()
            return True

    def note_closed(self) -> None:
        """Note that somebody has closed the queue."""
        if self.is_attached:
            self._bus.forget_home(self._metadata)
            self._closed = True
            self._left()
            for each in tuple(self.consumptions):
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
            patience = self._bus.patience
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
        goes_on = self._bus.away and not self._bus.leaves and self._attaching is asyncio.current_task()
        return not goes_on or not isinstance(error, Unavailable)

    async def _attach_once(self) -> bool:
        try:
            self.instance = await self._bus.home(self._metadata, anew=True)
            while True:
                try:
                    exists = await self._create()
                    break
                except Moving:
                    found = await self._bus.locate(self._metadata)
                    self.instance = found or await self._bus.home(self._metadata, anew=True)
        except asyncio.CancelledError:
            raise Unavailable(f"queue {self.name}: detached, or the bus was disconnected") from None
        self._closed = False
        self._ready.set()
        self._bus.ends_with(self)
        self._bus.keep_alive(self)
        for each in self.consumptions:
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
        self._bus.abandon(self)
        self._bus.ended(self)
