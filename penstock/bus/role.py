"""One end of a service: it attaches to its queues, and again whenever they are closed."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Final, Protocol

from penstock.base.log import Log
from penstock.bus.answers import Answers
from penstock.bus.host import Host
from penstock.bus.queue import Queue
from penstock.core.wire import Subscriber

_log: Final = Log("penstock.bus")


class Playing(Protocol):
    """A service, as its role sees it."""

    name: str
    bus: Host
    role: "Role | None"

    def queue(self, name: str) -> Queue:
        """Return the queue of requests, or of replies, that has this name."""

    def subscriber(self, replies: Queue) -> Subscriber | None:
        """Return what hears replies that are published; None if only the queue has them."""

    def answers(self) -> Answers:
        """Return what sends answers."""

    async def fail(self, error: Exception) -> None:
        """End the role, and emit ``error``."""

    def emit(self, event: str, *values: Any) -> None:
        """Call the listeners of ``event``."""

    def deliver(self, event: str, *values: Any) -> Any:
        """Call the listeners of ``event``, and return what they return."""


class Role(ABC):
    """What a service is once it serves or is connected."""

    def __init__(self, service: Playing, ttl: int) -> None:
        self.requests = service.queue(f"service:{service.name}")
        self._service, self._bus, self._ttl = service, service.bus, ttl
        self._attaching = asyncio.Lock()

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Return whether requests are in hand."""

    @abstractmethod
    async def begin(self) -> None:
        """Attach, and take what comes from now on."""

    @abstractmethod
    async def end(self) -> None:
        """Give up what is in hand, and detach."""

    async def _attach_again(self, queue: Queue) -> bool:
        """Attach to ``queue``, which was closed; return False if this leaves."""
        async with self._attaching:
            if not self._goes_on:
                return False
            if not queue.is_attached:
                _log.warning("attaches again: its queue was closed", service=self._service.name, queue=queue.name)
                await queue.attach(ttl=self._ttl)
            if not self._goes_on:
                await queue.detach()
                return False
            self._bus.ended(self._service)
            self._bus.ends_with(self._service)  # behind the queue: the last is the first to leave
            return True

    @property
    def _goes_on(self) -> bool:
        return self._service.role is self and not self._bus.leaves
