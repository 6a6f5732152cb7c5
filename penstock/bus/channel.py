"""A channel: two ends that send to each other, each over a queue of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, Literal, overload

from redis.exceptions import RedisError

from penstock.base.errors import Gone, PenstockError, WrongCall
from penstock.base.log import Log
from penstock.base.payload import Payload, as_payload
from penstock.bus.consumption import Consumption, log_failure
from penstock.bus.events import Emitter, Handler
from penstock.bus.host import Host
from penstock.bus.keys import check_attaching, check_id
from penstock.bus.message import Message
from penstock.bus.mode import Mode
from penstock.bus.queue import Queue

CONNECT: Final = b":1:"
MESSAGE: Final = b":2:"
DISCONNECT: Final = b":3:"
END: Final = b":4:"
"""How the body of each message begins."""
MAX_ROLE: Final = 200
ATTACHING: Final = frozenset({"ttl", "maxsize", "discoverable"})
_log: Final = Log("penstock.bus")


class Handover:
    """A message waits for a loop over ``messages``, or for a handler of ``message`` of the ``channel``.

    ``taken`` is called whenever one of them has taken a message; the next one waits until it has handled it.
    """

    def __init__(self, channel: Emitter, name: str, taken: Callable[[], None] = lambda: None) -> None:
        self._channel, self._name, self._note_taken = channel, name, taken
        self._held: Message | None = None
        """What nobody has taken yet."""
        self._changed = asyncio.Event()
        """Wakes ``give``: there may be who takes what is held, or who has handled it."""
        self._offered = asyncio.Event()
        """Wakes the loop over ``messages``: something is held, or this end has left."""
        self._iterated = self._handles = False
        """Whether there is such a loop, and whether it handles a message."""

    @property
    def is_awaited(self) -> bool:
        """Return whether there is a loop or a handler."""
        return self._iterated or self._channel.has_handlers("message")

    def wake(self) -> None:
        """Look for a handler again: there may be a new one."""
        self._changed.set()

    def withdraw(self) -> bool:
        """Hold no message any more, and have the loop look whether it goes on; return whether one was held."""
        held, self._held = self._held, None
        self._changed.set()
        self._offered.set()
        return held is not None

    async def give(self, message: Message) -> None:
        """Wait until somebody has handled ``message``, or it is withdrawn."""
        self._held = message
        while self._held is message or self._handles:
            if self._held is message and not self._iterated and self._channel.has_handlers("message"):
                self._held = None
                self._note_taken()
                await self._channel.deliver("message", message)
                return
            self._offered.set()
            self._changed.clear()
            await self._changed.wait()

    async def messages(self, goes_on: Callable[[], bool]) -> AsyncIterator[Message]:
        """Yield messages while ``goes_on()``. Raise ``WrongCall`` if another loop takes them."""
        if self._iterated:
            raise WrongCall(f"channel {self._name}: another loop takes its messages")
        self._iterated = True
        self._changed.set()
        try:
            while goes_on():
                if self._held is None:
                    self._offered.clear()
                    await self._offered.wait()
                    continue
                message, self._held = self._held, None  # from here to the caller nothing can be cancelled
                self._handles = True
                self._note_taken()
                yield message
                self._handles = False
                self._changed.set()
        finally:
            self._iterated = self._handles = False
            self._changed.set()


class Channel(Emitter):
    """One end of a channel: consumes what is sent to its role ``local``, and sends to the role ``remote``.

    Events: ``connect``, ``remote:connect``, ``message`` (see ``Message``), ``disconnect``, ``remote:disconnect``,
    ``end`` (the other end ended the channel), ``error``. The names ``connected`` and so on are the same.

    If somebody closes one of its queues, or the server loses or refuses it, ``error`` and ``disconnect`` happen, and
    this end is not attached any more: connect again.
    """

    EVENTS: ClassVar = frozenset(
        {"connect", "remote:connect", "message", "disconnect", "remote:disconnect", "end", "error"}
    )
    ALIASES: ClassVar = {
        "connected": "connect",
        "disconnected": "disconnect",
        "remote:connected": "remote:connect",
        "remote:disconnected": "remote:disconnect",
    }

    def __init__(self, bus: Host, name: str, local: str, remote: str) -> None:
        super().__init__()
        check_role(local)
        check_role(remote)
        self.name, self.local, self.remote = name, local, remote
        self._bus = bus
        self._incoming: Queue | None = None
        self._outgoing: Queue | None = None
        self._reliable = False
        self._remote_is_connected = False
        self._receiving: asyncio.Task[None] | None = None
        self._unacknowledged: dict[int, bool] = {}
        """Ids that were received and not acknowledged, in order: whether each needs no ack of the user's."""
        self._handover = Handover(self, name)
        self._offer: tuple[Consumption, Message] | None = None
        """What was handed over last, as it was received, and where it goes back if nobody takes it."""

    def on(self, event: str, handler: Handler) -> Handler:
        """As ``Emitter.on``; messages that came before the first handler of ``message`` have waited for it."""
        self._handover.wake()
        return super().on(event, handler)

    def once(self, event: str, handler: Handler) -> Handler:
        """As ``Emitter.once``; see ``on``."""
        self._handover.wake()
        return super().once(event, handler)

    @property
    def is_attached(self) -> bool:
        """Return whether this end is connected; nobody knows it of a peer that has died."""
        return self._outgoing is not None

    @property
    def is_remote_connected(self) -> bool:
        """Return whether the other end said that it connected, and not that it left."""
        return self._remote_is_connected

    async def connect(self, **options: Any) -> None:
        """Connect: consume the queue of the role ``local``, tell the other end, and take what it sent meanwhile.

        ``options`` are those of ``Queue.attach`` and ``Queue.consume``: ttl, maxsize, reliable, after_id, ...
        """
        await self._open(self.local, self.remote, options)

    attach = connect

    async def listen(self, **options: Any) -> None:
        """As ``connect``, with both roles exchanged: so that neither end needs to name them."""
        await self._open(self.remote, self.local, options)

    @overload
    async def send(self, message: Payload, *, json: Literal[False] = False) -> int: ...
    @overload
    async def send(self, message: Any, *, json: bool) -> int: ...

    async def send(self, message: Any, *, json: bool = False) -> int:
        """Send a message; it waits for the other end if that is away. Return its id. Raise as ``Queue.push`` does."""
        return await self._connected().push(MESSAGE + as_payload(message, json=json))

    async def send_to(self, endpoint: str, message: Payload | Any, *, json: bool = False) -> int:
        """Send a message to the role ``endpoint`` without connecting."""
        check_role(endpoint)
        queue = Queue(self._bus, f"channel:{endpoint}:{self.name}")
        await queue.attach()
        try:
            return await queue.push(MESSAGE + as_payload(message, json=json))
        finally:
            await queue.detach()

    def messages(self) -> AsyncIterator[Message]:
        """Yield what the other end sends, until one of both ends disconnects this one: instead of a handler."""
        outgoing = self._connected()
        return self._handover.messages(lambda: self._outgoing is outgoing)

    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """Acknowledge all messages up to ``id``; ignored unless the channel is ``reliable``."""
        if self._incoming is None:
            raise WrongCall(f"channel {self.name}: expected `connect` or `listen` before `ack`")
        check_id(id)
        for each in [each for each in self._unacknowledged if each <= id]:
            del self._unacknowledged[each]
        return self._incoming.ack(self._then_settled(id))

    def take_back(self, message: Message) -> None:
        """Hand out ``message`` again as the next one; once this end has left, it waits for who connects next."""
        if self._incoming is not None:
            for each in self._incoming.consumptions:
                each.take_back(Message(MESSAGE + message.body, message.id, self._incoming))

    async def disconnect(self) -> None:
        """Leave, and tell the other end. The channel lives on; messages sent meanwhile wait."""
        await self._close(DISCONNECT)

    detach = disconnect

    async def end(self) -> None:
        """End the channel for both ends: tell the other one, which then disconnects."""
        await self._close(END)

    async def leave(self) -> None:
        """Disconnect, as the bus is being disconnected."""
        await self.disconnect()

    async def _open(self, local: str, remote: str, options: dict[str, Any]) -> None:
        if self.is_attached:
            raise WrongCall(f"channel {self.name}: connected already")
        attaching, options = opening(options)
        incoming = Queue(self._bus, f"channel:{local}:{self.name}")
        outgoing = Queue(self._bus, f"channel:{remote}:{self.name}")
        self._remote_is_connected, self._unacknowledged = False, {}
        self._reliable = bool(options.get("reliable"))
        self._incoming, self._outgoing = incoming, outgoing
        try:
            await asyncio.gather(incoming.attach(**attaching), outgoing.attach(**attaching))
            consumption = incoming.consume(**options)
            for queue in (incoming, outgoing):
                queue.on("closed", partial(self._note_closed, queue))
            self._bus.ends_with(self)
            self.emit("connect")
            await outgoing.push(CONNECT)
            self._receiving = self._bus.spawn(self._receive(consumption))
        except BaseException:
            await self._left()
            raise

    def _connected(self) -> Queue:
        if self._outgoing is None:
            raise WrongCall(f"channel {self.name}: expected `connect` or `listen` before this call")
        return self._outgoing

    async def _close(self, last: bytes) -> None:
        if self._outgoing is None:
            return
        try:
            with suppress(Gone):  # then there is nobody to tell
                await self._outgoing.push(last)
        finally:
            await self._left()
            self.emit("disconnect")

    async def _left(self) -> None:
        """Detach from both queues."""
        incoming, outgoing, self._incoming, self._outgoing = self._incoming, self._outgoing, None, None
        self._bus.ended(self)
        if self._handover.withdraw() and self._offer is not None:
            messages, message = self._offer
            messages.take_back(message)
        for queue in (incoming, outgoing):
            if queue is not None:
                await queue.detach()

    async def _note_closed(self, queue: Queue) -> None:
        if queue in (self._incoming, self._outgoing):
            await self._fail(Gone(f"queue {queue.name} was closed, or its server has lost it"))

    async def _fail(self, error: Exception) -> None:
        """Leave, since this end cannot go on."""
        _log.warning("channel ended", channel=self.name, reason=str(error))
        try:
            await self._left()
        except (PenstockError, RedisError) as left:
            _log.warning("not left in order", channel=self.name, reason=str(left))
        self.emit("error", error)
        self.emit("disconnect")

    async def _receive(self, messages: Consumption) -> None:
        try:
            async for message in messages:
                kind = message.body[:3]
                if self._reliable:
                    self._unacknowledged[message.id] = kind != MESSAGE
                if kind == MESSAGE:
                    await self._hand_out(messages, message)
                    continue
                await self._control(kind)
                if self._reliable and self._incoming is not None and (last := self._then_settled(0)):
                    self._incoming.ack(last).add_done_callback(log_failure)
                if kind == END:
                    await self._left()
                    self.emit("disconnect")
                    self.emit("end")
                    return
        except Exception as error:  # noqa: BLE001  # a channel that looks alive and is not would be worse
            if messages.queue is self._incoming:
                await self._fail(error)

    async def _control(self, kind: bytes) -> None:
        if kind == CONNECT:
            if not self._remote_is_connected:
                self._remote_is_connected = True
                self.emit("remote:connect")
        elif kind == DISCONNECT:
            if self._outgoing is not None:  # the next client that connects must know that this end is there
                await self._outgoing.push(CONNECT)
            if self._remote_is_connected:
                self._remote_is_connected = False
                self.emit("remote:disconnect")
        elif kind != END:
            self.emit("error", WrongCall(f"channel {self.name}: a message that begins with {kind!r} is unknown"))

    async def _hand_out(self, messages: Consumption, message: Message) -> None:
        """Wait until somebody has handled ``message``; if the channel is left before, it goes back."""
        self._offer = messages, message
        await self._handover.give(Message(message.body[len(MESSAGE) :], message.id, self))

    def _then_settled(self, last: int) -> int:
        """Return the last id that may be acknowledged: of ``last``, and of control messages not behind a message.

        The wire's ack takes all ids up to one, so a control message is not acknowledged before the messages before it.
        """
        for each, settled in [*self._unacknowledged.items()]:
            if not settled:
                break
            del self._unacknowledged[each]
            last = max(last, each)
        return last


def opening(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options of ``connect`` as those of ``Queue.attach``, and of ``Queue.consume``. Raise ``WrongCall``."""
    attaching = {name: value for name, value in options.items() if name in ATTACHING}
    consuming = {name: value for name, value in options.items() if name not in ATTACHING}
    check_attaching(attaching.get("ttl", 1), attaching.get("maxsize", 0))
    Mode.of(consuming)
    return attaching, consuming


def check_role(role: object) -> None:
    """Raise ``WrongCall`` if ``role`` could name a queue of another channel."""
    if not isinstance(role, str) or ":" in role or not 0 < len(role) <= MAX_ROLE:
        raise WrongCall(f"role {role!r}: expected 1 to {MAX_ROLE} characters, and no colon")
