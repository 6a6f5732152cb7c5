"""The engine of a transfer: keeps several batches in transit from a source to a target, and settles those there."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.base.errors import Refused
from penstock.core.once import SCRIPT_BYTES, Dead, Encode, Source, Target, as_they_are, digest_of
from penstock.core.raw_connection import Packed

BACKLOG: Final = 100
"""Messages of one batch from which on more are expected to wait."""
SETTLE_DELAY: Final = 0.005
"""Seconds before arrived batches are settled while others are in transit."""
SETTLE_BYTES: Final = 4_194_304
"""Bytes after which no more batches are settled at a time."""


@dataclass
class Shipment:
    """Messages that are sent together."""

    first: int
    last: int
    bytes: int
    dead: list[Dead]
    sent: float = field(default_factory=time.monotonic)


class Transfer:
    """Sends from ``source`` to ``target``, with up to ``max_batches`` in transit, of ``max_bytes()`` together."""

    def __init__(
        self,
        source: Source,
        target: Target,
        *,
        max_batches: int,
        max_bytes: Callable[[], int],
        encode: Encode = as_they_are,
        on_arrival: Callable[[Shipment], object] = lambda batch: None,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> None:
        """Call ``on_arrival`` with each batch that has arrived; send no more once ``keep_going()`` is false."""
        self._source, self._target, self._encode, self._on_arrival = source, target, encode, on_arrival
        self._max_batches, self._max_bytes, self._keep_going = max_batches, max_bytes, keep_going
        self._in_transit: asyncio.Queue[Shipment | None] = asyncio.Queue()
        self._bytes = 0
        self._room, self._arrival = asyncio.Event(), asyncio.Event()
        self._arrived: deque[Shipment] = deque()
        """Batches that have arrived and are not settled yet."""
        self._all_arrived = False

    async def run(self, settled: int) -> None:
        """Send what follows number ``settled`` until ``source`` has no more; return when all has arrived."""
        self._room.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(settled + 1, tasks))
            tasks.create_task(self._confirm())
            tasks.create_task(self._settle())

    async def _send(self, first: int, tasks: asyncio.TaskGroup) -> None:
        """Send messages; with a backlog, read the next ones while those in hand are packed and sent."""
        ahead = None
        while self._keep_going():
            await self._room.wait()
            messages = await (ahead or self._source.take(first)) or await self._source.wait(first)
            ahead = None
            if messages is None:
                break
            if not messages:
                continue
            if len(messages) >= BACKLOG or sum(map(len, messages)) > SCRIPT_BYTES:
                ahead = tasks.create_task(self._source.take(first + len(messages)))
                await asyncio.sleep(0)
            packed = Packed.of(messages)
            digest, outgoing = digest_of(packed), self._encode(first, messages, len(packed.data))
            if outgoing.messages is not messages:
                packed = Packed.of(outgoing.messages)
            batch = Shipment(first, first + len(messages) - 1, len(packed.data), outgoing.dead)
            await self._target.send(
                first, batch.last, digest, packed
            )  # connects anew if the server closed an idle link
            self._in_transit.put_nowait(batch)
            self._bytes += batch.bytes
            self._update_room()
            first = batch.last + 1
        if ahead:
            await ahead
        self._in_transit.put_nowait(None)

    async def _confirm(self) -> None:
        while batch := await self._in_transit.get():
            last = await self._target.arrived()
            if last != batch.last:
                raise Refused(f"the other server has {last} messages where {batch.last} were expected")
            self._bytes -= batch.bytes
            self._update_room()
            self._arrived.append(batch)
            self._arrival.set()
            self._on_arrival(batch)
        self._all_arrived = True
        self._arrival.set()

    async def _settle(self) -> None:
        """Settle in portions, since a server needs a while to free large messages and to bury the dead ones."""
        while not (self._all_arrived and not self._arrived):
            await self._arrival.wait()
            if not self._in_transit.empty():
                await asyncio.sleep(SETTLE_DELAY)
            self._arrival.clear()
            arrived, self._arrived = self._arrived, deque()
            while arrived:
                batch = arrived.popleft()
                size, dead = batch.bytes, batch.dead
                while arrived and size < SETTLE_BYTES and not dead:
                    batch = arrived.popleft()
                    size, dead = size + batch.bytes, batch.dead
                await self._source.settle(batch.last, dead)

    def _update_room(self) -> None:
        """Let more be sent only while fewer batches and bytes than allowed are in transit."""
        if self._in_transit.qsize() < self._max_batches and self._bytes < self._max_bytes():
            self._room.set()
        else:
            self._room.clear()
