"""A topic, as a peer uses it: at most once, so that what a slow peer has no room for is dropped."""

from typing import Any, Final

from penstock.base.encoding import decoded
from penstock.base.errors import WrongCall
from penstock.bus import PubSub
from penstock.bus.federation.frames import Call
from penstock.core.objects import wires_of
from services.gateway.pushes import as_body
from services.gateway.served import Peer, Served

EVENTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("subscribed", "unsubscribed"), list),
}


class ServedTopic(Served):
    """One topic of publish and subscribe."""

    TYPE = "pubsub"
    ROWS = wires_of(PubSub)

    def __init__(self, peer: Peer, channel: bytes, args: list[Any], names: list[str], extended: bool) -> None:
        super().__init__(peer, channel, args[0], names)
        self._extended = extended
        self._topic = topic = peer.gateway.bus.pubsub(args[0])
        self.methods |= {
            "on": self.on,
            "once": self.on,
            "subscribe": lambda _: topic.subscribe(),
            "attach": lambda _: topic.subscribe(),
            "unsubscribe": lambda _: topic.unsubscribe(),
            "detach": lambda _: topic.unsubscribe(),
            "isSubscribed": lambda call: self.answer(call, topic.is_subscribed),
            "publish": self._publish,
        }
        self.relay(topic, EVENTS)
        topic.on("message", self._deliver)

    async def leave(self) -> None:
        """Listen no more."""
        await self._topic.unsubscribe()

    async def _publish(self, call: Call) -> int:
        if not call.values:
            raise WrongCall("publish: expected a message")
        self.peer.count("published")
        return await self._topic.publish(as_body(call.values[0]))

    def _deliver(self, payload: bytes) -> None:
        if not self.peer.has_room:
            self.peer.count("dropped")
            return
        self.emit("message", [decoded(payload) if self._extended else payload.decode(errors="replace")])
