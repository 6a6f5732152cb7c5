"""One end of a service: it attaches to its queues, and again whenever they are closed."""

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from penstock.base.log import Log
from penstock.bus.queue import Queue

if TYPE_CHECKING:
    from penstock.bus.service import Service

_log: Final = Log("penstock.bus")


class Role(ABC):
    """What a service is once it serves or is connected."""

    def __init__(self, service: "Service", ttl: int) -> None:
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
