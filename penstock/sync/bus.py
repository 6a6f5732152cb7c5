"""``penstock.bus``, blocking. The types that editors and type checkers see are in bus.pyi."""

from penstock.sync.blocking_bus import Bus
from penstock.sync.objects import (
    Channel,
    Consumption,
    FederatedChannel,
    FederatedConsumption,
    FederatedPersistable,
    FederatedPubSub,
    FederatedQueue,
    FederatedService,
    Message,
    Persistable,
    PubSub,
    Queue,
    Request,
    Service,
)

__all__ = [
    "Bus",
    "Channel",
    "Consumption",
    "FederatedChannel",
    "FederatedConsumption",
    "FederatedPersistable",
    "FederatedPubSub",
    "FederatedQueue",
    "FederatedService",
    "Message",
    "Persistable",
    "PubSub",
    "Queue",
    "Request",
    "Service",
]
