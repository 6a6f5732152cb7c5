"""Scripts whose effect is to be durable before their callers hear of it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from penstock.base.errors import NotDurable
from penstock.core.connection import MAX_SILENCE
from penstock.core.durability import Level
from penstock.core.link import Outage, again
from penstock.core.raw_connection import Command, RawConnection, pack
from penstock.core.script import Script
from penstock.core.tasks import begin
from penstock.core.wire import Reply

MOST: Final = 100
"""Maximum number of calls that are confirmed together."""
_log: Final = structlog.get_logger("penstock.himporter")


class Durable:
    """Calls scripts over a connection of its own, from ``start`` to ``close``, at a level of durability.

    Calls that come while others are confirmed go together: one wait for each batch. Other connections wait for none.
    """

    def __init__(self, url: str, level: str, longest: float) -> None:
        self._level, self._longest = Level(level, longest), longest
        self._raw = RawConnection.to(url, "penstock-himporter-durable")
        self._calls: list[tuple[Script, dict[str, Any], Reply]] = []
        self._news = asyncio.Event()
        self._is_open = True
        self._knows_replicas = False
        self._outage = Outage(_log, "not confirmed", "confirmed again")
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to call."""
        self._running = begin(self._run(), _log)

    async def close(self) -> None:
        """End; calls without a reply get none."""
        if self._running:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def check(self) -> None:
        """Raise what has ended the calls."""
        if self._running and self._running.done() and not self._running.cancelled():
            self._running.result()

    def call(self, script: Script, then: Callable[[Reply], None], **named: Any) -> bool:
        """Call ``script``, and ``then`` with its reply once its effect is durable; False while the server is away.

        The error of the reply is ``NotDurable`` if that was not confirmed: the script may have run.
        """
        if self._is_open:
            self._calls.append((script, named, Reply(then)))
            self._news.set()
        return self._is_open

    async def _run(self) -> None:
        try:
            await again(self._serve, self._outage, lasts=_lasts, mend=self._mend)
        finally:
            await self._raw.close()
            await self._raw.redis.aclose()

    async def _serve(self) -> None:
        """Accept calls, and send them in batches. Raise what ends the connection."""
        self._is_open = True
        while True:
            await self._news.wait()
            batch, self._calls = self._calls[:MOST], self._calls[MOST:]
            if not self._calls:
                self._news.clear()
            try:
                await self._call(batch)
                self._outage.over()
            except (NotDurable, RedisError, OSError) as error:
                self._end(batch, error)
                if not isinstance(error, NotDurable):
                    raise
                self._outage.begins(error)

    async def _mend(self, error: Exception, _: bool) -> None:
        """Accept no calls until the pause is over."""
        self._is_open = self._knows_replicas = False
        calls, self._calls = self._calls, []
        self._end(calls, error)
        await self._raw.close()

    def _end(self, calls: "Sequence[tuple[Script, dict[str, Any], Reply]]", error: Exception) -> None:
        failed = error if isinstance(error, NotDurable) else NotDurable(f"the server did not confirm it: {error}")
        for _, _, reply in calls:
            if not reply.is_done:
                reply.set_exception(failed)

    async def _call(self, batch: "list[tuple[Script, dict[str, Any], Reply]]") -> None:
        async with asyncio.timeout(2 * (self._longest + MAX_SILENCE)):
            if self._level.census and not self._knows_replicas:
                for census in await self._exchange(self._level.census):
                    if isinstance(census, ResponseError):
                        raise census
                    self._level.count(census)
                self._knows_replicas = True
            replies, confirmations = await self._ask([script.by_digest(**named) for script, named, _ in batch])
            again = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if again:
                sources = [batch[place][0].by_source(**batch[place][1]) for place in again]
                found, confirmations = await self._ask(sources)
                for place, reply in zip(again, found, strict=True):
                    replies[place] = reply
        self._check(confirmations)
        for (_, _, reply), value in zip(batch, replies, strict=True):
            if isinstance(value, Exception):
                reply.set_exception(value)
            else:
                reply.set_result(value)
        if any(isinstance(value, ReadOnlyError) for value in replies):
            self._knows_replicas = False
            await self._raw.close()  # a primary that became a replica: connect anew

    def _check(self, confirmations: list[Any]) -> None:
        try:
            self._level.check(confirmations)
        finally:
            if self._level.census and not isinstance(confirmations[-1], ResponseError):
                self._level.count(confirmations[-1])

    async def _ask(self, commands: list[Command]) -> tuple[list[Any], list[Any]]:
        """Return the replies to ``commands``, errors among them, and those that confirm what they have written."""
        replies = await self._exchange([*commands, *self._level.commands])
        return replies[: len(commands)], replies[len(commands) :]

    async def _exchange(self, commands: list[Command]) -> list[Any]:
        await self._raw.send(pack(commands))
        return await self._raw.receive(len(commands))


def _lasts(error: Exception) -> bool:
    return not isinstance(error, RedisError | OSError)
