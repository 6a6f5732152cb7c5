"""Queues, channels, objects, publish and subscribe, and services on the keys of busmq 3.1.0, with or without Node."""

from penstock.bus.bus import Bus
from penstock.bus.channel import Channel
from penstock.bus.consumption import Consumption
from penstock.bus.message import Message
from penstock.bus.persistable import Persistable
from penstock.bus.placement import Placement
from penstock.bus.pubsub import PubSub
from penstock.bus.queue import Queue
from penstock.bus.requests import Request
from penstock.bus.service import Service

__all__ = [
    "Bus",
    "Channel",
    "Consumption",
    "Message",
    "Persistable",
    "Placement",
    "PubSub",
    "Queue",
    "Request",
    "Service",
]
