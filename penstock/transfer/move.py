"""Moving of a list to another server by one call of ``penstock shovel``.

Keys: ``<list>:shovel:<hash>`` holds what was taken and has not arrived; ``<list>:shovel:<hash>:sequence`` holds the
source id and the last settled sequence number, so that the same call resumes after a kill. ``<hash>`` is derived from
the other server and its list. On the other server ``<out>:from:<source>`` is the ledger of ``arrive.lua``. A move that
ends leaves none of them.
"""

import random
import secrets
import uuid
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import Redis

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import Fenced
from penstock.base.urls import server_of
from penstock.core.connection import mask_password
from penstock.core.once import Dead, agree, next_messages, settle
from penstock.core.read_size import Sizes
from penstock.core.script import Script
from penstock.transfer import LUA
from penstock.transfer.shovel import BATCH, BATCH_BYTES, Shovel, SourceLost, local_errors

_put_back: Final = Script.read(LUA / "put_back.lua")

BACK: Final = 5_000
BACK_BYTES: Final = 4_194_304
"""Maximum number of messages, and bytes unless one message has more, to put back at a time: some milliseconds."""


class Move(Shovel):
    """A shovel that takes messages from their list, and at the end puts back those that have not arrived."""

    late = "not everything was put back"

    def __init__(self, here: "Redis", source: bytes, there: "Redis", out: str, url: str) -> None:
        """``url`` is that of ``there``."""
        super().__init__(here, source, there, out)
        self._to = f"{mask_password(url)} {out}"
        self.pending = source + b":shovel:" + sha1(encoded(f"{server_of(url)} {out}")).hexdigest()[:12].encode()
        self.state = self.pending + b":sequence"
        self._sizes_seen = Sizes()
        self._tokens: set[int] = set()
        """All fencing tokens of this shovel: if a reply is lost, it is unknown which one the server has."""

    async def waiting(self) -> int:
        with local_errors():
            return sum([await self._here.llen(key) for key in (self.pending, self._source)])

    async def unfinished(self) -> bool:
        with local_errors():
            return bool(await self._here.exists(self.state))

    @property
    def remains(self) -> str:
        return f"what may not have arrived is in {decoded(self.pending)}: the same call goes on with it"

    @property
    def way_out(self) -> str:
        return (
            "a server has lost data, or is another one. Restore it; or, to go on with what is here, "
            f"HDEL {decoded(self.state)} source sequence here, and call again"
        )

    async def take(self, first: int, most: int = BATCH) -> list[bytes]:
        with local_errors():
            found: tuple[list[bytes], int] | None = await next_messages(
                self._here,
                source=self._source,
                next=first,
                batch=most,
                bytes=BATCH_BYTES,
                whole=0,
                settled="",
                most=0,
                **self._sizes_seen.named,
                **self._fenced,
            )
        if found is None:
            raise self._gone()
        self._sizes_seen.note_all(found[0])
        return self._note_taken(first, found[0])

    async def settle(self, last: int, dead: list[Dead]) -> None:
        with local_errors():
            settled = await settle(
                self._here, sequence=last, origin=self._source, out=encoded(self._out), buried=[], **self._fenced
            )
        if settled is None:
            raise self._gone()
        self._note_settled(last)

    async def end(self) -> None:
        await self._wire.close()
        await agree(self, self._wire, self._out)
        await self._wire.close()
        with local_errors():
            while await self._here.transaction(self._put_back, self.state, value_from_callable=True):
                pass
        await self._leave_no_ledger(self._who)

    async def _begin(self, past: int) -> tuple[str, int, int]:
        async def raise_token(transaction: Any) -> None:
            self._token = max(await self._held(transaction), past) + 1 + random.randrange(1 << 20)
            self._tokens.add(self._token)
            transaction.multi()
            transaction.hsetnx(self.state, "source", uuid.uuid4().hex)
            transaction.hset(self.state, mapping={"token": self._token, "to": encoded(self._to)})
            transaction.hmget(self.state, "source", "sequence", "ended")

        with local_errors():
            *_, (source, sequence, ended) = await self._here.transaction(raise_token, self.state)
        if ended:
            await self._leave_no_ledger(ended)
        self._who = source
        return decoded(source), self._token, int(sequence or 0)

    async def _held(self, transaction: Any) -> int:
        """Return the stored fencing token, or a random one if none is stored. Raise ``Fenced`` if it has changed."""
        token = await transaction.hget(self.state, "token")
        if self._begun is not None and (token is None or int(token) not in self._tokens):
            raise Fenced(decoded(self.state))
        return secrets.randbelow(1 << 50) if token is None else int(token)

    async def _put_back(self, transaction: Any) -> bool:
        """Put back some messages that have not arrived, the newest first; return False once none are left.

        If a reply was lost and this is tried again, the state may be gone: then it has ended, too.
        """
        if await transaction.hget(self.state, "source") != self._who:
            return False
        await self._held(transaction)
        transaction.multi()
        _put_back.queue(
            transaction,
            pending=self.pending,
            source=self._source,
            state=self.state,
            who=self._who,
            settled=0,
            kept=0,
            most=BACK,
            bytes=BACK_BYTES,
        )
        return True

    async def _leave_no_ledger(self, ended: bytes) -> None:
        await self._there.delete(self._ledger_of(decoded(ended)))
        with local_errors():
            await self._here.hdel(self.state, "ended")

    @property
    def _fenced(self) -> dict[str, Any]:
        keys = {"pending": self.pending, "state": self.state, "lease": self.state}
        return {**keys, "token": self._token, "who": self._who}

    def _gone(self) -> Exception:
        return SourceLost(f"messages are gone from {decoded(self.pending)} that were on their way")
