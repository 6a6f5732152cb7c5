"""What is pushed to a queue, in order: messages that come one by one go together, those that come together, too."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, Iterator
from functools import cached_property

from penstock.base.errors import Full, Gone, Unavailable
from penstock.bus.place import Place
from penstock.bus.scripts import PUSH
from penstock.core.batches import batches
from penstock.core.raw_connection import Packed, Prefix
from penstock.core.wire import Reply


class _Single:
    """One message, and what becomes its id."""

    __slots__ = ("body", "future")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()


class _Batch:
    """Messages that are pushed together, and the list that gets their ids before ``future`` ends."""

    __slots__ = ("bodies", "future", "ids")

    def __init__(self, bodies: list[bytes], ids: list[int]) -> None:
        self.bodies, self.ids = Packed.of(bodies), ids
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Pushes:
    """The pushes of one queue: they wait in one line, and one call is under way at a time."""

    def __init__(self, place: Place) -> None:
        self.task: asyncio.Future[None] | None = None
        """What sends them, if any are under way."""
        self._place = place
        self._waiting: deque[_Single | _Batch] = deque()

    @cached_property
    def _one(self) -> Prefix:
        """The call that pushes one message, without its body."""
        return PUSH.prefix(**self._place.keys.named, channel=self._place.available, direct=b"")

    def add(self, body: bytes) -> "asyncio.Future[int]":
        """Push one message; the result is its id."""
        push = _Single(body)
        place = self._place
        if len(self._waiting) >= place.bus.buffer and (not place.is_attached or place.instance.is_away):
            push.future.set_exception(self._too_many())
        elif self.task is not None or not place.is_attached or not self._send_now(push):
            self._append(push)
        return push.future

    async def add_batches(self, found: AsyncIterable[list[bytes]], ids: list[int]) -> None:
        """Push each of ``found`` with one call, behind all that was pushed before; append their ids to ``ids``.

        While one is under way, the next is packed, and joins the line only if that succeeds.
        """
        last: asyncio.Future[None] | None = None
        try:
            async for bodies in found:
                batch = _Batch(bodies, ids)
                if last is not None:
                    await last
                last = batch.future
                self._append(batch)
                await asyncio.sleep(0)  # sends it
            if last is not None:
                await last
        except asyncio.CancelledError:
            if last is not None:
                last.cancel()
            raise
        except Exception:
            if last is not None and not last.done():  # what failed is not the push
                await last
            raise

    def fail(self, error: Exception) -> None:
        """Fail all that waits."""
        while self._waiting:
            _fail(self._waiting.popleft(), error)

    def _append(self, push: _Single | _Batch) -> None:
        self._waiting.append(push)
        if self.task is None:
            self._place.bus.ends_with(self._place)
            self.task = self._place.bus.spawn(self._run())

    def _too_many(self) -> Unavailable:
        waiting, place = len(self._waiting), self._place
        if place.is_attached:
            return place.instance.full(waiting)
        return Unavailable(f"queue {place.name}: {waiting:,} pushes wait for `attach` already (buffer)")

    def _send_now(self, push: _Single) -> bool:
        """Push one message while no other is under way. Return False if it has to wait."""
        place = self._place
        sending: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def sent(reply: Reply) -> None:
            if reply.error or not reply.value()[1]:
                self.task = self._place.bus.spawn(self._run(push, reply))
            else:
                place.pushed += 1
                if not push.future.done():
                    push.future.set_result(reply.value()[0])
                self.task = self._place.bus.spawn(self._run()) if self._waiting else None
                if self.task is None:
                    place.emit("drain")
            if not sending.done():
                sending.set_result(None)

        if place.instance.confirms or place.instance.send(self._one.pack(push.body), sent) is None:
            return False
        self.task = sending
        return True

    async def _run(self, first: _Single | None = None, sent: Reply | None = None) -> None:
        """Push what waits, one call after the other; ``sent`` is the reply to ``first``."""
        drains = first is not None
        try:
            if first:
                await self._send_singles([first], sent)
            while self._waiting:
                await self._place.wait_attached()
                if isinstance(batch := self._waiting[0], _Batch):
                    self._waiting.popleft()
                    await self._send_batch(batch)
                    continue
                drains = True
                singles = self._next_singles()
                await self._send_singles([each for each in singles if not each.future.cancelled()])
        except (Unavailable, Gone) as error:
            self.fail(error)
        else:
            self.task = None  # before handlers push more
            if drains:
                self._place.emit("drain")
        finally:
            if self.task is asyncio.current_task():
                self.task = None

    def _next_singles(self) -> list[_Single]:
        """Remove and return the messages that go with the next call, at least one."""
        singles = next(batches(self._leading(), lambda each: len(each.body)))
        for _ in singles:
            self._waiting.popleft()
        return singles

    def _leading(self) -> Iterator[_Single]:
        for each in self._waiting:
            if isinstance(each, _Batch):
                return
            yield each

    async def _send_singles(self, singles: list[_Single], sent: Reply | None = None) -> None:
        ids = list[int]()
        failed: Exception | None = None
        try:
            if singles:
                await self._push(Packed.of([each.body for each in singles]), ids, sent)
        except asyncio.CancelledError:
            failed = self._disconnected()
            raise
        except Exception as error:  # noqa: BLE001  # each caller gets it
            failed = error
        finally:
            for place, push in enumerate(singles):
                if place < len(ids):
                    if not push.future.done():
                        push.future.set_result(ids[place])
                elif failed:
                    _fail(push, failed)

    async def _send_batch(self, batch: _Batch) -> None:
        if batch.future.cancelled():
            return
        try:
            await self._push(batch.bodies, batch.ids)
        except asyncio.CancelledError:
            _fail(batch, self._disconnected())
            raise
        except Exception as error:  # noqa: BLE001  # the caller gets it
            _fail(batch, error)
        else:
            if not batch.future.done():
                batch.future.set_result(None)

    async def _push(self, bodies: Packed, ids: list[int], sent: Reply | None = None) -> None:
        """Push ``bodies``, unless they were ``sent``, and append their ids to ``ids``."""
        place = self._place
        named = {**place.keys.named, "channel": place.available, "direct": b"", "bodies": bodies}
        while True:
            begun = 0.0  # if it was sent some time ago
            if sent is None:
                await place.wait_attached()
                begun = time.monotonic()
            try:
                if place.instance.confirms:
                    first, many = await place.call_durably(PUSH, **named)
                else:
                    first, many = await place.finish(sent, PUSH, **named)
                break
            except Gone:
                sent = None
                if not await place.note_gone(begun):
                    raise Gone(f"queue {place.name} was closed") from None
        ids += range(first, first + many)
        place.pushed += many
        if many < bodies.count:
            raise Full(f"queue {place.name} is full: it holds as many messages as its maxsize")

    def _disconnected(self) -> Unavailable:
        return Unavailable(f"queue {self._place.name}: the bus was disconnected")


def _fail(push: _Single | _Batch, error: Exception) -> None:
    if not push.future.done():
        push.future.set_exception(error)
