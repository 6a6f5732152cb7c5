"""A connection to a server of Redis that many requests share, opened again whenever it ends."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Any, Final

from redis.exceptions import ConnectionError, NoScriptError, RedisError

from penstock.base.errors import PenstockError
from penstock.core.patience import BACKOFF
from penstock.core.raw_connection import Command, pack
from penstock.core.script import Script, translate_error
from penstock.core.wire import LostReply, Reply, Wire

MAX_SILENCE: Final = 2.0
"""Seconds without a reply after which the connection is cut, and nothing is accepted until there is another."""
LOOK_SECONDS: Final = 0.25


async def _nothing() -> None:
    """Do nothing."""


class Caller:
    """Sends commands from ``start`` to ``close``; while the server is away their replies are errors at once.

    ``opened`` is awaited before a new connection counts as open, and ``look`` four times a second.
    """

    def __init__(
        self,
        url: str,
        name: str,
        opened: Callable[[], Awaitable[None]] = _nothing,
        look: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self.trouble: Exception | None = None
        """Why nothing is accepted; None while it is."""
        self.wire = Wire(url, name, self._lost)
        self._opened, self._look = opened, look
        self._news = asyncio.Event()
        self._sent = set[str]()
        """The names of scripts that the server has been sent."""
        self._keeper: asyncio.Task[None] | None = None
        self._looked_at = -inf
        """When (monotonic) the connection was last watched."""

    @property
    def is_open(self) -> bool:
        """Return whether commands are accepted.

        ``_keep_open`` cuts a silent connection, and minds that this process may have stood still itself.
        """
        return self.wire.is_open

    def start(self) -> None:
        """Connect, and stay connected."""
        self._keeper = asyncio.create_task(self._keep_open())

    async def close(self) -> None:
        """Disconnect; what still waits for a reply gets an error."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self.wire.close()

    def check(self) -> None:
        """Raise what has ended the connection for good, or keeps commands from being accepted."""
        if self._keeper and self._keeper.done() and not self._keeper.cancelled():
            self._keeper.result()
        if self.trouble:
            raise self.trouble

    def send(self, *words: Any) -> Reply:
        """Send a command; return what becomes its reply."""
        reply = Reply()
        self.post(words, reply)
        return reply

    def fetch(self, words: Command, reply: Reply) -> bool:
        """Send a command; return False while the server is away."""
        if not self.is_open:
            return False
        self.post(words, reply)
        return True

    def call(self, script: Script, reply: Reply, named: dict[str, Any]) -> Reply:
        """Call ``script``, by its source the first time and if the server has forgotten it; else by its digest.

        ``reply`` gets the reply, or an error of ours, and is returned.
        """

        def replied(first: Reply) -> None:
            if isinstance(first.error, NoScriptError) and self.wire.is_open:
                self.post(script.by_source(**named), reply)
            elif first.error:
                reply.set_exception(translate_error(first.error))
            else:
                reply.set_result(first.value())

        command = (script.by_digest if script.name in self._sent else script.by_source)(**named)
        self._sent.add(script.name)
        self.post(command, Reply(replied))
        return reply

    def transact(self, commands: list[list[bytes]], reply: Reply) -> None:
        """Send commands, each in parts of RESP, as a transaction.

        ``reply`` gets the reply to the last one; or an error, of ours if a script returned it.
        """
        if not self.is_open:
            reply.set_exception(ConnectionError("the server is away"))
            return
        queued = [Reply() for _ in range(len(commands) + 1)]

        def replied(last: Reply) -> None:
            errors = [each.error for each in (*queued, last) if each.error]
            if isinstance(last.error, LostReply):
                errors = [last.error]
            elif not errors:
                errors = [each for each in last.value()[::-1] if isinstance(each, Exception)]
            if errors:
                reply.set_exception(translate_error(errors[0]))
            else:
                reply.set_result(last.value()[-1])

        parts = [part for command in commands for part in command]
        self.wire.send([pack([("MULTI",)]), *parts, pack([("EXEC",)])], *queued, Reply(replied))

    def post(self, command: Command, reply: Reply) -> None:
        """Send a command; ``reply`` gets its reply, or an error at once while the server is away."""
        if self.is_open:
            self.wire.send(pack([command]), reply)
        else:
            reply.set_exception(ConnectionError("the server is away"))

    def _lost(self, error: Exception) -> None:
        self.trouble = error
        self._news.set()

    async def _keep_open(self) -> None:
        """Connect whenever there is no connection, and cut one that is silent."""
        failures = 0
        while True:
            if not self.wire.is_open:
                try:
                    async with asyncio.timeout(MAX_SILENCE):
                        await self.wire.open()
                        self.trouble = None
                        await self._opened()
                    failures = 0
                except (RedisError, OSError, PenstockError) as error:
                    lost = ConnectionError(str(error) or "no reply while connecting")
                    self.wire.end(lost, told=False)
                    self.trouble = lost if isinstance(error, OSError) else error  # one that passes by itself
                    failures += 1
                    await asyncio.sleep(BACKOFF.delay_after(failures))
                    continue
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._news.wait()
            self._news.clear()
            before, self._looked_at = self._looked_at, time.monotonic()
            if self._looked_at - before < MAX_SILENCE:  # else we stood still, and the reply may be there, not yet read
                self.wire.cut_if_silent(MAX_SILENCE)
            await self._look()
