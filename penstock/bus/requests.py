"""Requests to a service: one end sends them and hears the answers, the other end gets them and sends those."""

import asyncio
import json
import secrets
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple, Protocol

from penstock.base.encoding import parse_number
from penstock.base.errors import Gone, PenstockError, RequestFailed, RequestTimeout, Unavailable, WrongCall
from penstock.base.log import Log
from penstock.base.payload import as_json
from penstock.bus.consumption import MAX_ACKED, Consumption, log_failure
from penstock.bus.host import Host
from penstock.bus.keys import direct_channel
from penstock.bus.message import Message
from penstock.bus.queue import Queue
from penstock.bus.scripts import ACK, PUSH
from penstock.core.wire import Subscriber

MAX_TOGETHER: Final = 500
MAX_BYTES: Final = 1 << 16
"""Upper bounds of what goes with one call, unless a single answer is larger."""
MAX_DIRECT: Final = 1 << 12
"""Maximum number of bytes of an answer that is published, too: a subscriber for which too many wait is cut off."""
MAX_REQUESTERS: Final = 10_000
"""Maximum number of requesters that are remembered."""
_log: Final = Log("penstock.bus")
TIMEOUT: Final = 1.0
"""Seconds that a request waits for its answer, and each partial answer for the next one."""
FORGET_SECONDS: Final = 0.2
"""Seconds after which answers that were heard are removed from the queue."""
MAX_PARTS: Final = 1_000
"""Maximum number of parts of one answer that wait in the requester to be read."""


class Request:
    """One request as its provider sees it: ``data``, and ``expires`` (s since the epoch, the requester's clock)."""

    __slots__ = ("_answer", "data", "expires", "id", "in_parts", "reply_to")

    def __init__(self, found: dict[str, Any], answer: Callable[["Request", dict[str, Any]], Any]) -> None:
        self.data: Any = found.get("data")
        self.id: Any = found.get("reqId")
        self.reply_to: str | None = found.get("replyTo") if isinstance(found.get("replyTo"), str) else None
        expires = parse_number(found.get("expires"))
        self.expires: float | None = None if expires is None else expires / 1000
        self.in_parts = False
        """Whether a part of the answer was sent."""
        self._answer = answer

    async def partial(self, reply: Any) -> bool:
        """Send a part of the answer; return False if the requester has gone or wants no answer."""
        self.in_parts = True
        return await self._send({"err": None, "reply": reply, "partial": True})

    async def answer(self, reply: Any = None) -> bool:
        """Send the answer, or the last part of it; return as ``partial`` does."""
        return await self._send({"err": None, "reply": reply})

    async def end(self) -> bool:
        """End an answer whose parts were all sent by ``partial``; return as that does."""
        return await self._send({"err": None})

    async def fail(self, error: Any) -> bool:
        """Send an error instead: an exception, or any JSON value; return as ``partial`` does.

        Of an exception the requester gets the name of its class, its text, and its own attributes that are JSON values
        (``error.code = 7``): keep secrets out of these.
        """
        if isinstance(error, BaseException):
            own = {name: value for name, value in vars(error).items() if _is_json(value)}
            stack = "".join(traceback.format_exception_only(error)).strip()
            error = {**own, "name": type(error).__name__, "message": str(error), "stack": stack}
        return await self._send({"err": error})

    async def _send(self, reply: dict[str, Any]) -> bool:
        return self.reply_to is not None and bool(await self._answer(self, {**reply, "reqId": self.id}))


def _is_json(value: Any) -> bool:
    try:
        as_json(value)
    except WrongCall:
        return False
    return True


class Answers:
    """Those of one provider."""

    def __init__(self, bus: Host) -> None:
        self._bus = bus
        self._lines: dict[str, _Line] = {}

    async def push(self, name: str, body: bytes, *, part: bool) -> bool:
        """Push an answer to the requester whose queue has this ``name``; return False if that does not exist.

        A ``part`` is announced only, so that it does not overtake the one before. Raise ``Unconfirmed`` if the reply
        was lost: then the requester may have the answer or not.
        """
        line = self._lines.get(name)
        if line is None:
            if len(self._lines) >= MAX_REQUESTERS:
                self._lines = {name: line for name, line in self._lines.items() if line.runs}
            line = self._lines[name] = _Line(self._bus, name)
        return await line.push(body, part=part)


class _Answer(NamedTuple):
    body: bytes
    part: bool
    arrives: "asyncio.Future[bool]"


class _Line:
    """The answers to one requester: one call is under way at a time, and what comes meanwhile goes together."""

    def __init__(self, bus: Host, name: str) -> None:
        self.runs = False
        """Whether a call is under way."""
        self._bus, self._queue = bus, Queue(bus, name)
        self._direct = direct_channel(name)
        self._waiting = list[_Answer]()

    async def push(self, body: bytes, *, part: bool) -> bool:
        if self.runs:
            answer = _Answer(body, part, asyncio.get_running_loop().create_future())
            self._waiting.append(answer)
            return await answer.arrives
        self.runs = True
        try:
            return await self._send([body], part=part)
        finally:
            if self._waiting:
                self._bus.spawn(self._run())
            else:
                self.runs = False

    async def _run(self) -> None:
        try:
            while some := self._next():
                try:
                    found = await self._send([each.body for each in some], part=some[0].part)
                except Exception as error:  # noqa: BLE001  # each caller gets it
                    _fail(some, error)
                else:
                    for each in some:
                        if not each.arrives.done():
                            each.arrives.set_result(found)
        finally:
            self.runs = False
            _fail(self._waiting, Unavailable("the bus was disconnected"))
            self._waiting.clear()

    def _next(self) -> list[_Answer]:
        """Remove and return the answers that go together next."""
        self._waiting = [each for each in self._waiting if not each.arrives.done()]  # its handler was cancelled
        alike = takewhile(lambda each: each.part == self._waiting[0].part, self._waiting[:MAX_TOGETHER])
        some, size = list[_Answer](), 0
        for each in alike:
            size += len(each.body)
            if some and size > MAX_BYTES:
                break
            some.append(each)
        del self._waiting[: len(some)]
        return some

    async def _send(self, bodies: list[bytes], *, part: bool) -> bool:
        direct = b"" if part or max(map(len, bodies)) > MAX_DIRECT else self._direct
        metadata, messages, msgid, _ = self._queue.keys  # without toack the ttl stays: only the requester renews it
        named = {"metadata": metadata, "messages": messages, "msgid": msgid, "channel": self._queue.available}
        named["direct"] = direct
        try:
            await self._queue.call_once(PUSH, **named, bodies=bodies)
        except Gone:
            return False
        return True


def _fail(answers: list[_Answer], error: Exception) -> None:
    for each in answers:
        if not each.arrives.done():
            each.arrives.set_exception(error)


class Playing(Protocol):
    """A service, as its role sees it."""

    name: str
    bus: Host
    role: "Role | None"

    def queue(self, name: str) -> Queue:
        """Return the queue of requests, or of replies, that has this name."""

    def subscriber(self, replies: Queue) -> Subscriber | None:
        """Return what hears replies that are published; None if only the queue has them."""

    def answers(self) -> Answers:
        """Return what sends answers."""

    async def fail(self, error: Exception) -> None:
        """End the role, and emit ``error``."""

    def emit(self, event: str, *values: Any) -> None:
        """Call the listeners of ``event``."""

    def deliver(self, event: str, *values: Any) -> Any:
        """Call the listeners of ``event``, and return what they return."""


class Role(ABC):
    """What a service is once it serves or is connected."""

    def __init__(self, service: Playing, ttl: int) -> None:
        self.requests = service.queue(f"service:{service.name}")
        self._service, self._bus, self._ttl = service, service.bus, ttl
        self._attaching = asyncio.Lock()

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Return whether requests are in hand."""

    @abstractmethod
    async def begin(self) -> None:
        """Attach, and take what comes from now on."""

    @abstractmethod
    async def end(self) -> None:
        """Give up what is in hand, and detach."""

    async def _attach_again(self, queue: Queue) -> bool:
        """Attach to ``queue``, which was closed; return False if this leaves."""
        async with self._attaching:
            if not self._goes_on:
                return False
            if not queue.is_attached:
                _log.warning("attaches again: its queue was closed", service=self._service.name, queue=queue.name)
                await queue.attach(ttl=self._ttl)
            if not self._goes_on:
                await queue.detach()
                return False
            self._bus.ended(self._service)
            self._bus.ends_with(self._service)  # behind the queue: the last is the first to leave
            return True

    @property
    def _goes_on(self) -> bool:
        return self._service.role is self and not self._bus.leaves


class Exchange:
    """One request, and what gets the parts of its answer."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(12)
        self.parts = asyncio.Queue[dict[str, Any]]()


class Requester(Role):
    """It has a queue of its own for the answers, and a channel on which it hears small ones at once.

    Those are in the queue, too, until it has heard them: one that is missed, e.g. while its connection is cut, is taken
    from there. What is taken is kept until it is acknowledged, so a lost reply costs no part of an answer.
    """

    def __init__(self, service: Playing, ttl: int) -> None:
        super().__init__(service, ttl)
        self.replies = service.queue(f"service:{service.name}:replyTo:{secrets.token_hex(8)}")
        self.pending: dict[str, Exchange] = {}
        self._listens_to: Subscriber | None = None
        """What hears the answers that are published."""
        self._consumption: Consumption | None = None
        self._noted = 0
        """Every answer up to this id has come."""
        self._forgetting: asyncio.TimerHandle | asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self.pending)

    async def begin(self) -> None:
        await asyncio.gather(*(each.attach(ttl=self._ttl) for each in (self.requests, self.replies)))
        self.replies.on("message", self._note_reply)
        self._listen()
        await self._consume()  # on the same connection: the server knows of the other channel, too, then
        for queue in (self.requests, self.replies):
            queue.on("closed", partial(self._go_on, queue))
        self._bus.ends_with(self._service)

    async def _consume(self) -> None:
        self._noted, self._consumption = 0, self.replies.consume(reliable=True)
        await self._consumption

    async def end(self) -> None:
        self._hear_no_more()
        if self._forgetting is not None:
            self._forgetting.cancel()
        for queue in (self.requests, self.replies):
            await queue.detach()

    @contextmanager
    def exchange(self) -> Iterator[Exchange]:
        """Yield a new request, which gets its answer while the block runs."""
        exchange = Exchange()
        self.pending[exchange.id] = exchange
        try:
            yield exchange
        finally:
            self.pending.pop(exchange.id, None)

    async def ask(self, data: Any, timeout: float, exchange: Exchange) -> dict[str, Any]:  # noqa: ASYNC109
        """Send ``data``, and return the first part of its answer: see ``next_part``."""
        return await self._part(data, timeout, exchange, sends=True)

    async def next_part(self, timeout: float, exchange: Exchange) -> dict[str, Any]:  # noqa: ASYNC109
        """Return the next part. Raise ``RequestTimeout`` if none comes, and ``RequestFailed`` if it is an error."""
        return await self._part(None, timeout, exchange, sends=False)

    async def notify(self, data: Any, timeout: float) -> None:  # noqa: ASYNC109  # part of the request
        """Send ``data``, and want no answer."""
        await self._send(data, timeout, {"reqId": secrets.token_hex(12)})

    async def _part(
        self,
        data: Any,
        timeout: float,  # noqa: ASYNC109  # part of the request
        exchange: Exchange,
        *,
        sends: bool,
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout):
                if sends:
                    await self._send(data, timeout, {"replyTo": self.replies.name, "reqId": exchange.id})
                part = await exchange.parts.get()
        except TimeoutError:
            raise RequestTimeout(f"service {self._service.name}: no answer for {timeout:g} s") from None
        if part.get("err") is not None:
            raise RequestFailed(part["err"])
        return part

    async def _send(self, data: Any, timeout: float, extra: dict[str, Any]) -> None:  # noqa: ASYNC109
        request = {"data": data, **extra, "expires": round((time.time() + timeout) * 1000)}
        try:
            await self.requests.push(request, json=True)
        except Gone:  # nothing was pushed
            if not await self._attach_again(self.requests):
                raise
            await self.requests.push(request, json=True)

    def _listen(self) -> None:
        """Hear answers at once, too."""
        self._hear_no_more()
        self._listens_to = self._service.subscriber(self.replies)
        if self._listens_to is not None:
            self._listens_to.add(direct_channel(self.replies.name), self._note_answers)

    def _hear_no_more(self) -> None:
        if self._listens_to is not None:
            self._listens_to.remove(direct_channel(self.replies.name), self._note_answers)
            self._listens_to = None

    def _note_answers(self, payload: bytes | None) -> None:
        with suppress(ValueError, RecursionError):
            found = json.loads(payload or b"[]")
            if isinstance(found, list) and found and type(found[0]) is int:
                self._note_published(*found)

    def _note_published(self, first: int, *answers: Any) -> None:
        """Hear answers with the ids from ``first``; if one before them has not come, look for it in the queue."""
        for answer in answers:
            self._note_answer(answer)
        if first == self._noted + 1:
            self._noted += len(answers)
            if self._forgetting is None:
                self._forgetting = asyncio.get_running_loop().call_later(FORGET_SECONDS, self._begin_to_forget)
        elif self._consumption is not None:
            self._noted = min(self._noted, first - 1)  # lower if ids have begun anew
            self._consumption.look()

    def _begin_to_forget(self) -> None:
        self._forgetting = self._bus.spawn(self._forget())

    async def _forget(self) -> None:
        """Remove what was heard from the queue; what cannot be removed is taken some time later, and ignored."""
        metadata, messages, *_ = self.replies.keys
        named = {"metadata": metadata, "toack": messages, "who": self._bus.id, "last": self._noted, "handed": 0}
        try:
            with suppress(PenstockError):
                while await self.replies.call(ACK, **named, ttl=self._ttl, most=MAX_ACKED) == MAX_ACKED:
                    pass
        finally:
            self._forgetting = None

    def _note_reply(self, message: Message) -> None:
        self._noted = max(self._noted, message.id)
        message.ack().add_done_callback(log_failure)
        with suppress(ValueError):
            self._note_answer(message.json())

    def _note_answer(self, reply: Any) -> None:
        try:
            exchange = self.pending.get(reply_id := reply["reqId"])
        except (TypeError, KeyError, IndexError):
            return
        if exchange is None:
            return
        if exchange.parts.qsize() >= MAX_PARTS:
            reply = {"err": f"service {self._service.name}: {MAX_PARTS:,} parts wait to be read: read them faster"}
            del self.pending[reply_id]
        exchange.parts.put_nowait(reply)

    async def _go_on(self, queue: Queue) -> None:
        """Attach again to ``queue``, which was closed."""
        try:
            if await self._attach_again(queue) and queue is self.replies:
                self._listen()
                await queue.stop()
                await self._consume()
        except Exception as error:  # noqa: BLE001  # a service that looks alive and is not would be worse
            await self._service.fail(error)
