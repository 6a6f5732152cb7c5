"""A program at the socket that publishes, each message once if it says what its source is."""

import asyncio
import json
from asyncio import StreamWriter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.outbox import DiskFull, Outbox
from services.outbox.lines import Unexpected, data_in, keys_in, number_in, parsed, source_in, written
from services.outbox.listening import has_gone
from services.outbox.refusal import NOBODY, refusal

CHECK_SECONDS: Final = 0.2
PREFIX: Final = "socket:"
"""Before the name of a source, among those of the outbox."""
log = Log("outbox")


class Publish(NamedTuple):
    """A message of a program. ``number`` is the program's own, or counts those of the connection."""

    number: int
    keys: Sequence[str]
    data: bytes


class RefusedMessage(PenstockError):
    """A message is refused, and with it what follows on the connection."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


class Sources:
    """Who publishes as which source: the last program that has said so."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._owners, self._locks = dict[str, object](), dict[str, asyncio.Lock]()

    def own(self, source: str, owner: object) -> asyncio.Lock:
        """Make ``owner`` the one of ``source``; return the lock under which owners look and store."""
        self._owners[source] = owner
        return self._locks.setdefault(source, asyncio.Lock())

    def has(self, source: str, owner: object) -> bool:
        return self._owners[source] is owner

    def last(self, source: str) -> int:
        """Return the number of the last message of ``source`` that is on disk; 0 if none is."""
        note = self._outbox.note_of(PREFIX + source)
        return 0 if note is None else int(json.loads(note))


class Publisher:
    """One connection. ``unsubscribed`` is the setting."""

    def __init__(self, outbox: Outbox, sources: Sources, unsubscribed: str, writer: StreamWriter) -> None:
        self._outbox, self._sources, self._unsubscribed, self._writer = outbox, sources, unsubscribed, writer
        self._source, self._lock = "", asyncio.Lock()
        self._count = 0

    async def take(self, lines: Sequence[bytes]) -> None:
        """Do what ``lines`` say, and answer once it is on disk. Raise ``Unexpected`` or ``RefusedMessage``."""
        batch, problem = list[Publish](), None
        for line in lines:
            try:
                fields = parsed(line)
                if "source" not in fields:
                    batch.append(self._message(fields))
                    continue
                source = source_in(fields)
            except Unexpected as error:
                problem = error
                break
            await self._publish(batch)
            batch = []
            await self._introduce(source)
        await self._publish(batch)
        if problem:
            raise problem

    async def _introduce(self, source: str) -> None:
        self._source = source
        self._lock = self._sources.own(source, self)
        async with self._lock:  # what the owner before is storing counts, too
            self._writer.write(written({"source": source, "last": self._sources.last(source)}))

    def _message(self, fields: dict[str, Any]) -> Publish:
        self._count += 1
        number = number_in(fields, "number") if self._source else self._count
        return Publish(number, keys_in(fields), data_in(fields))

    async def _publish(self, batch: Sequence[Publish]) -> None:
        """Store ``batch``, and wait for subscribers if it has to."""
        is_waiting = False
        while batch:
            # What is being stored is answered even if the service ends meanwhile.
            storing = asyncio.ensure_future(self._store(batch))
            try:
                batch = await asyncio.shield(storing)
            except asyncio.CancelledError:
                await storing
                raise
            await self._writer.drain()
            if batch and has_gone(self._writer):
                return  # nothing of it was answered: the program publishes it again
            if batch:
                if not is_waiting:
                    log.info("waiting for a subscriber", keys=list(batch[0].keys))
                is_waiting = True
                await asyncio.sleep(CHECK_SECONDS)

    async def _store(self, batch: Sequence[Publish]) -> Sequence[Publish]:
        """Store ``batch`` up to the first that has to wait, and answer; return the rest. Raise ``RefusedMessage``."""
        async with self._lock:
            if self._source and not self._sources.has(self._source, self):
                raise RefusedMessage(batch[0].number, "another connection publishes as this source")
            last = self._sources.last(self._source) if self._source else 0
            wanted, taken, reason = list[tuple[Sequence[str], bytes]](), 0, None
            for each in batch:
                if not (self._source and each.number <= last):
                    reason = refusal(self._outbox, each.keys, each.data)
                    if reason is None:
                        wanted.append((each.keys, each.data))
                    elif reason != NOBODY or self._unsubscribed != "drop":
                        break
                    last = each.number
                    reason = None
                taken += 1
            if taken:
                note = json.dumps(last if self._source else 0)
                try:
                    await self._outbox.publish_all(wanted, PREFIX + self._source, note)
                except DiskFull as error:
                    raise RefusedMessage(batch[0].number, f"diskFull: {error}") from None
        self._writer.write(b"".join(written({"stored": each.number}) for each in batch[:taken]))
        if reason is not None and (reason != NOBODY or self._unsubscribed == "dead"):
            raise RefusedMessage(batch[taken].number, reason)
        return batch[taken:]
