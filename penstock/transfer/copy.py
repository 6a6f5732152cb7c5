"""Copying of a list to another server by one call of ``penstock shovel``, read in pieces from its old end."""

import uuid
from typing import Final

from redis.asyncio import Redis

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.core.once import Dead
from penstock.core.read_size import Sizes
from penstock.core.script import Script
from penstock.transfer import LUA
from penstock.transfer.shovel import BATCH, BATCH_BYTES, Shovel, local_errors

_read: Final = Script.read(LUA / "read.lua")
SEARCH_MESSAGES: Final = 16
"""Messages to search at first for the read position, while their sizes are unknown."""

MARK: Final = 32
MARK_BYTES: Final = BATCH_BYTES // 4
"""Fingerprint of the read position: up to ``MARK`` messages, or ``MARK_BYTES`` unless one message has more."""


class Overtaken(PenstockError):
    """The messages read last are not in the list any more, so the read position is lost."""


class Copy(Shovel):
    """A shovel that leaves the list as it is, keeps batches in transit in memory, and leaves no ledger behind."""

    late = "the other server was not tidied up"

    def __init__(self, here: "Redis", source: bytes, there: "Redis", out: str) -> None:
        super().__init__(here, source, there, out)
        self._id, self._token = uuid.uuid4().hex, 0
        self._kept: dict[int, list[bytes]] = {}
        """Batches in transit, by the number of their first message."""
        self._place = 0
        """How many of the messages read were still in the list at the last look: the next one follows them."""
        self._mark: list[bytes] = []
        """The messages read last."""
        self._sizes_seen, self._search = Sizes(), SEARCH_MESSAGES
        self._gone = 0
        """How many others took from the list after they had been read."""

    async def waiting(self) -> int:
        with local_errors():
            return await self._here.llen(self._source)

    @property
    def remains(self) -> str:
        return f"{self._ledger} on the other server is of no use any more: it may be deleted"

    @property
    def way_out(self) -> str:
        return "it has lost data, or is another server; copy again"

    @property
    def remarks(self) -> list[str]:
        told = f"{self._gone:,} messages were taken from the list meanwhile: they are in the copy"
        return [told] if self._gone else []

    async def take(self, first: int, most: int = BATCH) -> list[bytes]:
        if first not in self._kept:
            if not (messages := await self._read(most)):
                return []
            self._kept[first] = self._note_taken(first, messages)
        return self._kept[first]

    async def settle(self, last: int, dead: list[Dead]) -> None:
        for first in [first for first in self._kept if first <= last]:
            del self._kept[first]
        self._note_settled(last)

    async def end(self) -> None:
        await self._wire.close()
        if self._ledger:
            await self._there.delete(encoded(self._ledger))

    async def _begin(self, past: int) -> tuple[str, int, int]:
        self._token = max(self._token, past) + 1
        return self._id, self._token, self._settled

    def _place_of(self, number: int) -> int:
        return number - self._gone

    async def _read(self, most: int) -> list[bytes]:
        """Return the next messages; [] at the new end of the list."""
        while True:
            mark = self._mark[-self._place :] if self._place else []
            piece = await self._following(mark, most)
            if piece[: len(mark)] == mark:
                break
            await self._find_place()
        messages = piece[len(mark) :]
        if messages:
            self._place += len(messages)
            self._mark = _newest([*self._mark, *messages][-MARK:])
            largest = self._sizes_seen.note_all(messages)
            self._search = max(min(2 * len(messages), BATCH, BATCH_BYTES // max(largest, 1)), 1)
        return messages

    async def _following(self, mark: list[bytes], most: int) -> list[bytes]:
        """Return the messages now in the places of ``mark``, and at most ``most`` after them."""
        with local_errors():
            messages: list[bytes] = await _read(
                self._here,
                source=self._source,
                older=self._place - len(mark),
                known=len(mark),
                batch=len(mark) + most,
                bytes=BATCH_BYTES + sum(map(len, mark)),
                **self._sizes_seen.named,
            )
        return messages

    async def _find_place(self) -> None:
        """Find the read position again, nearer to the old end: messages were taken from there."""
        newer = self._place
        while newer:
            older = max(newer - self._search, 0)
            low = max(older - len(self._mark), 0)
            piece = await self._between(low, newer)
            for place in range(low + len(piece), older, -1):
                seen = piece[max(place - low - len(self._mark), 0) : place - low]
                if seen == self._mark[-len(seen) :]:
                    self._gone += self._place - place
                    self._place = place
                    return
            newer = older
        raise Overtaken("the messages that were copied last have been taken from the list: what follows is not known")

    async def _between(self, older: int, newer: int) -> list[bytes]:
        """Return the ``newer`` oldest messages without the ``older`` oldest, the oldest first."""
        with local_errors():
            piece: list[bytes] = await self._here.lrange(self._source, -newer, -older - 1)  # type: ignore[assignment]
        return piece[::-1]


def _newest(messages: list[bytes]) -> list[bytes]:
    """Return the last one and as many before it as have ``MARK_BYTES`` with it."""
    size = 0
    for count, message in enumerate(reversed(messages)):
        size += len(message)
        if count and size > MARK_BYTES:
            return messages[-count:]
    return messages
