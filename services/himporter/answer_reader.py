"""The reader of a list of answers: it looks, hands them on, and only then removes them."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from redis.exceptions import ConnectionError, RedisError

from penstock.core.link import Outage, again, is_full
from penstock.core.raw_connection import Command, pack
from penstock.core.wire import Reply, Wire

WAIT_SECONDS: Final = 5
MAX_SILENCE: Final = 3.0
"""Seconds by which a reply may be later than the wait before the connection counts as lost."""
MOST: Final = 500
BYTES: Final = 1_048_576
"""Bytes of answers that one look aims at."""
LARGE: Final = 65_536
"""Bytes of answers after which a look does not wait: the server copies what a wait returns within the list."""
FULL_POLL_SECONDS: Final = 0.05


class AnswerReader:
    """Reads the list ``name`` until cancelled; ``handle`` gets answers, the oldest first.

    A full server refuses to wait: then look again and again. What was handed on and not yet removed when a connection
    ends is handed on again.
    """

    def __init__(self, url: str, name: str, handle: Callable[[Sequence[bytes]], None]) -> None:
        self.name = name
        self.trouble: Exception | None = None
        """Why nothing can be read; None while all is well."""
        self._handle = handle
        self._wire = Wire(url, "penstock-himporter-answers", self._fail)
        self._ended: asyncio.Future[None]
        """Why the connection is of no use any more."""
        self._most = 64
        self._handled = 0
        """How many answers at the tail were handed on and are to be removed."""
        self._is_full = False
        self._poll: asyncio.TimerHandle | None = None
        self._outage = Outage(None)

    async def run(self) -> None:
        """Read for ever; wait out what passes by itself."""
        try:
            await again(self._read, self._outage, lasts=_lasts, mend=self._mend)
        finally:
            await self._wire.close()

    async def _mend(self, error: Exception, _: bool) -> None:
        self.trouble = error if isinstance(error, RedisError) else ConnectionError(str(error))
        self._wire.end(ConnectionError(str(error)), told=False)

    def cut_if_silent(self) -> None:
        """End a connection on which a reply is overdue."""
        self._wire.cut_if_silent(WAIT_SECONDS + MAX_SILENCE)

    async def _read(self) -> None:
        """Connect, and read until something fails."""
        self._ended = asyncio.get_running_loop().create_future()
        await self._wire.open()
        self.trouble, self._handled = None, 0
        try:
            self._wait()
            await self._ended
        finally:
            if self._poll:
                self._poll.cancel()

    def _fail(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    def _wait(self) -> None:
        """Wait for answers, and take them."""
        oldest = Reply()
        self._ask(
            [
                (("BLMOVE", self.name, self.name, "RIGHT", "RIGHT", WAIT_SECONDS), oldest),
                (("LRANGE", self.name, -self._most, -2), Reply(partial(self._waited, oldest))),
            ]
        )

    def _look(self) -> None:
        """Take the answers that are there."""
        self._ask([(("LRANGE", self.name, -self._most, -1), Reply(self._looked))])

    def _ask(self, asked: list[tuple[Command, Reply]]) -> None:
        """Remove what was handed on, and ask for more."""
        if not self._wire.is_open:
            return  # it says why
        if self._handled:
            asked = [(("LTRIM", self.name, 0, -(self._handled + 1)), Reply(self._trimmed)), *asked]
        self._wire.send(pack([command for command, _ in asked]), *(reply for _, reply in asked))

    def _trimmed(self, reply: Reply) -> None:
        if reply.error:
            self._fail(reply.error)

    def _waited(self, oldest: Reply, more: Reply) -> None:
        if oldest.error and is_full(oldest.error):
            self._handled, self._is_full = 0, True
            self._look()
        elif error := oldest.error or more.error:
            self._fail(error)
        else:  # without the oldest one, those behind it must wait
            self._take([] if oldest.value() is None else [oldest.value(), *more.value()[::-1]])

    def _looked(self, reply: Reply) -> None:
        if reply.error:
            self._fail(reply.error)
        else:
            self._take(reply.value()[::-1])

    def _take(self, answers: list[bytes]) -> None:
        """Hand ``answers`` on, and ask for more."""
        try:
            self._handle(answers)
        except Exception as error:  # noqa: BLE001  # ``run`` raises it
            self._fail(error)
            return
        self._outage.over()
        self._handled, size = len(answers), sum(map(len, answers))
        was_full, self._is_full = self._is_full, False
        if answers:
            self._most = max(1, min(MOST, 2 * self._most if size < BYTES else self._most * BYTES // size))
        if size >= LARGE:
            self._look()
        elif was_full and not answers:
            self._poll = asyncio.get_running_loop().call_later(FULL_POLL_SECONDS, self._wait)
        else:
            self._wait()


def _lasts(error: Exception) -> bool:
    return not isinstance(error, RedisError | OSError)
