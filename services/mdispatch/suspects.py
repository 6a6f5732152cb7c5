"""Messages that an instance had in hand when it died: one of them may be what it died of."""

from hashlib import sha1
from typing import Final, NamedTuple

from redis.exceptions import ResponseError

from common.context import Context
from penstock.atomic import AtomicWrites
from penstock.encoding import decoded
from services.mdispatch.request import rejected
from services.mdispatch.settings import Settings

MOST_DEATHS: Final = 3
MEMORY: Final = 259_200
"""Seconds that a death is held against a message."""
POISON: Final = rejected("poison", f"{MOST_DEATHS} instances died with it in hand")


class Suspect(NamedTuple):
    digest: str
    is_poison: bool


class Suspects:
    """Handled one at a time, each put on record before it is looked at, so that its neighbours are not blamed.

    The record, in the hash ``Keys.deaths`` by the SHA-1 of the message, is the number of deaths if its holder dies,
    too, and the holder's id: an instance that comes back to it after trouble with the server has not died.
    """

    def __init__(self, context: Context[Settings]) -> None:
        assert context.keys
        self._context, self._key = context, context.keys.deaths
        self._left_by_others = context.settings.ordered  # it shares the pending list with the active one before it

    def among(self, messages: list[bytes]) -> int:
        """How many of ``messages``, the oldest, are suspect."""
        if self._left_by_others:
            self._left_by_others = False
            self._context.adopted[self._base] = len(messages)
        self._context.adopted[self._base] = min(self._context.adopted[self._base], len(messages))
        return self._context.adopted[self._base]

    async def enter(self, message: bytes) -> Suspect:
        """Put on record that this instance has ``message`` in hand, unless too many have died of it already."""
        digest = sha1(message, usedforsecurity=False).hexdigest()
        try:
            known = await self._context.redis.hget(self._key, digest)
        except ResponseError as error:
            raise await self._context.named(error, self._key, expected="hash") from None
        if_dies, holder = decoded(known).split() if known else ("1", "")
        if holder == self._context.id:
            return Suspect(digest, is_poison=False)
        if int(if_dies) >= MOST_DEATHS:
            return Suspect(digest, is_poison=True)
        async with AtomicWrites(self._context.redis) as writes:
            writes.hset(self._key, digest, f"{int(if_dies) + 1} {self._context.id}")
            writes.expire(self._key, MEMORY)
            await writes.execute()
        return Suspect(digest, is_poison=False)

    def survived(self) -> None:
        """It is out of hand."""
        self._context.adopted[self._base] -= 1

    @property
    def _base(self) -> str:
        return self._context.settings.pending
