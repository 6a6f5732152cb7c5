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
from penstock.core.once import Dead, Line, agree, ledger_of, next_messages
from penstock.core.script import Script
from penstock.transfer import LUA
from penstock.transfer.shovel import BATCH, BATCH_BYTES, Shovel, local_errors

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
        self._line = Line(here, source, self.pending, self.state, lease=self.state, token=0)
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
        found = await self._run(next_messages, **self._line.taking(first, most, BATCH_BYTES))
        messages, _ = self._line.taken(found)
        return self._note_taken(first, messages)

    async def settle(self, last: int, dead: list[Dead]) -> None:
        await self._line.settle(self._run, last, dead, encoded(self._out))
        self._note_settled(last)

    async def _run(self, script: Script, **named: Any) -> Any:
        with local_errors():
            return await script(self._here, **named)

    async def end(self) -> None:
        await self._wire.close()
        await agree(self, self._wire, self._out)
        await self._wire.close()
        with local_errors():
            while await self._here.transaction(self._put_back, self.state, value_from_callable=True):
                pass
        await self._leave_no_ledger(self._line.who)

    async def _begin(self, past: int) -> tuple[str, int, int]:
        async def raise_token(transaction: Any) -> None:
            token = max(await self._held(transaction), past) + 1 + random.randrange(1 << 20)
            self._line.token = token
            self._tokens.add(token)
            transaction.multi()
            transaction.hsetnx(self.state, "source", uuid.uuid4().hex)
            transaction.hset(self.state, mapping={"token": token, "to": encoded(self._to)})
            transaction.hmget(self.state, "source", "sequence", "ended")

        with local_errors():
            *_, (source, sequence, ended) = await self._here.transaction(raise_token, self.state)
        if ended:
            await self._leave_no_ledger(ended)
        self._line.who = source
        return decoded(source), self._line.token, int(sequence or 0)

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
        if await transaction.hget(self.state, "source") != self._line.who:
            return False
        await self._held(transaction)
        transaction.multi()
        _put_back.queue(
            transaction,
            pending=self.pending,
            source=self._source,
            state=self.state,
            who=self._line.who,
            settled=0,
            kept=0,
            most=BACK,
            bytes=BACK_BYTES,
        )
        return True

    async def _leave_no_ledger(self, ended: bytes) -> None:
        await self._there.delete(encoded(ledger_of(self._out, decoded(ended))))
        with local_errors():
            await self._here.hdel(self.state, "ended")
