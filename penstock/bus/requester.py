"""The requester of a service: send requests, and hear their answers."""

import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import Gone, PenstockError, RequestFailed, RequestTimeout
from penstock.bus.acks import MAX_ACKED, log_failure
from penstock.bus.keys import direct_channel
from penstock.bus.message import Message
from penstock.bus.queue import Queue
from penstock.bus.role import Playing, Role
from penstock.bus.scripts import ACK
from penstock.core.wire import Subscriber

if TYPE_CHECKING:
    from penstock.bus.consumption import Consumption

TIMEOUT: Final = 1.0
"""Seconds that a request waits for its answer, and each partial answer for the next one."""
FORGET_SECONDS: Final = 0.2
"""Seconds after which answers that were heard are removed from the queue."""
MAX_PARTS: Final = 1_000
"""Maximum number of parts of one answer that wait in the requester to be read."""


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
