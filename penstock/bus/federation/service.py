"""A service of another site, over its queues: busmq's federation has no services of its own."""

from penstock.bus.federation.queue import FederatedQueue
from penstock.bus.federation.site import Site
from penstock.bus.host import Host
from penstock.bus.queue import Queue
from penstock.bus.requests import Answers
from penstock.bus.service import Service
from penstock.core.wire import Subscriber


class FederatedService(Service):
    """A service of another site: see ``Service``. Its peer needs the queues ``service:<name>`` and those behind it."""

    def __init__(self, bus: Host, site: Site, name: str) -> None:
        super().__init__(bus, name)
        self._site = site
        self._queues = set[FederatedQueue]()

    def queue(self, name: str) -> Queue:
        found = self.queue_far_away(name)
        self._queues.add(found)
        return found  # type: ignore[return-value]  # it has all methods that a service calls

    def queue_far_away(self, name: str) -> FederatedQueue:
        """Return the queue ``name`` for one use: ``leave`` it after that."""
        return FederatedQueue(self.bus, self._site, name)

    def subscriber(self, replies: Queue) -> Subscriber | None:
        return None

    def answers(self) -> Answers:
        return FederatedAnswers(self)

    async def disconnect(self, grace: float = 0.0) -> None:
        """As ``Service.disconnect``."""
        await super().disconnect(grace)
        while self._queues:
            await self._queues.pop().leave()


class FederatedAnswers(Answers):
    """Those of a provider that is far from its service: each is pushed to a queue that exists."""

    def __init__(self, service: FederatedService) -> None:
        super().__init__(service.bus)
        self._service = service

    async def push(self, name: str, body: bytes, *, part: bool) -> bool:
        """As ``Answers.push``. The queue is attached only meanwhile, so that its requester alone keeps it alive."""
        queue = self._service.queue_far_away(name)
        try:
            if not await queue.exists():
                return False
            await queue.attach()
            await queue.push(body)
        finally:
            await queue.leave()
        return True
