"""One end of a channel, as a peer uses it."""

import asyncio
from typing import Any, Final

from penstock.base.errors import WrongCall
from penstock.bus import Channel, Message
from penstock.bus.federation.frames import Call
from penstock.bus.mode import from_busmq
from penstock.core.objects import wires_of
from services.gateway.pushes import as_body
from services.gateway.served import Peer, options_of, text_at
from services.gateway.served_consumer import ATTACHING, CONSUMING, ServedConsumer, id_of

EVENTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("connect", "remote:connect", "disconnect", "remote:disconnect", "end"), list),
}


class ServedChannel(ServedConsumer):
    """One end of a channel; messages are confirmed as those of a queue."""

    TYPE = "channel"
    ROWS = wires_of(Channel)
    immediate = frozenset({"on", "once", "handled"})

    def __init__(self, peer: Peer, channel: bytes, args: list[Any], names: list[str], extended: bool) -> None:
        super().__init__(peer, channel, args[0], names, extended=extended)
        self._end = peer.gateway.bus.channel(args[0], _role(args, 1, "local"), _role(args, 2, "remote"))
        self._reliable = False
        self._left, self._leaves = asyncio.Event(), False
        end = self._end
        self.methods |= {
            "connect": lambda call: self._open(call, end.connect),
            "attach": lambda call: self._open(call, end.connect),
            "listen": lambda call: self._open(call, end.listen),
            "send": self._send,
            "sendTo": self._send_to,
            "disconnect": lambda _: self._leave(end.disconnect),
            "detach": lambda _: self._leave(end.disconnect),
            "end": lambda _: self._leave(end.end),
            "isAttached": lambda call: self.answer(call, end.is_attached),
            "ack": self._ack,
        }
        self.relay(end, EVENTS)

    def on(self, call: Call, *, once: bool = False) -> None:
        super().on(call, once=once)
        if self.listens("message") and not self._end.has_handlers("message"):
            self._end.on("message", self._deliver)

    async def leave(self) -> None:
        """Disconnect. What the peer has not confirmed goes back."""
        await self._leave(self._end.disconnect)

    async def _open(self, call: Call, opens: Any) -> None:
        options = from_busmq(options_of(call, 0, ATTACHING | CONSUMING))
        limits = self.peer.gateway.settings
        options |= {"prefetch": limits.window, "prefetch_bytes": limits.window_bytes}
        self._reliable = bool(options.get("reliable"))
        self._left, self._leaves = asyncio.Event(), False
        await opens(**options)

    async def _leave(self, leaves: Any) -> None:
        self._leaves = True
        if not self._reliable:
            for message in reversed(self._window.unconfirmed):
                self._end.take_back(message)
        self._window.confirm(len(self._window.unconfirmed))
        try:
            await leaves()
        finally:
            self._left.set()
            self._listened.set()

    async def _send(self, call: Call) -> int:
        if not call.values:
            raise WrongCall("send: expected a message")
        self.peer.count("pushed")
        return await self._end.send(as_body(call.values[0]))

    async def _send_to(self, call: Call) -> int:
        endpoint = text_at(call, 0, "the role of the other end")
        if len(call.values) < 2:
            raise WrongCall("sendTo: expected a role and a message")
        self.peer.count("pushed")
        return await self._end.send_to(endpoint, as_body(call.values[1]))

    async def _ack(self, call: Call) -> None:
        await self._end.ack(id_of(call))

    async def _deliver(self, message: Message) -> None:
        """Send a message once there is room for it."""
        left = self._left
        if self._leaves:  # the peer would not expect it any more
            self._end.take_back(message)
            await left.wait()
            return
        self._window.add(message)
        while not self.listens("message") and not left.is_set():
            self._listened.clear()
            await self._listened.wait()
        self.peer.count("delivered")
        self._emit_message(message)
        if not self._extended:
            self.peer.confirm_by_ping(self._window)
        if self._window.is_full:
            room = asyncio.ensure_future(self._window.room())
            gone = asyncio.ensure_future(left.wait())
            await asyncio.wait({room, gone}, return_when=asyncio.FIRST_COMPLETED)
            room.cancel()
            gone.cancel()
        if left.is_set() or self.is_closed:
            await left.wait()


def _role(args: list[Any], place: int, default: str) -> str:
    value = args[place] if len(args) > place and args[place] else default
    if not isinstance(value, str):
        raise WrongCall("args: expected the names of roles")
    return value
