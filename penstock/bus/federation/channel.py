"""One end of a channel, at another site."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError, WrongCall
from penstock.base.payload import Payload, as_payload
from penstock.bus.channel import Channel, Handover, check_role, opening
from penstock.bus.events import Handler
from penstock.bus.federation.queue import CREDIT
from penstock.bus.federation.remote import Remote
from penstock.bus.federation.site import Site
from penstock.bus.host import Host
from penstock.bus.keys import check_id
from penstock.bus.message import Message
from penstock.bus.mode import to_busmq


class FederatedChannel(Remote):
    """One end of a channel of another site: see ``Channel``, and ``FederatedQueue`` for further events."""

    EVENTS: ClassVar = Channel.EVENTS | Remote.FEDERATION
    ALIASES: ClassVar = Channel.ALIASES
    TYPE = "channel"
    HEARD = ("error", "connect", "remote:connect", "message", "disconnect", "remote:disconnect", "end")

    def __init__(self, bus: Host, site: Site, name: str, local: str, remote: str) -> None:
        self.name, self.local, self.remote = name, local, remote
        self._opened: tuple[str, dict[str, Any]] | None = None
        self._is_there = self._remote_is_connected = False
        self._taken: deque[Message] = deque()
        self._news = asyncio.Event()
        self._handover = Handover(self, name, self._note_taken)
        self._delivering: asyncio.Task[None] | None = None
        self._unreported = 0
        super().__init__(bus, site, [name, local, remote])

    @property
    def is_attached(self) -> bool:
        """Return whether this end is connected; nobody knows it of a peer that has died."""
        return self._is_there

    @property
    def is_remote_connected(self) -> bool:
        """Return whether the other end said that it connected, and not that it left."""
        return self._remote_is_connected

    def on(self, event: str, handler: Handler) -> Handler:
        """As ``Channel.on``: messages wait for the first handler."""
        self._handover.wake()
        return super().on(event, handler)

    def once(self, event: str, handler: Handler) -> Handler:
        """As ``Channel.once``."""
        self._handover.wake()
        return super().once(event, handler)

    async def connect(self, **options: Any) -> None:
        """As ``Channel.connect``."""
        await self._open("connect", options)

    attach = connect

    async def listen(self, **options: Any) -> None:
        """As ``Channel.listen``."""
        await self._open("listen", options)

    async def send(self, message: Payload | Any, *, json: bool = False) -> int:
        """As ``Channel.send``. Raise ``Unconfirmed`` if the websocket was lost before the answer."""
        if self._opened is None:
            raise WrongCall(f"channel {self.name}: expected `connect` or `listen` before this call")
        return int(await self.call("send", decoded(as_payload(message, json=json))))

    async def send_to(self, endpoint: str, message: Payload | Any, *, json: bool = False) -> int:
        """As ``Channel.send_to``; raise as ``send`` does."""
        check_role(endpoint)
        return int(await self.call("sendTo", endpoint, decoded(as_payload(message, json=json))))

    def messages(self) -> AsyncIterator[Message]:
        """As ``Channel.messages``."""
        if (opened := self._opened) is None:
            raise WrongCall(f"channel {self.name}: expected `connect` or `listen` before this call")
        return self._handover.messages(lambda: self._opened is opened)

    def ack(self, id: int) -> "asyncio.Future[None]":  # the word for it
        """As ``Channel.ack``. Node's server does not confirm it."""
        if self._opened is None:
            raise WrongCall(f"channel {self.name}: expected `connect` or `listen` before `ack`")
        check_id(id)
        return self._bus.spawn(self._ack(id))

    async def disconnect(self) -> None:
        """As ``Channel.disconnect``."""
        await self._close("disconnect")

    detach = disconnect

    async def end(self) -> None:
        """As ``Channel.end``. Raise ``Unconfirmed`` if the websocket was lost before the answer; this end has left."""
        await self._close("end")

    async def leave(self) -> None:
        """Let go of the channel: the other site's end disconnects."""
        self._gone()
        await super().leave()

    async def replay(self) -> None:
        """Connect again, as before the websocket was lost."""
        if self._opened is not None and not self._is_there:
            await self.until("connect", *self._opened)
            self._is_there = True

    def happened(self, event: str, values: list[Any]) -> None:
        if event == "message":
            self._taken.append(Message(encoded(str(values[0])), int(values[1]), self))
            self._news.set()
        elif event in ("remote:connect", "remote:disconnect"):
            self._remote_is_connected = event == "remote:connect"
            self.emit(event)
        elif event == "end":
            if self._opened is not None:
                self._gone()
                self.emit("disconnect")
                self.emit("end")
        elif event == "error":
            super().happened(event, values)

    def dropped(self) -> None:
        self._is_there = False
        self._taken.clear()
        self._handover.withdraw()
        self._unreported = 0

    async def _open(self, method: str, options: dict[str, Any]) -> None:
        if self._opened is not None:
            raise WrongCall(f"channel {self.name}: connected already")
        attaching, consuming = opening(options)
        await self.wait_ready()
        self._opened = (method, attaching | to_busmq(consuming))
        try:
            await self.cause("connect", *self._opened)
        except PenstockError:
            if not self._is_there:  # else connected when the websocket was opened again
                self._opened = None
                raise
        self._is_there = True
        self._delivering = self._bus.spawn(self._deliver())
        self.emit("connect")

    async def _close(self, method: str) -> None:
        if self._opened is None:
            return
        self._report()  # what was taken does not go back
        try:
            await self.end_with("disconnect", method, self._forget)
        finally:
            if self._opened is None:
                self._gone()
                self.emit("disconnect")

    def _forget(self) -> Callable[[], None]:
        opened, self._opened = self._opened, None

        def restore() -> None:
            self._opened = opened

        return restore

    def _gone(self) -> None:
        self._opened, self._is_there, self._remote_is_connected = None, False, False
        self._taken.clear()
        if self._delivering and self._delivering is not asyncio.current_task():
            self._delivering.cancel()
        self._delivering = None
        self._handover.withdraw()

    async def _ack(self, id_: int) -> None:
        await self.wait_ready()
        if self.has_more:
            await self.call("ack", id_)
        else:
            self.send_call("ack", id_)

    async def _deliver(self) -> None:
        """Hand out messages one by one, and let the other end send as many more."""
        while True:
            while not self._taken:
                self._report()
                self._news.clear()
                await self._news.wait()
            if not self._handover.is_awaited:
                self._report()
            await self._handover.give(self._taken.popleft())

    def _note_taken(self) -> None:
        self._unreported += 1
        if self._unreported >= CREDIT:
            self._report()

    def _report(self) -> None:
        many, self._unreported = self._unreported, 0
        if many and self.has_more and self._is_there:
            self.send_call("handled", many)
