"""The provider of a service: take requests, handle several at once, send their answers."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from penstock.base.errors import PenstockError, Unavailable, WrongCall
from penstock.base.log import Log
from penstock.base.payload import as_json
from penstock.bus.events import is_cancelled
from penstock.bus.message import Message
from penstock.bus.request import Request
from penstock.bus.role import Playing, Role
from penstock.core.link import Outage, again
from penstock.core.tasks import Tasks

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
