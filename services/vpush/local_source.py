"""The local end of vpush: reads messages from ``in`` through ``pending``, and settles those that have arrived."""

import asyncio
from typing import Any, Final

from redis.exceptions import ResponseError

from common.context import Context
from common.in_flight import counters
from common.wired import FULL_POLL_SECONDS
from penstock.core.link import is_full
from penstock.core.once import SCRIPT_MESSAGES, Dead, Line, Shipment, next_messages
from penstock.core.read_size import fitting
from services.vpush.settings import Settings
from services.vpush.window import SendWindow

MAX_SCRIPTED: Final = 1_000
"""Maximum number of messages that a script returns: through it each one takes the server three times as long."""
ALONE: Final = 4
"""A message of more than this part of a batch's bytes is read alone, without the script; as in ``next.lua``."""
METRICS: Final = ("settled", "delivered", "dead", "dropped")


class LocalSource:
    """A ``Sender``, of whose line ``<ns>:sequence`` is the state."""

    def __init__(self, context: Context[Settings], window: SendWindow) -> None:
        settings, keys = context.settings, context.required_keys
        context.recovers_alone = False  # the other server must answer, too
        self._window = window
        self._context, self._settling = context, context.beside("settling")
        self._state, self._letters = keys.sequence, keys.dead
        names = (settings.in_, settings.pending, keys.sequence, keys.lease)
        self.line = Line(context.redis, *names, context.token or 0, **counters(keys))
        self._metrics = {name: keys.metric(name) for name in METRICS}
        self._arrived = self._ahead = 0
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
        source, token, settled = await self.line.begin(past)
        self._context.token = self._settling.token = token
        self._arrived, self._ahead, self._rest = settled, 0, {}
        return source, token, settled

    async def lost(self, last: int, settled: int) -> None:
        self._context.log.warning("data was lost here: some of what follows may arrive twice", arrived=last)
        await self.line.lost()

    def note(self, batch: Shipment) -> None:
        """Note that ``batch`` has arrived."""
        self._arrived = batch.last
        self._context.outage.over()

    async def take(self, first: int) -> list[bytes]:
        messages = self._rest.pop(first, None) or await self._more(first)
        if len(messages) * self.line.sizes.largest > 2 * self._bytes or not self.line.sizes.largest:
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
        past_script = self._ahead > SCRIPT_MESSAGES or (self._ahead and self.line.sizes.unseen == 1)
        if past_script and not self._context.outage.server_is_full:
            async with self._places:
                if messages := await self._read(first, self._ahead):
                    return messages
        return self._taken(first, await self._context.run(next_messages, **self._next(first)))

    async def _read(self, first: int, many: int) -> list[bytes]:
        """Read ``many`` messages with LRANGE; the script only verifies their places. Return [] if they changed."""
        sent = first - 1 - self.line.settled
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
        largest = self.line.sizes.note_all(read)
        if self.line.sizes.unseen == 1 and largest * ALONE < self._bytes:
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
        return self._next(first) | {"settled": self.line.settled, "batch": many}

    def _next(self, first: int) -> dict[str, Any]:
        settings = self._context.settings
        batch, most = (1, 0) if settings.unpack else (min(settings.batch, MAX_SCRIPTED), settings.batch)
        return self.line.taking(first, batch, self._bytes) | {"whole": 1, "most": most}

    def _taken(self, first: int, found: tuple[list[bytes], int] | None) -> list[bytes]:
        messages, self._ahead = self.line.taken(found)
        if not messages and first == self._arrived + 1:
            self._context.outage.over()
        return messages

    async def settle(self, last: int, dead: list[Dead]) -> None:
        keys = {"letters": self._letters if dead else None, **self._metrics}
        async with self._places:
            await self.line.settle(self._settling.run, last, dead, self._context.settings.out, keys)
        self._arrived = max(self._arrived, last)
