"""What is acknowledged at another site: several ids go as one, since an ack is of all ids up to one."""

import asyncio
from typing import TYPE_CHECKING

from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    from penstock.bus.federation.queue import FederatedQueue


class Acks:
    """The acknowledgements of one queue."""

    def __init__(self, queue: "FederatedQueue") -> None:
        self._queue = queue
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._sender: asyncio.Task[None] | None = None

    def add(self, id_: int, future: "asyncio.Future[None]") -> None:
        """Acknowledge all messages up to ``id_``; ``future`` is done once the other end has it."""
        self._waiting.append((id_, future))
        if self._sender is None:
            self._sender = self._queue.bus.spawn(self._send())

    async def settle(self) -> None:
        """Wait until all is acknowledged, or has failed."""
        if self._sender:
            await asyncio.gather(self._sender, return_exceptions=True)

    async def _send(self) -> None:
        while self._waiting:
            acks, self._waiting = self._waiting, []
            error: PenstockError | None = None
            try:
                await self._queue.acknowledge(max(id_ for id_, _ in acks))
            except PenstockError as found:
                error = found
            for _, future in acks:
                if future.done():
                    continue
                if error:
                    future.set_exception(error)
                else:
                    future.set_result(None)
            for each in self._queue.consumptions:
                each.note_acknowledged()
        self._sender = None
