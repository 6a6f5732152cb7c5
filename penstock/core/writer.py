"""The connection over which messages are pushed that must be durable."""

import asyncio
from collections.abc import Callable
from typing import Final

from redis.exceptions import ConnectionError, ResponseError

from penstock.base.errors import NotDurable, Unsuitable
from penstock.core.durability import Level
from penstock.core.wire import Wire

CONFIRM_SECONDS: Final = 10.0
"""Longest time for which the server waits for its disk or its replicas."""


class Writer(Wire):
    """A connection whose writes are confirmed at a level of durability.

    While the server waits for its replicas it executes nothing else that comes over this connection: so it has no other
    calls than these.
    """

    def __init__(self, url: str, name: str, lost: Callable[[Exception], None], level: Level) -> None:
        super().__init__(url, name, lost)
        self._level = level

    async def open(self) -> None:
        """Connect, and count the replicas if that is asked."""
        await super().open()
        for words in self._level.census:
            self._level.count(await self.execute_command(*words))

    async def confirm(self, link: object) -> None:
        """Return once all that was written over the connection, while ``self.link`` was ``link``, is durable.

        Raise ``NotDurable`` if that takes longer than the bound of the level, or if the connection was lost meanwhile.
        """
        if link is None or self.link is not link:
            raise NotDurable("the connection was lost before the server confirmed it")
        sent = [self.execute_command(*words) for words in self._level.commands]
        try:
            replies = await asyncio.gather(*sent)
        except ConnectionError as error:
            raise NotDurable(f"the connection was lost before the server confirmed it: {error}") from None
        except ResponseError as error:
            raise Unsuitable(f"the server cannot confirm durability {self._level.level}: {error}") from None
        try:
            self._level.check(replies)
        finally:
            if self._level.census:
                self._level.count(replies[-1])
