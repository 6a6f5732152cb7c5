"""The engine of a transport: keeps several batches on the way from a source to a target, and settles what arrived."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import Refused
from penstock.raw_connection import Packed
from penstock.transfer.protocol import HEAVY, Dead, Prepare, Source, Target, digest_of, unchanged

BACKLOG: Final = 100
"""So many messages at once mean that more wait."""
GATHER: Final = 0.005
"""Seconds before what has arrived is settled while more is on its way."""
PORTION: Final = 4_194_304
"""Bytes after which no more batches are settled at a time."""


@dataclass
class Batch:
    """Some messages on their way."""

    first: int
    last: int
    bytes: int
    dead: list[Dead]
    sent: float = field(default_factory=time.monotonic)


class Transfer:
    """Keeps up to ``window`` batches, of ``window_bytes`` together, on the way from ``source`` to ``target``."""

    def __init__(
        self,
        source: Source,
        target: Target,
        window: int,
        window_bytes: Callable[[], int],
        prepare: Prepare = unchanged,
        note: Callable[[Batch], object] = lambda batch: None,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """``note`` is told of each batch that has arrived; no more is sent once ``goes_on`` says no."""
        self._source, self._target, self._prepare, self._note = source, target, prepare, note
        self._window, self._window_bytes, self._goes_on = window, window_bytes, goes_on
        self._on_the_way: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._bytes = 0
        self._room, self._news = asyncio.Event(), asyncio.Event()
        self._arrived: deque[Batch] = deque()
        """Batches that have arrived and are not settled."""
        self._all_arrived = False

    async def run(self, settled: int) -> None:
        """Move what follows number ``settled`` until ``source`` has no more; then all that was sent has arrived."""
        self._room.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(settled + 1, tasks))
            tasks.create_task(self._confirm())
            tasks.create_task(self._settle())

    async def _send(self, first: int, tasks: asyncio.TaskGroup) -> None:
        """With a backlog the next messages are asked for while those in hand are packed and sent."""
        ahead = None
        while self._goes_on():
            await self._room.wait()
            messages = await (ahead or self._source.take(first)) or await self._source.wait(first)
            ahead = None
            if messages is None:
                break
            if not messages:
                continue
            if len(messages) >= BACKLOG or sum(map(len, messages)) > HEAVY:
                ahead = tasks.create_task(self._source.take(first + len(messages)))
                await asyncio.sleep(0)
            packed = Packed.of(messages)
            digest, outgoing = digest_of(packed), self._prepare(first, messages, len(packed.data))
            if outgoing.messages is not messages:
                packed = Packed.of(outgoing.messages)
            batch = Batch(first, first + len(messages) - 1, len(packed.data), outgoing.dead)
            self._on_the_way.put_nowait(batch)
            self._bytes += batch.bytes
            self._look_for_room()
            await self._target.send(first, batch.last, digest, packed)
            first = batch.last + 1
        if ahead:
            await ahead
        self._on_the_way.put_nowait(None)

    async def _confirm(self) -> None:
        while batch := await self._on_the_way.get():
            last = await self._target.arrived()
            if last != batch.last:
                raise Refused(f"the other server has {last} messages where {batch.last} were expected")
            self._bytes -= batch.bytes
            self._look_for_room()
            self._arrived.append(batch)
            self._news.set()
            self._note(batch)
        self._all_arrived = True
        self._news.set()

    async def _settle(self) -> None:
        """In portions, since a server needs a while to free large messages and to bury the dead ones."""
        while not (self._all_arrived and not self._arrived):
            await self._news.wait()
            if not self._on_the_way.empty():
                await asyncio.sleep(GATHER)
            self._news.clear()
            arrived, self._arrived = self._arrived, deque()
            while arrived:
                batch = arrived.popleft()
                size, dead = batch.bytes, batch.dead
                while arrived and size < PORTION and not dead:
                    batch = arrived.popleft()
                    size, dead = size + batch.bytes, batch.dead
                await self._source.settle(batch.last, dead)

    def _look_for_room(self) -> None:
        """What is on the way is counted as it is put on the queue and taken off when it has arrived."""
        if self._on_the_way.qsize() < self._window and self._bytes < self._window_bytes():
            self._room.set()
        else:
            self._room.clear()
