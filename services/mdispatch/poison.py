"""Detection of poison messages: those that several instances had in hand when they died."""

from hashlib import sha1
from typing import Final, NamedTuple

from redis.exceptions import ResponseError

from common.context import Context
from penstock.base.encoding import decoded, parse_whole
from penstock.core.atomic import AtomicWrites
from services.mdispatch.request import rejection
from services.mdispatch.settings import Settings

MAX_DEATHS: Final = 3
NOBODY: Final = "-"
"""The holder of a message that nobody reads."""
DEATH_EXPIRE_SECONDS: Final = 259_200
"""Seconds that a death counts against a message."""
POISON: Final = rejection("poison", f"{MAX_DEATHS} instances died with it in hand")


class Claim(NamedTuple):
    """Result of ``claim``."""

    digest: str
    """The field of the message in ``Keys.deaths``."""
    is_poison: bool
    """Whether the message is a dead letter."""
    deaths: int
    """How many instances died while they read it."""


class PoisonDetector:
    """Claims adopted messages one at a time, each before it is parsed, so that its neighbours are not blamed.

    The hash ``Keys.deaths`` has for the SHA-1 of each message "<deaths if the current holder dies> <holder's id>".
    An instance that reconnects finds its own id: it has not died. One that has read the message is no holder any more:
    while it waits, for room, for a list of another type, its death says nothing about the message.
    """

    def __init__(self, context: Context[Settings]) -> None:
        self._context, self._key = context, context.required_keys.deaths
        self._left_by_others = context.settings.ordered  # the pending list is shared with the last active instance

    def count_adopted(self, messages: list[bytes]) -> int:
        """Return how many of ``messages``, the oldest ones, came from dead instances."""
        if self._left_by_others:
            self._left_by_others = False
            self._context.adopted[self._base] = len(messages)
        self._context.adopted[self._base] = min(self._context.adopted[self._base], len(messages))
        return self._context.adopted[self._base]

    async def claim(self, message: bytes) -> Claim:
        """Record that this instance reads ``message``, unless ``MAX_DEATHS`` instances died with it."""
        digest = sha1(message, usedforsecurity=False).hexdigest()
        try:
            known = await self._context.redis.hget(self._key, digest)
        except ResponseError as error:
            raise await self._context.named(error, self._key, expected="hash") from None
        if_dies, _, holder = decoded(known or b"1").partition(" ")  # one has died, perhaps with it
        deaths = parse_whole(if_dies) or 1
        if holder == self._context.id:
            return Claim(digest, is_poison=False, deaths=deaths - 1)
        if deaths < MAX_DEATHS:
            await self._note(digest, deaths + 1, self._context.id)
        return Claim(digest, deaths >= MAX_DEATHS, deaths)

    async def survive(self, claim: Claim) -> None:
        """Record that the message has been read, and this instance lives."""
        if not claim.is_poison:
            await self._note(claim.digest, claim.deaths, NOBODY)

    async def _note(self, digest: str, deaths: int, holder: str | None) -> None:
        async with AtomicWrites(self._context.redis) as writes:
            writes.hset(self._key, digest, f"{deaths} {holder}")
            writes.expire(self._key, DEATH_EXPIRE_SECONDS)
            await writes.execute()

    def release(self) -> None:
        """Count the claimed message as settled."""
        self._context.adopted[self._base] -= 1

    @property
    def _base(self) -> str:
        return self._context.settings.pending
