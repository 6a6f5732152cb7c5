"""A queue of another site, with the methods of a local one."""

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar, Unpack

from penstock.base.errors import Gone, PenstockError, Unauthorized, WrongCall
from penstock.base.payload import Payload, as_payload
from penstock.bus.federation.acks import Acks
from penstock.bus.federation.consumption import FederatedConsumption
from penstock.bus.federation.description import FederatedDescription
from penstock.bus.federation.failures import error_of
from penstock.bus.federation.pushes import Pushes
from penstock.bus.federation.remote import Remote
from penstock.bus.federation.site import Site
from penstock.bus.host import Host
from penstock.bus.mode import Mode, ModeOptions, running
from penstock.bus.numbers import check_attaching, check_id
from penstock.bus.queue import Queue
from penstock.core.instance import OVERDUE_SECONDS


class FederatedQueue(FederatedDescription):
    """One queue of another site: see ``Queue``. ``leave`` lets go of it; ``close`` destroys it.

    Further events: ``ready`` once it can be used, ``reconnecting`` (why), ``reconnected``, ``unauthorized`` if the
    other site refuses the secret or the name, ``close`` after ``leave``.
    """

    EVENTS: ClassVar = Queue.EVENTS | Remote.FEDERATION
    TYPE = "queue"
    HEARD = ("error", "attached", "consuming", "closed", "detached")

    def __init__(self, bus: Host, site: Site, name: str) -> None:
        self.name = name
        self.pushed = self.consumed = 0
        """Messages that this object has pushed and handed out."""
        self.consumptions: list[FederatedConsumption] = []
        """The one that runs, if any."""
        self._is_there = self._closed = False
        self._attaching = asyncio.Event()
        self._pushes, self._acks = Pushes(self), Acks(self)
        self.acknowledged = 0
        """The last id that was acknowledged in the consumption that runs."""
        super().__init__(bus, site, [name])

    @property
    def is_attached(self) -> bool:
        """Return whether messages can be pushed and consumed."""
        return self._is_there

    @property
    def is_away(self) -> bool:
        """Return whether nothing can be pushed, or an answer is overdue."""
        return not self._is_there or self.calls.overdue > OVERDUE_SECONDS

    @property
    def is_consuming(self) -> bool:
        """Return whether messages are being consumed."""
        return any(each.runs for each in self.consumptions)

    async def attach(self, *, ttl: int = 30, maxsize: int = 0, discoverable: bool = False) -> bool:
        """As ``Queue.attach``."""
        if self._attached is not None:
            raise WrongCall(f"queue {self.name}: attached already")
        check_attaching(ttl, maxsize)
        options = {"ttl": int(ttl), "maxsize": int(maxsize), "discoverable": bool(discoverable)}
        self.emit("attaching")
        await self.wait_ready()
        self._closed = False
        self._attached = options  # so that a websocket that is lost meanwhile does not matter
        try:
            exists = bool(await self.cause("attached", "attach", options))
        except PenstockError as error:
            if self._is_there:  # attached when the websocket was opened again
                return True
            self._attached = None
            self.emit("error", error)
            raise
        self._note_attached(exists)
        return exists

    async def detach(self) -> None:
        """As ``Queue.detach``."""
        if self._attached is None:
            return
        self.emit("detaching")
        await self.stop()
        await self._pushes.settle()
        await self._acks.settle()
        await self.end_with("detached", "detach", self._forget)
        self._gone()
        self.emit("detached")

    def push(self, message: Payload | Any, *, json: bool = False) -> "asyncio.Future[int]":
        """As ``Queue.push``. Raise ``Unconfirmed`` if the websocket was lost before the answer."""
        self._bus.check_connected()
        return self._pushes.push(as_payload(message, json=json))

    async def push_many(self, messages: Iterable[Payload] | AsyncIterable[Payload], *, json: bool = False) -> list[int]:
        """As ``Queue.push_many``."""
        return await self._pushes.push_many(messages, json=json)

    def note_refused(self, error: Unauthorized) -> None:
        """End the consumption as well: a loop that waited would wait for ever."""
        super().note_refused(error)
        for each in tuple(self.consumptions):
            each.ended(error)

    def consume(self, **options: Unpack[ModeOptions]) -> FederatedConsumption:
        """As ``Queue.consume``. What was handed out when a websocket is lost may come again."""
        mode = Mode.of(options)
        if self.consumptions:
            return running(self.consumptions[0], mode)
        self.acknowledged = mode.after_id
        self.consumptions.append(FederatedConsumption(self, mode))
        return self.consumptions[0]

    async def stop(self) -> None:
        """As ``Queue.stop``."""
        for each in tuple(self.consumptions):
            await each.stop()

    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """As ``Queue.ack``. Node's server does not confirm it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        check_id(id)
        if self._attached is None:
            future.set_exception(WrongCall(f"queue {self.name}: expected `attach` before `ack`"))
        elif self.consumptions and not self.consumptions[0].reliable:
            future.set_result(None)
        else:
            self.acknowledged = max(self.acknowledged, id)
            self._acks.add(id, future)
        return future

    async def close(self) -> None:
        """As ``Queue.close``. Raise ``Unconfirmed`` if the websocket was lost before the answer: then attach anew."""
        if self._attached is None:
            raise WrongCall(f"queue {self.name}: expected `attach` before `close`")
        await self.stop()
        await self.end_with("closed", "close", self._forget)
        self._note_closed()

    async def flush(self) -> None:
        """As ``Queue.flush``. Raise ``Unconfirmed`` if the websocket was lost before the answer."""
        await self._ask("flush")

    async def leave(self) -> None:
        """Let go of the queue: the other end detaches, and gives back what was not handed out."""
        for each in tuple(self.consumptions):
            each.ended(None)
        await super().leave()
        self._gone()
        await self._pushes.end(WrongCall(f"queue {self.name}: it was left"))

    @property
    def heard(self) -> tuple[str, ...]:
        return (*self.HEARD, "messages" if self.has_more else "message")

    async def replay(self) -> None:
        """Attach and consume again, as before the websocket was lost."""
        if self._attached is not None:
            if not self._is_there:
                self._note_attached(bool(await self.until("attached", "attach", self._attached)))
            for each in self.consumptions:
                await each.replay()

    def happened(self, event: str, values: list[Any]) -> None:
        if event in ("message", "messages"):
            pairs = values if event == "messages" else [values]
            for each in self.consumptions:
                each.received(pairs)
        elif event == "closed":
            self._note_closed()
        elif event == "consuming":
            for each in tuple(self.consumptions):
                each.note_consuming(bool(values and values[0]))
        elif event == "error":
            error = error_of(values[0] if values else "")
            for each in self.consumptions:
                each.note_error(error)
            self.emit("error", error)

    def dropped(self) -> None:
        self._is_there = False
        self._attaching.clear()
        for each in self.consumptions:
            each.restart()

    async def begin_consuming(self, options: dict[str, Any]) -> None:
        """Begin at the other end."""
        await self.until("consuming", "consume", options)

    async def end_consuming(self, handled: int, *, reads: bool) -> None:
        """End at the other end; what was not handled goes back, except at Node's server, which does not confirm it.

        What it has sent until then must not come to a next consumption that ``reads`` from another place.
        """
        if not self._is_there:
            return
        self.send_handled(handled)
        with suppress(PenstockError):
            if self.has_more:
                await self.calls.request("stop")
            elif reads:
                await self.calls.until("consuming", "stop")
                await self.calls.request("exists")  # behind the read that is under way at Node's server
            else:
                self.send_call("stop")

    async def acknowledge(self, last: int) -> None:
        """Acknowledge all messages up to ``last``, and wait for the answer of a gateway of Penstock."""
        await self.wait_ready()
        if self.has_more:
            await self.call("ack", last)
        else:
            self.send_call("ack", last)

    def send_handled(self, many: int) -> None:
        """Let the other end send as many more messages."""
        if many and self.has_more and self._is_there:
            self.send_call("handled", many)

    async def wait_attached(self) -> None:
        """Wait for ``attach``, and for the site. Raise ``Gone`` after the queue was closed, else as ``wait_ready``."""
        async with self._bus.bounded(lambda: f"queue {self.name} is not attached"):
            while not self._is_there:
                if self._closed:
                    raise Gone(f"queue {self.name} was closed: attach to it anew")
                await self.wait_ready()
                await self._attaching.wait()

    def _note_attached(self, exists: bool) -> None:
        if not self._is_there:
            self._is_there = True
            self._attaching.set()
            self.emit("attached", exists)

    def _note_closed(self) -> None:
        if self._attached is not None or self._is_there:
            self._closed = True
            self._gone()
            for each in tuple(self.consumptions):
                each.ended(None)
            self._attaching.set()
            self._attaching.clear()
            self.emit("closed")

    def _forget(self) -> Callable[[], None]:
        options, self._attached = self._attached, None

        def restore() -> None:
            self._attached = options

        return restore

    def _gone(self) -> None:
        self._attached, self._is_there = None, False
        self._attaching.clear()
