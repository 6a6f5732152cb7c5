"""Publish and subscribe: a message reaches those who listen at that moment."""

from typing import Any, ClassVar, Literal, overload

from penstock.base.errors import Unavailable
from penstock.base.payload import Payload, as_payload
from penstock.bus.events import Emitter
from penstock.bus.host import Host
from penstock.bus.keys import topic_channel
from penstock.core.objects import method


class PubSub(Emitter):
    """One topic of a bus, by name, on its first server.

    Events: ``subscribed``, ``unsubscribed``, ``message`` (its bytes), ``error``.
    """

    EVENTS: ClassVar = frozenset({"subscribed", "unsubscribed", "message", "error"})

    def __init__(self, bus: Host, name: str) -> None:
        super().__init__()
        self.name, self._bus = name, bus
        self._channel = topic_channel(name)
        self._is_wanted = False

    @property
    @method("isSubscribed", plain=False)
    def is_subscribed(self) -> bool:
        """Return whether what is published now comes here: not while the server is away."""
        return self._is_wanted and self._bus.first.subscriber.hears(self._channel)

    @method("subscribe", also=("attach",), plain=False)
    async def subscribe(self) -> None:
        """Call the handlers of ``message`` from now on; messages sent while the server is away are missed."""
        self._bus.check_connected()
        if self._is_wanted:
            return
        self._is_wanted = True
        self._bus.ends_with(self)
        try:
            async with self._bus.bounded(lambda: f"{self._bus.first.address} confirms no subscription"):
                await self._bus.first.subscriber.add(self._channel, self._received)
        except Unavailable:
            await self.unsubscribe()
            raise
        self.emit("subscribed")

    @method("unsubscribe", also=("detach",), plain=False)
    async def unsubscribe(self) -> None:
        """Call no handlers any more."""
        if self._is_wanted:
            self._is_wanted = False
            self._bus.ended(self)
            self._bus.first.subscriber.remove(self._channel, self._received)
            self.emit("unsubscribed")

    async def leave(self) -> None:
        """Unsubscribe, as the bus is being disconnected."""
        await self.unsubscribe()

    @overload
    async def publish(self, message: Payload, *, json: Literal[False] = False) -> int: ...
    @overload
    async def publish(self, message: Any, *, json: bool) -> int: ...

    @method("publish", again=False, plain=False)
    async def publish(self, message: Any, *, json: bool = False) -> int:
        """Send a message, bytes, text, or with ``json`` any value; return how many clients got it.

        At most once: raise ``Unconfirmed`` if the connection was lost before the reply, then it was sent or not; and
        ``Unavailable`` if the server stayed away.
        """
        self._bus.check_connected()
        payload = as_payload(message, json=json)
        return int(await self._bus.first.command_once("PUBLISH", self._channel, payload))

    def _received(self, payload: bytes | None) -> None:
        if payload is not None:
            self.emit("message", payload)
