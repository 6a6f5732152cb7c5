"""What queues and channels have in common as a peer uses them: messages that it gets, and confirms."""

import asyncio
from typing import Any, Final

from penstock.base.encoding import decoded
from penstock.base.errors import WrongCall
from penstock.bus import Message
from penstock.bus.federation.frames import Call
from services.gateway.served import Peer, Served
from services.gateway.window import Window

ATTACHING: Final[dict[str, type | tuple[type, ...]]] = {"ttl": (int, float), "maxsize": int, "discoverable": bool}
CONSUMING: Final[dict[str, type | tuple[type, ...]]] = {
    "max": int,
    "remove": bool,
    "reliable": bool,
    "exclusive": bool,
    "last": int,
    "index": int,
    "prefetch": int,
    "size": int,
}
ID_DIGITS: Final = 16
"""Maximum number of digits of an id in a text, as some clients of Node send it."""


class ServedConsumer(Served):
    """``extended`` peers confirm each message that they have handled; others have it once a pong says so."""

    def __init__(self, peer: Peer, channel: bytes, name: str, names: list[str], *, extended: bool) -> None:
        super().__init__(peer, channel, name, names)
        limits = peer.gateway.settings
        self._extended = extended
        self._window = Window(limits.window, limits.window_bytes)
        self._listened = asyncio.Event()
        self.methods |= {"on": self.on, "once": self.on, "handled": self._handled}

    def on(self, call: Call, *, once: bool = False) -> None:
        super().on(call, once=once)
        self._listened.set()

    def _handled(self, call: Call) -> None:
        """Confirm as many messages as the peer says."""
        many = call.values[0] if call.values else None
        if type(many) is not int or many < 0:
            raise WrongCall("handled: expected how many messages")
        self._window.confirm(many)

    def _emit_message(self, message: Message) -> None:
        """Send one message to the listeners of ``message``."""
        body = message.body
        text = decoded(body) if self._extended else body.decode(errors="replace")
        self.emit("message", [text, message.id])


def id_of(call: Call) -> int:
    """Return the id that ``ack`` has. Raise ``WrongCall`` if it is none."""
    id_: Any = call.values[0] if call.values else None
    if isinstance(id_, str) and id_.isascii() and id_.isdigit() and len(id_) <= ID_DIGITS:
        id_ = int(id_)
    if type(id_) is not int:
        raise WrongCall("ack: expected the id of a message")
    return id_
