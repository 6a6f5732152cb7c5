"""Objects of another site's bus, over busmq's federation protocol on websockets."""

from typing import Any

from penstock.base.errors import WrongCall
from penstock.bus.channel import Channel
from penstock.bus.federation.channel import FederatedChannel
from penstock.bus.federation.discovery import Discovery
from penstock.bus.federation.persistable import FederatedPersistable
from penstock.bus.federation.pubsub import FederatedPubSub
from penstock.bus.federation.queue import FederatedConsumption, FederatedQueue
from penstock.bus.federation.service import FederatedService
from penstock.bus.federation.site import Site, SiteOptions, check_options
from penstock.bus.host import Host
from penstock.bus.persistable import Persistable
from penstock.bus.pubsub import PubSub
from penstock.bus.queue import Queue
from penstock.bus.service import Service

__all__ = [
    "FederatedChannel",
    "FederatedConsumption",
    "FederatedPersistable",
    "FederatedPubSub",
    "FederatedQueue",
    "FederatedService",
    "Sites",
]


class Sites:
    """The other sites of a bus: opened at the first use, closed with the bus."""

    def __init__(self, bus: Host, notifications: str) -> None:
        self._bus, self._notifications = bus, notifications
        self._sites: dict[tuple[str, str], Site] = {}

    def federate(self, local: Any, url: str, options: SiteOptions) -> Any:
        """Return ``local`` as it is at the site ``url``."""
        check_options(options)
        site = self._sites.get((url, options["secret"]))
        if site is None:
            site = self._sites[url, options["secret"]] = Site(url, options)
            site.start()
            if self._bus.instances:
                self._bus.spawn(Discovery(self._bus, site, self._notifications).run())
        else:
            site.check_same(options)
        if isinstance(local, Queue):
            return FederatedQueue(self._bus, site, local.name)
        if isinstance(local, Channel):
            return FederatedChannel(self._bus, site, local.name, local.local, local.remote)
        if isinstance(local, PubSub):
            return FederatedPubSub(self._bus, site, local.name)
        if isinstance(local, Persistable):
            return FederatedPersistable(self._bus, site, local)
        if isinstance(local, Service):
            return FederatedService(self._bus, site, local.name)
        raise WrongCall(
            f"expected a queue, a channel, a topic, a persistable or a service, found {type(local).__name__}"
        )

    async def close(self) -> None:
        """Close all websockets."""
        for site in self._sites.values():
            await site.close()
        self._sites.clear()
