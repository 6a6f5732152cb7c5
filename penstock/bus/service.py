"""A service: requests over one queue, answers over one queue of each requester."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, ClassVar, Final

from penstock.base.errors import WrongCall
from penstock.base.log import Log
from penstock.bus.answers import Answers
from penstock.bus.events import Emitter
from penstock.bus.host import Host
from penstock.bus.provider import CONCURRENCY, LONGEST, Answer, Provider
from penstock.bus.queue import Queue
from penstock.bus.requester import TIMEOUT, Requester
from penstock.bus.role import Role
from penstock.core.wire import Subscriber

_log: Final = Log("penstock.bus")


class Service(Emitter):
    """One service of a bus, by name: either its provider (``serve``) or a requester (``connect``).

    Events: ``serving``, ``connected``, ``request`` (see ``Request``: answer it there, if ``serve`` has no handler),
    ``disconnect``, ``error``.

    If somebody closes one of its queues, or the server loses it, it attaches again and goes on; what was in the queue
    is lost. If it cannot go on, ``error`` and ``disconnect`` happen, and it neither serves nor is connected.
    """

    EVENTS: ClassVar = frozenset({"serving", "connected", "request", "disconnect", "error"})
    ALIASES: ClassVar = {"connect": "connected", "disconnected": "disconnect"}

    def __init__(self, bus: Host, name: str) -> None:
        super().__init__()
        self.name, self.bus = name, bus
        self.role: Role | None = None
        """What it is: a provider or a requester; None if neither."""

    def queue(self, name: str) -> Queue:
        """Return the queue ``name``, where the service is."""
        return Queue(self.bus, name)

    def subscriber(self, replies: Queue) -> Subscriber | None:
        """Return what hears answers that come past the queue ``replies``; None if none can."""
        return replies.instance.subscriber

    def answers(self) -> Answers:
        """Return what sends the answers of a provider."""
        return Answers(self.bus)

    @property
    def is_serving(self) -> bool:
        """Return whether this object answers requests: not while its queue is closed, or its site is away."""
        return isinstance(self.role, Provider) and self.role.requests.is_attached

    @property
    def is_connected(self) -> bool:
        """Return whether requests can be sent: not while its queue is closed, or its site is away."""
        return isinstance(self.role, Requester) and self.role.requests.is_attached

    async def serve(
        self,
        handler: Answer | None = None,
        *,
        ttl: int = 30,
        limit: int | None = None,
        concurrency: int = CONCURRENCY,
        longest: float | None = LONGEST,
    ) -> None:
        """Answer requests: ``handler(request)`` returns the answer, or yields its parts, or raises what is the error.

        It may be a coroutine function, or an asynchronous generator, which is closed when its requester has gone, and
        fails if its parts come for more than ``longest`` seconds; None is no limit. Several providers share the
        requests; one that dies loses those that it had taken, whose requesters time out. After ``limit`` requests it
        takes no more. The requester gets the attributes of an exception, too: see ``Request.fail``.
        """
        options: dict[str, Any] = {"ttl": ttl, "left": limit, "concurrency": concurrency, "longest": longest}
        await self._become(Provider(self, handler, **options))
        self.emit("serving")

    async def connect(self, *, ttl: int = 30) -> None:
        """Get ready to send requests."""
        await self._become(Requester(self, ttl))
        self.emit("connected")

    async def request(self, data: Any, *, timeout: float = TIMEOUT) -> Any:  # noqa: ASYNC109  # part of the request
        """Send ``data``, any JSON value, and return the answer, the first part if there are several.

        Raise ``RequestTimeout`` after ``timeout`` seconds without one, and ``RequestFailed`` if the provider failed.
        """
        requester = self._requester(timeout)
        with requester.exchange() as exchange:
            return (await requester.ask(data, timeout, exchange)).get("reply")

    async def stream(self, data: Any, *, timeout: float = TIMEOUT) -> AsyncGenerator[Any]:  # noqa: ASYNC109
        """Send ``data`` and yield each part of the answer, each at most ``timeout`` seconds after the one before.

        Raise as ``request`` does; ``RequestFailed``, too, once 1,000 parts wait to be read.
        """
        requester = self._requester(timeout)
        with requester.exchange() as exchange:
            part = await requester.ask(data, timeout, exchange)
            while part.get("partial"):
                yield part.get("reply")
                part = await requester.next_part(timeout, exchange)
            if "reply" in part:
                yield part["reply"]

    async def notify(self, data: Any, *, timeout: float = TIMEOUT) -> None:  # noqa: ASYNC109  # part of the request
        """Send a request that wants no answer; a provider that comes to it after ``timeout`` seconds drops it."""
        await self._requester(timeout).notify(data, timeout)

    async def disconnect(self, grace: float = 0.0) -> None:
        """Leave: take no more requests, and wait up to ``grace`` seconds for those in hand, or for answers."""
        role = self.role
        if role is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await role.requests.stop()
                while role.is_busy:
                    await asyncio.sleep(0.01)
        if self.role is not role:  # another call was faster
            return
        self.role = None
        self.bus.ended(self)
        await role.end()
        self.emit("disconnect")

    async def leave(self) -> None:
        """Disconnect, as the bus is being disconnected."""
        await self.disconnect()

    async def fail(self, error: Exception) -> None:
        """End, since it cannot go on."""
        _log.error("service ended", error, service=self.name)
        self.emit("error", error)
        await self.disconnect()

    async def _become(self, role: Role) -> None:
        if self.role is not None:
            raise WrongCall(f"service {self.name}: serving or connected already")
        self.role = role
        try:
            await role.begin()
        except BaseException:
            await self.disconnect()
            raise

    def _requester(self, timeout: object) -> Requester:
        if not isinstance(self.role, Requester):
            raise WrongCall(f"service {self.name}: expected `connect` before a request")
        if not isinstance(timeout, int | float) or not math.isfinite(timeout):
            raise WrongCall(f"timeout={timeout!r}: expected seconds")
        return self.role
