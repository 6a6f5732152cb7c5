"""The local end of vpush: reads messages from ``in`` through ``pending``, and settles those that have arrived."""

import asyncio
import uuid
from pathlib import Path
from typing import Any, Final

from redis.exceptions import ResponseError

from common.context import Context
from common.in_flight import counters
from common.wired import FULL_POLL_SECONDS
from penstock.base.encoding import decoded
from penstock.base.errors import Refused
from penstock.core.atomic import AtomicWrites
from penstock.core.link import is_full
from penstock.core.once import SCRIPT_MESSAGES, Dead, next_messages, settle
from penstock.core.read_size import Sizes, fitting
from penstock.core.script import Script
from penstock.transfer.engine import Shipment
from services.vpush.settings import Settings
from services.vpush.window import SendWindow

_raise_token, _disown = (
    Script.read(Path(__file__).parent / "lua" / f"{verb}.lua") for verb in ("raise_token", "disown")
)
MAX_SCRIPTED: Final = 1_000
"""Maximum number of messages that a script returns: through it each one takes the server three times as long."""
ALONE: Final = 4
"""A message of more than this part of a batch's bytes is read alone, without the script; as in ``next.lua``."""
METRICS: Final = ("settled", "delivered", "dead", "dropped")


class LocalSource:
    """A ``Sender``: ``<ns>:sequence`` holds its source id and the last settled sequence number."""

    def __init__(self, context: Context[Settings], window: SendWindow) -> None:
        settings, keys = context.settings, context.required_keys
        context.recovers_alone = False  # the other server must answer, too
        self._window = window
        self._context, self._settling = context, context.beside("settling")
        self._state, self._letters = keys.sequence, keys.dead
        self._fenced: dict[str, Any] = {"lease": keys.lease, "token": context.token or 0}
        self._named: dict[str, Any] = {"pending": settings.pending, "state": keys.sequence}
        self._counters = counters(keys)
        self._metrics = {name: keys.metric(name) for name in METRICS} | self._counters
        self._arrived = self._settled = self._ahead = 0
        self.sizes = Sizes()
        self._rest: dict[int, list[bytes]] = {}
        """Messages that were read and did not fit into a batch, by the number of the first."""
        self._places = asyncio.Lock()
        """Held while the places of messages in ``pending`` must not change, and while they are settled."""

    @property
    def way_out(self) -> str:
        """Return what an operator can do if the other server has lost data, in words."""
        return (
            "it has lost data, or is another server. Restore it; or, to go on without what it lost, "
            f"HDEL {self._state} source sequence here, and start again"
        )

    async def begin(self, past: int) -> tuple[str, int, int]:
        """Return the source id, a fencing token above ``past``, and the last settled number. Raise ``Fenced``."""
        if past >= (self._context.token or 0):
            await self.raise_token(past)
        source, settled = await self.load_state()
        return source, self._context.token or 0, settled

    async def load_state(self) -> tuple[str, int]:
        """Return this source's id (created on first use) and the last settled sequence number."""
        async with AtomicWrites(self._context.redis) as writes:
            writes.hsetnx(self._state, "source", uuid.uuid4().hex)
            writes.hmget(self._state, ["source", "sequence"])
            _, (source, sequence) = await writes.execute()
        self._named["who"], self._arrived, self._ahead = source, int(sequence or 0), 0
        self._settled, self._rest = self._arrived, {}
        return decoded(source), self._settled

    async def lost(self, last: int, settled: int) -> None:
        """Delete the source id: the local messages do not match what the target recorded under it. Raise ``Fenced``."""
        self._context.log.warning("data was lost here: some of what follows may arrive twice", arrived=last)
        await _disown(self._context.redis, state=self._state, who=self._named["who"], **self._fenced)

    async def raise_token(self, past: int) -> int:
        """Set the lease's fencing token above ``past``, and return it. Raise ``Fenced`` if it is not ours."""
        token: int = await _raise_token(self._context.redis, past=past, **self._fenced)
        self._context.token = self._settling.token = self._fenced["token"] = token
        return token

    def note(self, batch: Shipment) -> None:
        """Note that ``batch`` has arrived."""
        self._arrived = batch.last
        self._context.outage.over()

    async def take(self, first: int) -> list[bytes]:
        messages = self._rest.pop(first, None) or await self._more(first)
        if len(messages) * self.sizes.largest > 2 * self._bytes or not self.sizes.largest:
            self._rest = {}
            if count := fitting(messages, self._bytes):
                messages, self._rest[first + count] = messages[:count], messages[count:]
        return messages

    async def _more(self, first: int) -> list[bytes]:
        """Return the next messages, which may have more bytes than a batch if messages are suddenly larger."""
        if self._ahead < 0:
            async with self._places:
                asked = await self._context.run(next_messages, **self._looking(first, 0))
            _, self._ahead = asked or (0, 0)
        past_script = self._ahead > SCRIPT_MESSAGES or (self._ahead and self.sizes.unseen == 1)
        if past_script and not self._context.outage.server_is_full:
            async with self._places:
                if messages := await self._read(first, self._ahead):
                    return messages
        return self._taken(first, await self._context.run(next_messages, **self._next(first)))

    async def _read(self, first: int, many: int) -> list[bytes]:
        """Read ``many`` messages with LRANGE; the script only verifies their places. Return [] if they changed."""
        sent = first - 1 - self._settled
        look = next_messages.by_source(**self._looking(first, many))
        reading = ("LRANGE", self._context.settings.pending, -sent - many, -sent - 1)
        await self._context.send(self._context.transaction(look, reading))
        try:
            found, messages = await self._context.settled()
        except ResponseError as error:
            if not is_full(error):
                raise
            self._context.outage.full_server(error)  # which refuses transactions
            return []
        right, self._ahead = found or (0, 0)
        if not right:
            return []
        read: list[bytes] = messages[::-1]
        largest = self.sizes.note_all(read)
        if self.sizes.unseen == 1 and largest * ALONE < self._bytes:
            self._ahead = 0
        return read

    @property
    def _bytes(self) -> int:
        return min(self._context.settings.batch_bytes, self._window.batch_bytes)

    async def wait(self, first: int) -> list[bytes] | None:
        context, settings = self._context, self._context.settings
        if not context.running:
            return None
        then = context.transaction(next_messages.by_source(**self._next(first)))
        await context.take(settings.in_, settings.in_, settings.pop_timeout, then)
        (found,) = await context.settled()
        messages = self._taken(first, found)
        if not messages and context.outage.server_is_full:
            await context.pause(FULL_POLL_SECONDS)
        return messages if self._context.running else None

    def _looking(self, first: int, many: int) -> dict[str, Any]:
        return self._next(first) | {"settled": self._settled, "batch": many}

    def _next(self, first: int) -> dict[str, Any]:
        settings = self._context.settings
        return {
            "source": settings.in_,
            "next": first,
            "batch": 1 if settings.unpack else min(settings.batch, MAX_SCRIPTED),
            "bytes": self._bytes,
            "whole": 1,
            "settled": "",
            "most": 0 if settings.unpack else settings.batch,
            **self.sizes.named,
            **self._named,
            **self._fenced,
            **self._counters,
        }

    def _taken(self, first: int, found: tuple[list[bytes], int] | None) -> list[bytes]:
        if found is None:
            raise self._changed()
        messages, self._ahead = found
        self.sizes.note_all(messages)
        if not messages and first == self._arrived + 1:
            self._context.outage.over()
        return messages

    async def settle(self, last: int, dead: list[Dead]) -> None:
        settings = self._context.settings
        async with self._places:
            settled = await self._settling.run(
                settle,
                sequence=last,
                origin=settings.in_,
                out=settings.out,
                letters=self._letters if dead else None,
                buried=[word for letter in dead for word in letter],
                **self._named,
                **self._fenced,
                **self._metrics,
            )
            if settled is None:
                raise self._changed()
            self._settled = last
        self._arrived = max(self._arrived, last)

    def _changed(self) -> Refused:
        return Refused(f"{self._context.settings.pending} or {self._state} was changed by somebody else")
