"""Publish and subscribe without a broker; messages are on disk before the call returns: see docs/outbox.md."""

from penstock.core.backoff import Backoff
from penstock.outbox.errors import Damaged, DiskFull, Locked
from penstock.outbox.handlers import Handler
from penstock.outbox.message import Message
from penstock.outbox.outbox import Outbox, Status
from penstock.outbox.security import Allowed, Security
from penstock.outbox.spool import Spool, Spools
from penstock.outbox.subscriptions import Subscriptions

__all__ = [
    "Allowed",
    "Backoff",
    "Damaged",
    "DiskFull",
    "Handler",
    "Locked",
    "Message",
    "Outbox",
    "Security",
    "Spool",
    "Spools",
    "Status",
    "Subscriptions",
]
