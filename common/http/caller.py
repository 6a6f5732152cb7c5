"""A connection to a server of Redis that many requests share, opened again whenever it ends."""

import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final

from redis.exceptions import ConnectionError, NoScriptError

from penstock.core.link import Fate, Link, LostReply, Outage, fate
from penstock.core.raw_connection import Command, pack
from penstock.core.script import Script, translate_error
from penstock.core.wire import Reply, Wire

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
        self.link = Link(
            self._open,
            self._shut,
            Outage(None),
            within=MAX_SILENCE,
            look=self._watch,
            every=LOOK_SECONDS,
            ends=lambda error: fate(error, was_open=True) is Fate.BUG,
        )
        self.wire = Wire(url, name, self.link.lost)
        self._opened, self._look = opened, look
        self._sent = set[str]()
        """The names of scripts that the server has been sent."""
        self._looked_at = -inf
        """When (monotonic) the connection was last watched."""

    @property
    def trouble(self) -> Exception | None:
        """Return why nothing is accepted; None while it is."""
        error = self.link.reason
        if self.wire.is_open or self.link.is_up is None:
            return None
        return ConnectionError(str(error)) if isinstance(error, OSError) else error  # one that passes

    @property
    def is_open(self) -> bool:
        """Return whether commands are accepted.

        ``_watch`` cuts a silent connection, and minds that this process may have stood still itself.
        """
        return self.wire.is_open

    def start(self) -> None:
        """Connect, and stay connected."""
        self.link.start()

    async def close(self) -> None:
        """Disconnect; what still waits for a reply gets an error."""
        await self.link.close()
        await self.wire.close()

    def check(self) -> None:
        """Raise what has ended the connection for good, or keeps commands from being accepted."""
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

    async def _open(self) -> None:
        if not self.wire.is_open:
            try:
                await self.wire.open()
                await self._opened()
            except BaseException:
                await self._shut()
                raise

    async def _shut(self) -> None:
        self.wire.end(ConnectionError("the server is away"), told=False)

    async def _watch(self) -> None:
        before, self._looked_at = self._looked_at, time.monotonic()
        if self._looked_at - before < MAX_SILENCE:  # else we stood still, and the reply may be there, not yet read
            self.wire.cut_if_silent(MAX_SILENCE)
        await self._look()
