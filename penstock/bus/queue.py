"""A queue: attach to it, push, consume, acknowledge, describe, close."""

import asyncio
from collections.abc import AsyncIterable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, Literal, Unpack, overload

from penstock.base.encoding import encoded
from penstock.base.errors import Full, Unavailable, WrongCall
from penstock.base.payload import Payload, as_payload, checked
from penstock.bus.acks import Acks
from penstock.bus.attachment import Attached
from penstock.bus.consumption import Consumption
from penstock.bus.description import Described
from penstock.bus.fallback import BusOutbox, StoredPushes
from penstock.bus.host import Host
from penstock.bus.keys import CLOSED
from penstock.bus.mode import Mode, ModeOptions, running
from penstock.bus.numbers import check_id
from penstock.bus.pushes import Pushes
from penstock.bus.scripts import CLOSE, FLUSH
from penstock.core.batches import payload_batches


class Queue(Attached, Described):
    """One queue of a bus, by name. Its messages have ids 1, 2, 3, ...

    Events: ``attaching``, ``attached`` (whether it existed), ``detaching``, ``detached``, ``consuming`` (True or
    False), ``message`` (the message), ``closed``, ``drain`` (all pushes have been sent), ``error`` (the exception).
    """

    EVENTS: ClassVar = frozenset(
        {"attaching", "attached", "detaching", "detached", "consuming", "message", "closed", "drain", "error"}
    )

    def __init__(self, bus: Host, name: str, outbox: BusOutbox | None = None) -> None:
        checked(name)
        super().__init__(bus, name)
        self.pushed = self.consumed = 0
        """Messages that this object has pushed and handed out."""
        self._pushes: Pushes | StoredPushes = StoredPushes(self, outbox) if outbox else Pushes(self)
        self._acks = Acks(self)

    @property
    def is_consuming(self) -> bool:
        """Return whether messages are being consumed."""
        return any(each.runs for each in self.consumptions)

    async def detach(self) -> None:
        """Leave the queue, once all pushes are sent: it lives on for its ttl, or while others are attached.

        What was taken and not handed out goes back.
        """
        await self._end_attach()
        if not self.is_attached:
            return
        self.emit("detaching")
        await self.stop()
        while working := {each for each in (self._pushes.task, self._acks.task) if each and not each.done()}:
            await asyncio.wait(working)
        self._left()
        self.emit("detached")

    async def leave(self) -> None:
        """Detach, as the bus is being disconnected; pushes that wait for an ``attach`` fail."""
        await self.stop()
        await self.detach()
        if self._pushes.task:
            self._pushes.task.cancel()
        self._ready.set()  # ends what waits for an ``attach``
        self._ready.clear()
        self._pushes.fail(Unavailable(f"queue {self.name}: the bus was disconnected before `attach`"))

    @overload
    def push(self, message: Payload, *, json: Literal[False] = False) -> "asyncio.Future[int]": ...
    @overload
    def push(self, message: Any, *, json: bool) -> "asyncio.Future[int]": ...

    def push(self, message: Any, *, json: bool = False) -> "asyncio.Future[int]":
        """Push one message; the result is its id. It is sent at once, and those after it together.

        A ``message`` is bytes or text, with ``json`` any value. Before ``attach`` it waits for that. Raise ``Full``
        beyond maxsize, ``Gone`` if the queue was closed, ``Unavailable`` if its server stayed away, ``Unconfirmed`` if
        the connection was lost before the reply: then the message may be in the queue or not.

        If the bus has an outbox, the result is 0 for a message that waits there, and has no id yet; call ``attach``
        before. Of the errors ``Full`` and ``Gone`` remain, and ``DiskFull``, or ``Unconfirmed`` if the message may have
        arrived before. A queue that does not exist any more is created again, unless it is known to be closed.
        """
        self._bus.check_connected()
        return self._pushes.add(as_payload(message, json=json))

    @overload
    async def push_many(
        self, messages: Iterable[Payload] | AsyncIterable[Payload], *, json: Literal[False] = False
    ) -> list[int]: ...
    @overload
    async def push_many(self, messages: Iterable[Any] | AsyncIterable[Any], *, json: bool) -> list[int]: ...

    async def push_many(self, messages: Iterable[Any] | AsyncIterable[Any], *, json: bool = False) -> list[int]:
        """Push all of ``messages`` in order, in batches; return their ids. Raise as ``push`` does."""
        self._bus.check_connected()
        ids = list[int]()
        try:
            async with aclosing(payload_batches(messages, partial(as_payload, json=json))) as found:
                await self._pushes.add_batches(found, ids)
        except Full as error:
            raise Full(f"{error}; {len(ids):,} were pushed", ids) from None
        return ids

    def consume(self, **options: Unpack[ModeOptions]) -> Consumption:
        """Consume messages, oldest first: ``async for message in queue.consume():``, or ``await queue.consume()`` to
        have the handlers of ``message`` called. It ends with ``stop``, after ``limit`` messages, or when the queue is
        closed.

        A message is gone once it is taken. So at most ``prefetch`` messages are lost if this process is killed, and as
        many each time that the connection ends before the reply to a call that takes some: then ``error`` gets
        ``Unconfirmed``, and it is logged. What was taken and not handed out goes back at ``stop``, when the loop is
        left or cancelled, and when the bus is disconnected, unless the server is away: that is logged, too.

        With ``reliable`` a message is kept until ``ack``, which acknowledges all messages up to an id; what was not
        acknowledged comes again with the next consumption, from behind the id ``after_id``. Only one client may consume
        a queue like this: ``exclusive`` holds a lease, so that others are refused (``Occupied``). Without ``remove``
        all messages from the place ``start`` on, or from behind the id ``after_id``, are read, and stay.

        At most ``prefetch`` messages are taken at once, no more once they have ``prefetch_bytes`` together, and fewer
        while handling is slow. While a consumption runs, a call with the same options returns it; raise ``WrongCall``
        for others.
        """
        if not self._bus.leaves:  # after `disconnect` the loop raises Unavailable
            self._bus.check_connected()
        mode = Mode.of(options)
        if self.consumptions and not self.consumptions[-1].ends:
            return running(self.consumptions[-1], mode)
        consumption = Consumption(self, mode)
        self.consumptions.append(consumption)
        if mode.reliable:
            self._acks.last_reliable = consumption
        return consumption

    async def stop(self) -> None:
        """End the consumption: no message is handed out after this, and those that were taken for it go back."""
        for each in tuple(self.consumptions):
            await each.stop()

    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """Acknowledge all messages up to ``id``; ignored while messages are consumed without ``reliable``.

        Several calls are sent as one. Await the result to know that the server has it. Raise ``Fenced`` if the messages
        were those of an ``exclusive`` consumption, and another consumer has the queue, or may have had it.
        """
        check_id(id)
        return self._acks.add(None, id)

    def ack_for(self, consumption: Consumption, id: int) -> "asyncio.Future[None]":
        """Acknowledge as ``ack``, what ``consumption`` has handed out."""
        return self._acks.add(consumption, id)

    async def close(self) -> None:
        """Destroy the queue with its messages. Everybody attached to it hears ``closed``; their next push fails.

        Raise ``Unconfirmed`` if the connection was lost before the reply.
        """
        if not self.is_attached:
            raise WrongCall(f"queue {self.name}: expected `attach` before `close`")
        await self.detach()
        await self.call_once(CLOSE, **self.keys.named, lease=self.lease, channel=CLOSED, name=encoded(self.name))
        self._bus.forget_home(self._metadata)
        self._closed = True
        self.emit("closed")

    async def flush(self) -> None:
        """Delete all messages, those that are not acknowledged, too. Ids go on where they were.

        Raise ``Unconfirmed`` if the connection was lost before the reply: a second call could delete what came since.
        """
        metadata, messages, _, toack = self.keys
        await self.call_once(FLUSH, metadata=metadata, messages=messages, toack=toack)
