"""A queue, as a peer uses it: pushes, and messages that come back to the queue if the peer never got them."""

import asyncio
from typing import Any, Final

from penstock.base.encoding import decoded
from penstock.base.errors import WrongCall
from penstock.bus import Consumption, Message, Queue
from penstock.bus.federation.frames import Call, dumped
from penstock.bus.mode import from_busmq
from penstock.core.objects import wires_of
from penstock.core.tasks import begin
from services.gateway.pushes import Pushes
from services.gateway.served import ANSWERED, Peer, options_of
from services.gateway.served_consumer import ATTACHING, CONSUMING, ServedConsumer, id_of

EVENTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("attaching", "detaching", "detached", "closed", "drain"), list),
    **{name: lambda flag: [flag] for name in ("attached", "consuming")},
}


class ServedQueue(ServedConsumer):
    """One queue."""

    TYPE = "queue"
    ROWS = wires_of(Queue)
    immediate = frozenset({"on", "once", "push", "pushAll", "ack", "handled"})

    def __init__(self, peer: Peer, channel: bytes, args: list[Any], names: list[str], extended: bool) -> None:
        super().__init__(peer, channel, args[0], names, extended=extended)
        self._queue = peer.gateway.bus.queue(args[0])
        self._consumption: Consumption | None = None
        self._delivering: asyncio.Task[None] | None = None
        self._pushes = pushes = Pushes(self, self._queue)
        queue = self._queue
        self.serve(queue, self._then)
        self.methods |= {
            "attach": lambda call: queue.attach(**options_of(call, 0, ATTACHING)),
            "detach": lambda _: self._detach(),
            "push": pushes.push,
            "pushAll": pushes.push_all,
            "consume": self._consume,
            "stop": self._stop,
            "ack": self._ack,
            "close": lambda _: self._then(queue.close),
            "metadata": self._metadata,
            "isAttached": lambda call: self.answer(call, queue.is_attached),
            "isConsuming": lambda call: self.answer(call, None, queue.is_consuming),
            "pushed": lambda call: self.answer(call, None, queue.pushed),
            "consumed": lambda call: self.answer(call, None, queue.consumed),
        }
        self.relay(queue, EVENTS)

    async def leave(self) -> None:
        """Detach. What the peer has not confirmed goes back, unless it is kept until it is acknowledged."""
        if self._delivering:
            self._delivering.cancel()
            await asyncio.gather(self._delivering, return_exceptions=True)
        await self._end_consumption()
        await self._pushes.end()
        await self._queue.leave()

    async def _end_consumption(self) -> None:
        """End the consumption; give back what was not confirmed."""
        if self._consumption is None:
            return
        consumption, self._consumption = self._consumption, None
        unconfirmed = self._window.unconfirmed
        if unconfirmed and not consumption.reliable:
            self.peer.count("given_back", len(unconfirmed))
            for message in reversed(unconfirmed):
                consumption.take_back(message)
        self._window.confirm(len(unconfirmed))
        await consumption.stop()

    async def _then(self, work: Any) -> Any:
        """Do ``work`` after the pushes that came before it."""
        await self._pushes.settle()
        return await work()

    async def _detach(self) -> None:
        await self._stop_delivering()
        await self._then(self._queue.detach)

    def _ack(self, call: Call) -> None:
        def ended(ack: "asyncio.Future[None]") -> None:
            if ack.cancelled():
                return
            if error := ack.exception():
                self.fail(call, error)
            else:
                self.answer(call, None)

        self._queue.ack(id_of(call)).add_done_callback(ended)

    def name_of(self, call: Call) -> str:
        if call.method != "metadata":
            return super().name_of(call)
        if not call.values:
            return "metadata"
        return "get_metadata" if len(call.values) == 1 and isinstance(call.values[0], str) else "set_metadata"

    async def _metadata(self, call: Call) -> Any:
        values = call.values
        if values and not isinstance(values[0], str | dict):
            raise WrongCall("metadata: expected a name, or an object with values by name")
        match self.name_of(call):
            case "metadata":
                return await self._queue.metadata()
            case "get_metadata":
                return await self._queue.get_metadata(values[0])
        return await self._queue.set_metadata({values[0]: values[1]} if isinstance(values[0], str) else values[0])

    async def _consume(self, call: Call) -> object:
        """Begin to consume; the call is answered once that has succeeded, or failed."""
        if self._consumption is not None and self._consumption in self._queue.consumptions:
            return None
        options = from_busmq(options_of(call, 0, CONSUMING))
        limits = self.peer.gateway.settings
        options["prefetch"] = max(1, min(options.get("prefetch", limits.window), limits.window))
        options["prefetch_bytes"] = max(1, min(options.get("prefetch_bytes", limits.window_bytes), limits.window_bytes))
        await self._end_consumption()
        self._consumption = self._queue.consume(**options)
        self._delivering = begin(self._deliver(self._consumption, call))
        return ANSWERED

    async def _stop(self, call: Call) -> None:
        """End the consumption. An extended peer says how many messages it has handled before; the others go back."""
        await self._stop_delivering()

    async def _stop_delivering(self) -> None:
        if self._delivering:
            self._delivering.cancel()
            await asyncio.gather(self._delivering, return_exceptions=True)
            self._delivering = None
        if self._consumption and not self._extended:
            self._window.confirm(len(self._window.unconfirmed))
        await self._end_consumption()

    async def _deliver(self, consumption: Consumption, call: Call) -> None:
        """Send messages as they come, as many as the window lets through."""
        begun = list[bool]()

        def begins(consuming: bool) -> None:
            if not begun and consuming:
                begun.append(True)
                self.answer(call, None, None)

        self._queue.on("consuming", begins)
        try:
            while await consumption.fetch():
                batch, wants_all = list[Message](), self._wants_all
                while message := consumption.next_taken():
                    self._window.add(message)
                    batch.append(message)
                    if self._window.is_full or not wants_all:
                        self._send_messages(batch)
                        batch = []
                        await self._wanted()
                        wants_all = self._wants_all
                self._send_messages(batch)
            await consumption.stop()
        except Exception as error:  # noqa: BLE001  # such as a lease that was lost: the peer gets it
            await self._end_consumption()
            self.fail(call._replace(callback=None) if begun else call, error)
        finally:
            self._queue.off("consuming", begins)

    @property
    def _wants_all(self) -> bool:
        """Return whether messages go together: not to several listeners, for each of which there is a copy."""
        listeners = [once for name in ("message", "messages") for _, once in self._listeners.get(name, ())]
        return listeners == [False]

    async def _wanted(self) -> None:
        """Wait until the peer listens, and has room."""
        await self._window.room()
        await self.peer.room()
        while not self.listens("message") and not self.listens("messages"):
            self._listened.clear()
            await self._listened.wait()

    def _send_messages(self, messages: list[Message]) -> None:
        if not messages:
            return
        self.peer.count("delivered", len(messages))
        if not self._extended:
            for message in messages:
                self._emit_message(message)
            self.peer.confirm_by_ping(self._window)
            return
        pairs = dumped([[decoded(each.body), each.id] for each in messages])
        for callback in self.due("messages"):
            self.send(b'{"method":%d,"arguments":%b}\n' % (callback, pairs))
