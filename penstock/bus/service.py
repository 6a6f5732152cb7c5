"""A service: requests over one queue, answers over one queue of each requester."""

import asyncio
import inspect
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final

from penstock.base.errors import PenstockError, Unavailable, WrongCall
from penstock.base.log import Log
from penstock.base.payload import as_json
from penstock.bus.events import Emitter, is_cancelled
from penstock.bus.host import Host
from penstock.bus.message import Message
from penstock.bus.queue import Queue
from penstock.bus.requests import TIMEOUT, Answers, Playing, Request, Requester, Role
from penstock.core.link import Outage, again
from penstock.core.tasks import Tasks
from penstock.core.wire import Subscriber

REPLY_SECONDS: Final = 0.5
"""How long a provider waits for the queue of a requester, unless the request expires earlier."""
MAX_EARLY: Final = 1_000
"""Maximum number of answers of one provider that wait for the queues of their requesters."""
CONCURRENCY: Final = 100
"""Maximum number of requests that one provider handles at once."""
LONGEST: Final = 60.0
"""Seconds for which the parts of one answer may come."""
Answer = Callable[[Request], Any]
_log: Final = Log("penstock.bus")


class Provider(Role):
    """See ``Service.serve``; ``left`` is how many requests it takes, None without limit."""

    def __init__(
        self,
        service: Playing,
        handler: Answer | None,
        *,
        ttl: int,
        left: int | None,
        concurrency: int,
        longest: float | None,
    ) -> None:
        super().__init__(service, ttl)
        if concurrency < 1 or (longest is not None and not longest > 0):
            raise WrongCall(f"concurrency={concurrency}, longest={longest}: expected at least 1, and more than 0 s")
        self._handler, self._left, self._concurrency, self._longest = handler, left, concurrency, longest
        self._handling = Tasks(_log)
        self._runs: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(concurrency)
        self._holding = set[Request]()
        """Those that have a slot."""
        self._answers = service.answers()
        self._early = 0
        """How many answers wait for the queues of their requesters."""

    @property
    def is_busy(self) -> bool:
        return bool(self._handling)

    async def begin(self) -> None:
        await self.requests.attach(ttl=self._ttl)
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        started.add_done_callback(lambda each: each.exception())  # nobody may wait for it
        self._bus.ends_with(self._service)
        self._runs = self._bus.spawn(self._serve(started))
        await asyncio.shield(started)

    async def end(self) -> None:
        for task in (*self._handling, *([self._runs] if self._runs else ())):
            if task is not asyncio.current_task():
                task.cancel()
        await self.requests.detach()

    async def _serve(self, started: "asyncio.Future[None]") -> None:
        """Take requests; nothing that is wrong with one of them ends this."""
        queue = self.requests
        queue.once("consuming", lambda _: started.set_result(None))
        await self._slots.acquire()
        try:
            while True:
                async for message in queue.consume(limit=self._left, prefetch=self._concurrency):
                    self._left = None if self._left is None else self._left - 1
                    if request := self._parsed(message):
                        self._begin(request)
                        await self._slots.acquire()  # before the next request is in hand, which would be lost
                if queue.is_attached or not await asyncio.shield(self._bus.spawn(self._attach_again(queue))):
                    return
        except Exception as error:  # noqa: BLE001  # a service that looks alive and is not would be worse
            if started.done():
                self._runs = None  # this task, which goes on
                await self._service.fail(error)
            else:
                started.set_exception(error)
        finally:
            if not started.done():
                started.set_exception(Unavailable(f"service {self._service.name}: the bus was disconnected"))

    def _parsed(self, message: Message) -> Request | None:
        """Return the request; None if it is none, or nobody waits for its answer any more."""
        try:
            found = message.json()
            if not isinstance(found, dict):
                return None
            request = Request(found, self._reply)
        except ValueError:
            return None
        except Exception as error:  # noqa: BLE001  # one bad request must not stop the service
            _log.warning("request dropped", error, service=self._service.name)
            return None
        return None if request.expires is not None and time.time() > request.expires else request

    def _begin(self, request: Request) -> None:
        """Handle ``request``, which gets the slot that was acquired."""
        self._holding.add(request)
        task = self._handling.begin(self._handle(request))
        task.add_done_callback(lambda _: self._free(request))

    def _free(self, request: Request) -> None:
        """Let the next request begin."""
        if request in self._holding:
            self._holding.discard(request)
            self._slots.release()

    async def _handle(self, request: Request) -> None:
        service = self._service
        try:
            try:
                await self._answer(request)
            except (Exception, asyncio.CancelledError) as error:  # of the user's handler: the requester gets it
                if is_cancelled(error):
                    raise
                _log.warning("request failed", error, service=service.name)
                await request.fail(error)
        except Exception as error:  # noqa: BLE001  # the next requests are handled
            _log.warning("not answered", service=service.name, reason=str(error))
            service.emit("error", error)

    async def _answer(self, request: Request) -> None:
        if self._handler is None:
            await self._service.deliver("request", request)
            return
        result = self._handler(request)
        if hasattr(result, "__aiter__"):
            await self._answer_in_parts(request, result)
        else:
            await request.answer(await result if inspect.isawaitable(result) else result)

    async def _answer_in_parts(self, request: Request, parts: Any) -> None:
        try:
            async with asyncio.timeout(self._longest) as limit:
                async for part in parts:
                    if not await request.partial(part) and request.reply_to is not None:
                        return
                await request.end()
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"its parts came for more than {self._longest:g} s (longest)") from None
            raise
        finally:
            if hasattr(parts, "aclose"):
                await parts.aclose()

    async def _reply(self, request: Request, reply: dict[str, Any]) -> bool:
        """Send a reply to the requester, and drop it if that has no queue.

        The queue's ttl stays as it is: only the requester keeps it alive. One of busmq may ask before its queue is
        created, so wait a little for that; other requests are handled meanwhile.
        """
        name = request.reply_to or ""
        own = f"{self.requests.name}:replyTo:"
        if not name.startswith(own) or name == own:  # a request cannot make this provider write elsewhere
            return False
        push = partial(self._answers.push, name, as_json(reply), part=request.in_parts)
        if await push():
            return True
        patience = REPLY_SECONDS if request.expires is None else min(request.expires - time.time(), REPLY_SECONDS)
        if patience <= 0 or self._early >= MAX_EARLY:
            return False
        self._free(request)
        self._early += 1
        try:
            return await _try(push, patience)
        finally:
            self._early -= 1


class _NoQueue(PenstockError):
    """The requester has no queue, or not yet."""


async def _try(push: Callable[[], Awaitable[bool]], patience: float) -> bool:
    """Call ``push`` until it returns True, less and less often; return False after about ``patience`` seconds."""

    async def pushed() -> bool:
        if not await push():
            raise _NoQueue
        return True

    try:
        return await again(pushed, Outage(None), lasts=_lasts, most=patience, first=_NoQueue())
    except Unavailable as error:
        if isinstance(error.__cause__, _NoQueue):
            return False
        raise


def _lasts(error: Exception) -> bool:
    return not isinstance(error, _NoQueue)


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
