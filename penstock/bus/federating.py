"""The part of a bus that uses objects of other sites."""

from typing import TYPE_CHECKING, Any, Unpack, overload

from penstock.bus.channel import Channel
from penstock.bus.events import Emitter
from penstock.bus.keys import NOTIFICATIONS
from penstock.bus.persistable import Persistable
from penstock.bus.pubsub import PubSub
from penstock.bus.queue import Queue
from penstock.bus.service import Service

if TYPE_CHECKING:
    from penstock.bus.federation import (
        FederatedChannel,
        FederatedPersistable,
        FederatedPubSub,
        FederatedQueue,
        FederatedService,
        Sites,
    )
    from penstock.bus.federation.site import SiteOptions


class Federating(Emitter):
    """What ``Bus`` inherits."""

    def __init__(self) -> None:
        super().__init__()
        self._sites: Sites | None = None

    def check_connected(self) -> None:
        """Raise ``WrongCall`` outside ``connect`` and ``disconnect``."""
        raise NotImplementedError

    @overload
    def federate(self, local: Queue, url: str, **options: Unpack["SiteOptions"]) -> "FederatedQueue": ...
    @overload
    def federate(self, local: Channel, url: str, **options: Unpack["SiteOptions"]) -> "FederatedChannel": ...
    @overload
    def federate(self, local: PubSub, url: str, **options: Unpack["SiteOptions"]) -> "FederatedPubSub": ...
    @overload
    def federate(self, local: Persistable, url: str, **options: Unpack["SiteOptions"]) -> "FederatedPersistable": ...
    @overload
    def federate(self, local: Service, url: str, **options: Unpack["SiteOptions"]) -> "FederatedService": ...

    def federate(self, local: Any, url: str, **options: Unpack["SiteOptions"]) -> Any:
        """Return ``local`` as it is at another site: an object with the same methods, whose calls go to ``url``.

        ``url`` is that of a gateway, such as ``wss://a.example/bus``, and ``secret`` its secret. Node's busmq as the
        server, which takes the secret from the query alone, needs ``secret_in_query``. The first call for a URL opens
        ``sockets`` websockets (1), with the context ``tls`` if it is given, which all its objects share; they are
        opened again whenever they end. Raise ``WrongCall`` if a later call asks for others.

        If the bus has servers of its own, queues that the other site announces are noted there, and found with
        ``Queue.find``.
        """
        self.check_connected()
        if self._sites is None:
            from penstock.bus.federation import Sites

            self._sites = Sites(self, NOTIFICATIONS)  # type: ignore[arg-type]  # a Bus
        return self._sites.federate(local, url, options)

    async def _close_sites(self) -> None:
        if self._sites is not None:
            sites, self._sites = self._sites, None
            await sites.close()
