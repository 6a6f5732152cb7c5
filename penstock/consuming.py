"""Consume from a source of your own: the public path of ``penstock.core.consumer`` and ``penstock.core.source``."""

from penstock.core.consumer import Consumer, Consumers
from penstock.core.source import AT_ONCE, SETTLE_SECONDS, Source

__all__ = ["AT_ONCE", "SETTLE_SECONDS", "Consumer", "Consumers", "Source"]
