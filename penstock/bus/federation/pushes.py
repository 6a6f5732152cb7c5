"""What is pushed to a queue of another site: it waits for the site, goes in batches, and is answered by id."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.base.encoding import decoded
from penstock.base.errors import Full, PenstockError, Unavailable, Unconfirmed
from penstock.base.payload import as_payload
from penstock.bus.federation.calls import Answer
from penstock.bus.federation.failures import Lost, Silent, error_of
from penstock.core.batches import MAX_BYTES, batches, payload_batches

if TYPE_CHECKING:
    from penstock.bus.federation.queue import FederatedQueue

MAX_UNDER_WAY: Final = 4
"""Maximum number of calls of one ``push_many`` under way."""
CALL_BYTES: Final = 2_048
"""Bytes of a call besides its messages."""
Push = tuple[bytes, "asyncio.Future[int]"]


class Pushes:
    """The pushes of one queue."""

    def __init__(self, queue: "FederatedQueue") -> None:
        self._queue = queue
        self._outgoing: list[Push] = []
        self._unanswered = 0
        """Messages that were sent one by one, and whose ids have not come."""
        self._sender: asyncio.Task[None] | None = None

    def push(self, body: bytes) -> "asyncio.Future[int]":
        """Push one message, together with others of this turn of the loop."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting, queue = len(self._outgoing) + self._unanswered, self._queue
        if waiting >= queue.bus.buffer and queue.is_away:
            why = f"for {queue.site.url}" if queue.was_attached else "for `attach`"
            future.set_exception(Unavailable(f"queue {queue.name}: {waiting:,} pushes wait {why} already (buffer)"))
            return future
        self._outgoing.append((body, future))
        if self._sender is None:
            self._sender = queue.bus.spawn(self._send())
        return future

    async def push_many(self, messages: Iterable[Any] | AsyncIterable[Any], *, json: bool) -> list[int]:
        """Push ``messages`` in batches, some of them under way at once; return their ids."""
        ids, under_way = list[int](), deque[Answer]()
        try:
            async for batch in payload_batches(messages, partial(as_payload, json=json), self._most):
                if len(under_way) >= MAX_UNDER_WAY:
                    ids += self._ids(await under_way[0])
                    del under_way[0]
                await self._queue.wait_attached()
                while self._sender:  # what was pushed before comes first
                    await asyncio.shield(self._sender)
                under_way += self._begin([decoded(body) for body in batch])
            while under_way:
                ids += self._ids(await under_way[0])
                del under_way[0]
        except (Lost, Silent) as error:
            raise _unconfirmed(error) from None
        except Full as error:
            later = await asyncio.gather(*[*under_way][1:], return_exceptions=True)
            for found in later:
                with suppress(PenstockError):
                    ids += self._ids(found) if isinstance(found, list) else []
            ids += error.ids
            raise Full(f"{error}; {len(ids):,} were pushed", sorted(ids)) from None
        finally:
            for answer in under_way:
                if not answer.cancel() and not answer.cancelled():
                    answer.exception()  # nobody else asks for it
        return ids

    @property
    def _most(self) -> int:
        """Return how many bytes of messages fit into a call, whatever they are: JSON makes six of some."""
        return min(MAX_BYTES, max(1, (self._queue.max_frame - CALL_BYTES) // 6))

    async def settle(self) -> None:
        """Wait until what was pushed one by one has been sent."""
        if self._sender:
            await asyncio.gather(self._sender, return_exceptions=True)

    async def end(self, error: PenstockError) -> None:
        """Fail what waits, perhaps for an ``attach``."""
        _fail(self._outgoing, error)
        if self._sender:
            self._sender.cancel()
            await self.settle()

    async def _send(self) -> None:
        """Push what waits, as often as the site has come back."""
        try:
            while self._outgoing:
                await self._queue.wait_attached()
                outgoing, self._outgoing = self._outgoing, []
                for batch in batches(outgoing, lambda each: len(each[0]), self._most):
                    self._send_batch(batch)
                await asyncio.sleep(0)
            self._queue.emit("drain")
        except PenstockError as error:
            _fail(self._outgoing, error)
        finally:
            self._sender = None

    def _send_batch(self, batch: list[Push]) -> None:
        answers = self._begin([decoded(body) for body, _ in batch])
        size = len(batch) // len(answers)
        for place, answer in enumerate(answers):
            self._then(answer, [future for _, future in batch[place * size : (place + 1) * size]])

    def _begin(self, bodies: list[str]) -> list[Answer]:
        """Push messages in one call, or in one for each at Node's server."""
        calls = self._queue.calls
        if self._queue.has_more:
            return [calls.begin("pushAll", bodies)]
        return [calls.begin("push", body) for body in bodies]

    def _ids(self, values: list[Any]) -> list[int]:
        """Return the ids in the answer to a push. Raise ``Full`` with those before, or what the other end says."""
        error, found = values[0] if values else None, values[1] if len(values) > 1 else []
        ids = [int(each) for each in (found if isinstance(found, list) else [] if found is None else [found])]
        if error is not None and not str(error).startswith("Full: "):
            raise error_of(error)
        self._queue.pushed += len(ids)
        if error is not None or not ids:
            raise Full(f"queue {self._queue.name} is full: it holds as many messages as its maxsize", ids)
        return ids

    def _then(self, answer: Answer, pushes: "list[asyncio.Future[int]]") -> None:
        """Resolve ``pushes`` with what the other end answers: one id, or one of each."""
        self._unanswered += len(pushes)

        def ended(answer: Answer) -> None:
            self._unanswered -= len(pushes)
            try:
                _resolve(pushes, self._ids(answer.result()), None)
            except (Lost, Silent, asyncio.CancelledError) as error:
                _resolve(pushes, [], _unconfirmed(error))
            except Full as error:
                _resolve(pushes, error.ids, Full(str(error)))
            except PenstockError as error:
                _resolve(pushes, [], error)

        answer.add_done_callback(ended)


def _resolve(pushes: "list[asyncio.Future[int]]", ids: list[int], error: Exception | None) -> None:
    """Give each push its id; ``error`` is of those behind."""
    for place, push in enumerate(pushes):
        if push.done():
            continue
        if place < len(ids):
            push.set_result(ids[place])
        else:
            push.set_exception(error or Unconfirmed("push: no id came back"))


def _unconfirmed(reason: BaseException) -> Unconfirmed:
    return Unconfirmed(f"push: it may have been executed or not: {reason}")


def _fail(waiting: list[Push], error: Exception) -> None:
    for _, future in waiting:
        if not future.done():
            future.set_exception(error)
    waiting.clear()
