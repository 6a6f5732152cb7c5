"""A list copied to another server by one call of ``penstock shovel``, read in pieces from its old end."""

import uuid
from typing import Final

from redis.asyncio import Redis

from penstock.encoding import decoded
from penstock.errors import PenstockError
from penstock.script import LUA, Script
from penstock.transfer.protocol import Dead
from penstock.transfer.read_size import Sizes
from penstock.transfer.shovel import BATCH, BYTES, Shovel, told_here

_read: Final = Script.read(LUA / "read.lua")
FEW: Final = 16
"""Messages among which the place is looked for at first, when nobody knows how large they are."""

TOGETHER: Final = 128
"""Small messages that are read at once unseen: to find a place in a long list costs more than reading them."""
MARK: Final = 32
MARK_BYTES: Final = BYTES // 4
"""Most messages, and bytes unless one message has more, by which the place is known, or found again."""


class Overtaken(PenstockError):
    """What was read last is not in the list any more, so nobody knows what comes next."""


class Copy(Shovel):
    """The list stays as it is; what is on its way is kept in memory, and nothing of it stays on the other server."""

    late = "the other server was not tidied up"

    def __init__(self, here: "Redis", source: bytes, there: "Redis", out: str) -> None:
        super().__init__(here, source, there, out)
        self._id, self._token = uuid.uuid4().hex, 0
        self._kept: dict[int, list[bytes]] = {}
        """Batches on their way, by the number of their first message."""
        self._place = 0
        """How many of those read are still in the list, as far as we know: the next one follows them."""
        self._mark: list[bytes] = []
        """Those read last."""
        self._seen, self._few = Sizes(TOGETHER), FEW
        self._gone = 0
        """How many were taken from the list after they had been read."""

    async def waiting(self) -> int:
        with told_here():
            return await self._here.llen(self._source)

    @property
    def remains(self) -> str:
        return f"{decoded(self._ledger)} on the other server is of no use any more: it may be deleted"

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
            self._kept[first] = self._took(first, messages)
        return self._kept[first]

    async def settle(self, last: int, dead: list[Dead]) -> None:
        for first in [first for first in self._kept if first <= last]:
            del self._kept[first]
        self._reached(last)

    async def end(self) -> None:
        await self._wire.close()
        if self._ledger:
            await self._there.delete(self._ledger)

    async def _begin(self, past: int) -> tuple[str, int, int]:
        self._token = max(self._token, past) + 1
        return self._id, self._token, self._settled

    def _place_of(self, number: int) -> int:
        return number - self._gone

    async def _read(self, most: int) -> list[bytes]:
        """Return what follows; [] at the new end of the list."""
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
            largest = self._seen.note_all(messages)
            self._few = max(min(2 * len(messages), BATCH, BYTES // max(largest, 1)), 1)
        return messages

    async def _following(self, mark: list[bytes], most: int) -> list[bytes]:
        """Return what lies where ``mark`` was, and at most ``most`` messages behind it."""
        with told_here():
            messages: list[bytes] = await _read(
                self._here,
                source=self._source,
                older=self._place - len(mark),
                known=len(mark),
                batch=len(mark) + most,
                bytes=BYTES + sum(map(len, mark)),
                **self._seen.named,
            )
        return messages

    async def _find_place(self) -> None:
        """Messages were taken from the old end: those read last are nearer to it now."""
        newer = self._place
        while newer:
            older = max(newer - self._few, 0)
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
        """All but the ``older`` oldest of the ``newer`` oldest messages, the oldest first."""
        with told_here():
            piece: list[bytes] = await self._here.lrange(self._source, -newer, -older - 1)  # type: ignore[assignment]
        return piece[::-1]


def _newest(messages: list[bytes]) -> list[bytes]:
    """The last one, and those before it that do not make it too much."""
    size = 0
    for count, message in enumerate(reversed(messages)):
        size += len(message)
        if count and size > MARK_BYTES:
            return messages[-count:]
    return messages
