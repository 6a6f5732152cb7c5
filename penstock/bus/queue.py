"""A queue: attach to it, push, consume, acknowledge, describe, close."""

# mypy: disable-error-code="empty-body"

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, Final, Literal, Unpack, overload

from penstock.base.encoding import decoded, decoded_fields, encoded, parse_whole
from penstock.base.errors import Full, Gone, Unavailable, WrongCall
from penstock.base.payload import Payload, as_payload, checked
from penstock.bus.consumption import Acks, Consumption
from penstock.bus.fallback import BusOutbox, StoredPushes
from penstock.bus.host import Host
from penstock.bus.keys import CLOSED, MAX_TTL, check_field, check_id, is_whole, whole
from penstock.bus.message import PEEKED, Peeked
from penstock.bus.mode import Mode, ModeOptions, running
from penstock.bus.place import Place
from penstock.bus.pushes import Pushes
from penstock.bus.scripts import CLOSE, DESCRIBE, FLUSH, READ
from penstock.core.batches import MAX_BYTES, payload_batches
from penstock.core.objects import method

MAX_PEEKED: Final = 1_000
"""Maximum number of messages of one ``peek``."""
OWN_FIELDS: Final = frozenset({"moving", "source", "discover", "last_consumer", "restored"})
"""Fields of the metadata that nobody else may set."""


class QueueMethods:
    """What a queue is asked, here and at another site; it need not be attached to."""

    @method("find")
    async def find(self) -> str | None:
        """Return where the queue is: ``local``, or the URL of another site; None if it is not known."""

    @method("ttl", early=False)
    async def ttl(self) -> int | None:
        """Return the ttl (s) of the queue; None if it does not exist."""

    @method("maxsize", early=False)
    async def maxsize(self) -> int | None:
        """Return the most messages that it may hold, 0 without limit; None if it does not exist."""

    @method("metadata", early=False)
    async def metadata(self) -> dict[str, str]:
        """Return all fields of the metadata; empty if the queue does not exist."""

    @method("exists")
    async def exists(self) -> bool:
        """Return whether the queue exists."""

    @method("count", early=False)
    async def count(self) -> int:
        """Return how many messages wait."""

    @method("flush", early=False, again=False)
    async def flush(self) -> None:
        """Delete all messages, those that are not acknowledged, too. Ids go on where they were.

        Raise ``Unconfirmed`` if the connection was lost before the reply: a second call could delete what came since.
        """

    @method("peek", since=2, gives=PEEKED)
    async def peek(self, most: int = 1) -> list[Peeked]:
        """Return the oldest messages, at most ``most``, fewer once they have 1 MiB together, and leave them there."""


class Queue(Place, QueueMethods):
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
        self._pushes: Pushes | StoredPushes = StoredPushes(self, outbox) if outbox else Pushes(self)
        self._acks = Acks(self)
        self.followers = self._acks.consumptions

    @property
    def consumptions(self) -> list[Consumption]:
        """Return the one that runs, if any, behind those that are ending."""
        return self._acks.consumptions

    @property
    @method("isConsuming", plain=False)
    def is_consuming(self) -> bool:
        """Return whether messages are being consumed."""
        return any(each.runs for each in self.consumptions)

    @method("detach", plain=False)
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

    @method("push", again=False, plain=False)
    def push(self, message: Any, *, json: bool = False) -> "asyncio.Future[int]":
        """Push one message; the result is its id. It is sent at once, and those after it together.

        A ``message`` is bytes or text, with ``json`` any value. Before ``attach`` it waits for that. Raise ``Full``
        beyond maxsize, ``Gone`` if the queue was closed, ``Unavailable`` if its server stayed away, ``Unconfirmed`` if
        the connection was lost before the reply: then the message may be in the queue or not.

        If the bus has an outbox, the result is 0 for a message that waits there, and has no id yet; call ``attach``
        before. Of the errors ``Full`` and ``Gone`` remain, and ``DiskFull``, or ``Unconfirmed`` if the message may have
        arrived before. A queue that does not exist any more is created again, unless it is known to be closed.
        """
        self.bus.check_connected()
        return self._pushes.add(as_payload(message, json=json))

    @overload
    async def push_many(
        self, messages: Iterable[Payload] | AsyncIterable[Payload], *, json: Literal[False] = False
    ) -> list[int]: ...
    @overload
    async def push_many(self, messages: Iterable[Any] | AsyncIterable[Any], *, json: bool) -> list[int]: ...

    @method("pushAll", again=False, since=1, plain=False)
    async def push_many(self, messages: Iterable[Any] | AsyncIterable[Any], *, json: bool = False) -> list[int]:
        """Push all of ``messages`` in order, in batches; return their ids. Raise as ``push`` does."""
        self.bus.check_connected()
        ids = list[int]()
        try:
            async with aclosing(payload_batches(messages, partial(as_payload, json=json))) as found:
                await self._pushes.add_batches(found, ids)
        except Full as error:
            raise Full(f"{error}; {len(ids):,} were pushed", ids) from None
        return ids

    @method("consume", plain=False)
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
        if not self.bus.leaves:  # after `disconnect` the loop raises Unavailable
            self.bus.check_connected()
        mode = Mode.of(options)
        if self.consumptions and not self.consumptions[-1].ends:
            return running(self.consumptions[-1], mode)
        consumption = Consumption(self, mode, self._acks)
        self.consumptions.append(consumption)
        if mode.reliable:
            self._acks.last_reliable = consumption.claim
        return consumption

    @method("stop", plain=False)
    async def stop(self) -> None:
        """End the consumption: no message is handed out after this, and those that were taken for it go back."""
        for each in tuple(self.consumptions):
            await each.stop()

    @method("ack", plain=False)
    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """Acknowledge all messages up to ``id``; ignored while messages are consumed without ``reliable``.

        Several calls are sent as one. Await the result to know that the server has it. Raise ``Fenced`` if the messages
        were those of an ``exclusive`` consumption, and another consumer has the queue, or may have had it.
        """
        check_id(id)
        return self._acks.ack(id)

    @method("close", again=False, plain=False)
    async def close(self) -> None:
        """Destroy the queue with its messages. Everybody attached to it hears ``closed``; their next push fails.

        Raise ``Unconfirmed`` if the connection was lost before the reply.
        """
        if not self.is_attached:
            raise WrongCall(f"queue {self.name}: expected `attach` before `close`")
        await self.detach()
        await self.call_once(CLOSE, **self.keys.named, lease=self.lease, channel=CLOSED, name=encoded(self.name))
        self.bus.forget_home(self._metadata)
        self._closed = True
        self.emit("closed")

    async def flush(self) -> None:
        metadata, messages, _, toack = self.keys
        await self.call_once(FLUSH, metadata=metadata, messages=messages, toack=toack)

    async def count(self) -> int:
        return int(await (await self.home()).command("LLEN", self.keys.messages)) // 2

    async def ttl(self) -> int | None:
        return parse_whole(await self.get_metadata("ttl"))

    async def maxsize(self) -> int | None:
        return parse_whole(await self.get_metadata("maxsize"))

    async def find(self) -> str | None:
        return await self.get_metadata("source")

    async def metadata(self) -> dict[str, str]:
        words = await (await self.home()).command("HGETALL", self.keys.metadata)
        return decoded_fields(dict(zip(words[::2], words[1::2], strict=True)))

    async def peek(self, most: int = 1) -> list[Peeked]:
        if isinstance(most, bool) or not is_whole(most, 1, MAX_PEEKED):
            raise WrongCall(f"peek({most!r}): expected a number of messages from 1 to {MAX_PEEKED:,}")
        metadata, messages, msgid, _ = self.keys
        named: dict[str, Any] = {"metadata": metadata, "messages": messages, "msgid": msgid}
        named |= {"index": 0, "last": 0, "digest": "", "most": int(most), "bytes": MAX_BYTES}
        try:
            _, _, *found = await self.call(READ, **named)
        except Gone:
            return []
        words = [word for each in found for word in each]
        return [Peeked(body, whole(id_) or 0) for id_, body in zip(words[::2], words[1::2], strict=True)]

    @method("metadata", early=False, plain=False)
    async def get_metadata(self, field: str) -> str | None:
        """Return one field of the metadata; None if it does not exist."""
        check_field(field)
        found = await (await self.home()).command("HGET", self.keys.metadata, encoded(field))
        return None if found is None else decoded(found)

    @method("metadata", early=False, plain=False)
    async def set_metadata(self, fields: Mapping[str, object]) -> None:
        """Set ``fields`` of the metadata, and leave the others as they are.

        Values are text; True and False become ``true`` and ``false``. Raise ``Gone`` if the queue does not exist. A
        ``ttl`` holds from the next sign of life of anybody who is attached, at once if it is longer.
        """
        if own := OWN_FIELDS & fields.keys():
            raise WrongCall(f"the bus itself sets {', '.join(sorted(own))}: choose other names")
        if "ttl" in fields and not whole(as_text(fields["ttl"]), MAX_TTL):
            raise WrongCall(f"ttl={fields['ttl']}: expected whole seconds from 1 to 10^9")
        if "maxsize" in fields and whole(as_text(fields["maxsize"])) is None:
            raise WrongCall(f"maxsize={fields['maxsize']}: expected a number from 0 on")
        for name in fields:
            check_field(name)
        words = [word for name, each in fields.items() for word in (encoded(name), as_text(each))]
        if not words:
            return
        ttl = await self.call(DESCRIBE, **self.keys.named, fields=words)
        if not ttl:
            raise Gone(f"queue {self.name} does not exist")
        self.note_ttl(ttl)


def as_text(value: object) -> bytes:
    """Return a value of the metadata as it is stored."""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return value if isinstance(value, bytes) else encoded(str(value))
