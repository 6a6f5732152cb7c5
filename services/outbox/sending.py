"""From the list ``in`` into the outbox, each message once, whatever dies when.

The outbox stores a note with each batch, in one transaction: what was taken, and what became of it. Redis counts what
was settled, in the transaction that removes a batch from the pending list. So a batch that is in the outbox and still
pending is recognised after a crash, by its number and its digest, and only settled.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from common.context import Context
from common.json_field import object_of, value_at
from common.settle import METRICS, Batch, digest
from common.wired import FULL_POLL_SECONDS
from penstock.base.encoding import decoded
from penstock.base.errors import Refused
from penstock.core.once import Line
from penstock.core.script import Script
from penstock.outbox import DiskFull, Outbox
from services.outbox.refusal import NOBODY, refusal
from services.outbox.settings import Settings

_stored: Final = Script.read(Path(__file__).parent / "lua" / "stored.lua")
ANY_SIZE: Final = 2**60
CHECK_SECONDS: Final = 0.2


class Note(NamedTuple):
    """The last batch that the outbox has stored, and what became of it."""

    before: int
    """How many messages were taken before it."""
    size: int
    digest: str
    dead: list[tuple[int, str]]
    """Places, from 1 on, of those that are dead letters, and the reasons."""
    dropped: int

    def as_text(self) -> str:
        return json.dumps(self)

    @classmethod
    def read(cls, text: str) -> "Note":
        return cls(*json.loads(text))


class Sending:
    """Moves messages of ``in`` to ``outbox``; ``<ns>:sequence`` has this source's id, and how many were settled."""

    def __init__(self, context: Context[Settings], outbox: Outbox) -> None:
        self._context, self._outbox = context, outbox
        self._settings, self._keys = context.settings, context.required_keys
        self._metrics: dict[str, Any] = {name: self._keys.metric(name) for name in METRICS if name != "broken"}
        self._pending = context.pending(str(self._settings.pending))
        names = (str(self._settings.in_), self._pending, self._keys.sequence, self._keys.lease)
        self._line = Line(context.redis, *names, context.token or 0)

    async def run(self) -> None:
        """Move messages until the run ends, those first that an earlier run left. Raise ``Refused`` on a full disk."""
        context, settings = self._context, self._settings
        while context.running and await self._agree():
            async for batch in context.batches(settings.batch, settings.batch_bytes):
                if not await self._move(batch):
                    break

    async def _agree(self) -> bool:
        """Settle what the outbox has stored and an earlier run has not settled; return False if the run ends before."""
        while True:
            source, _, settled = await self._line.begin(past=-1)
            text = self._outbox.note_of(source)
            if text is None or (note := Note.read(text)).before + note.size <= settled:
                return True
            if note.before != settled or not await self._settle_again(note):
                self._context.log.warning("data was lost here: some of what follows may be published twice")
                await self._line.lost()
            elif self._line.settled == settled:  # the server has no room
                await self._context.pause(FULL_POLL_SECONDS)
            if not self._context.running:
                return False

    async def _settle_again(self, note: Note) -> bool:
        """Try to settle the batch of ``note``: the server may have no room. Return False if another one is pending."""
        if await self._context.redis.llen(self._pending) < note.size:
            return False
        async for batch in self._context.batches(note.size, ANY_SIZE):
            if len(batch) != note.size or digest(batch) != note.digest:
                return False
            await self._settle(batch, note)
            break
        return True

    async def _move(self, batch: Batch) -> bool:
        """Store ``batch`` in the outbox and settle it; return False if what is pending has to be looked at again."""
        if self._settings.unsubscribed == "wait" and not await self._until_subscribed(batch):
            return False
        messages = list[tuple[Sequence[str], bytes]]()
        dead, dropped = list[tuple[int, str]](), 0
        for place, message in enumerate(batch, 1):
            keys = self._keys_of(message)
            reason = refusal(self._outbox, keys, message)
            if reason is None:
                messages.append((keys, message))
            elif reason == NOBODY and self._settings.unsubscribed == "drop":
                dropped += 1
            else:
                dead.append((place, reason))
        note = Note(self._line.settled, len(batch), digest(batch), dead, dropped)
        try:
            await self._outbox.publish_all(messages, decoded(self._line.who), note.as_text())
        except DiskFull as error:
            raise Refused(str(error)) from None
        return await self._settle(batch, note)

    async def _until_subscribed(self, batch: Batch) -> bool:
        """Wait until somebody wants each message; return False if the run ends before."""
        context = self._context
        while not (wanted := self._is_wanted(batch)) and context.running:
            context.block("no subscriber", messages=len(batch))
            await context.pause(CHECK_SECONDS)
        context.block("")
        return wanted

    def _is_wanted(self, batch: Batch) -> bool:
        return all(refusal(self._outbox, self._keys_of(message), message) != NOBODY for message in batch)

    async def _settle(self, batch: Batch, note: Note) -> bool:
        done: Any = await self._context.settle_by(
            _stored,
            batch,
            state=self._keys.sequence,
            who=self._line.who,
            letters=self._keys.dead,
            origin=self._settings.in_,
            count=note.size,
            lost=note.dropped,
            buried=[word for letter in note.dead for word in letter],
            **self._metrics,
        )
        if done == 1:
            self._line.settled += note.size
        return bool(done == 1)

    def _keys_of(self, message: bytes) -> Sequence[str]:
        """Return the keys of ``message``; none if it has none."""
        if self._settings.publish is not None:
            return (self._settings.publish,)
        found = value_at(message, object_of(message), str(self._settings.publish_field))
        value = None if found is None else json.loads(found)
        keys: list[Any] = value if isinstance(value, list) else [value]
        return keys if all(isinstance(key, str) and key for key in keys) else ()
