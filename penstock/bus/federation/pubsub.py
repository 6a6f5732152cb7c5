"""A topic of another site."""

from typing import Any, ClassVar

from penstock.base.encoding import decoded, encoded
from penstock.base.payload import Payload, as_payload
from penstock.bus.federation.remote import Remote
from penstock.bus.federation.site import Site
from penstock.bus.host import Host
from penstock.bus.pubsub import PubSub
from penstock.core.objects import wires_of


class FederatedPubSub(Remote):
    """One topic of another site: see ``PubSub``, and ``FederatedQueue`` for further events."""

    EVENTS: ClassVar = PubSub.EVENTS | Remote.FEDERATION
    TYPE = "pubsub"
    ROWS = wires_of(PubSub)
    HEARD = ("error", "subscribed", "message")

    def __init__(self, bus: Host, site: Site, name: str) -> None:
        self.name = name
        self._is_wanted = self.is_subscribed = False
        super().__init__(bus, site, [name])

    async def subscribe(self) -> None:
        """As ``PubSub.subscribe``; messages sent while the other site is away are missed."""
        if self._is_wanted:
            return
        await self.wait_ready()
        self._is_wanted = True
        try:
            await self.cause("subscribed", "subscribe")
        except BaseException:
            self._is_wanted = False
            raise
        self.is_subscribed = True
        self.emit("subscribed")

    async def unsubscribe(self) -> None:
        """As ``PubSub.unsubscribe``."""
        if self._is_wanted:
            self._is_wanted = self.is_subscribed = False
            if self.is_ready:
                self.send_call("unsubscribe")
            self.emit("unsubscribed")

    async def publish(self, message: Payload | Any, *, json: bool = False) -> int | None:
        """As ``PubSub.publish``; Node's server does not say how many clients got it."""
        found = await self.call("publish", decoded(as_payload(message, json=json)))
        return found if isinstance(found, int) else None

    async def replay(self) -> None:
        """Subscribe again."""
        if self._is_wanted and not self.is_subscribed:
            await self.until("subscribed", "subscribe")
            self.is_subscribed = True

    def dropped(self) -> None:
        self.is_subscribed = False

    def happened(self, event: str, values: list[Any]) -> None:
        if event == "message":
            if self._is_wanted:
                self.emit("message", encoded(str(values[0])))
        elif event == "error":
            super().happened(event, values)
