"""Lists, the bus, jobs and queues over HTTP without async: the same names, blocking, for scripts and web frameworks.

An event loop in a thread of its own does the work; a call waits for its result. So leases are renewed, and connections
watched, while the program computes.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.lists.message import Message
from penstock.lists.work import Request
from penstock.sync.bus import Bus, Channel, Consumption, Persistable, PubSub, Queue, Service
from penstock.sync.lists import List, Lists, Work
from penstock.sync.portal import Portal

if TYPE_CHECKING:
    from penstock.sync.hqueue import Queues as Queues
    from penstock.sync.jobs import Consumer, Jobs

__all__ = [
    "Bus",
    "Channel",
    "Consumer",
    "Consumption",
    "Jobs",
    "List",
    "Lists",
    "Message",
    "Persistable",
    "Portal",
    "PubSub",
    "Queue",
    "Request",
    "Service",
    "Work",
]

if not TYPE_CHECKING:
    _LATER = {"Queues": "hqueue", "Jobs": "jobs", "Consumer": "jobs"}

    def __getattr__(name):
        """Import some names when they are first used: ``Queues`` needs httpx, the extra ``hqueue``."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"penstock.sync.{_LATER[name]}"), name)
