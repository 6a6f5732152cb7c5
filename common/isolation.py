"""Going on after a script has failed by a fault that nobody foresaw: with one message at a time."""

from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from common.wired import Wired
from penstock.core.link import BACKOFF, describe

MAX_FAILURES: Final = 3
"""How often a script may fail with a message that is alone, before that message becomes a dead letter."""


class Isolation:
    """Which of the oldest messages go one at a time, since a script has failed with one of them and written nothing."""

    def __init__(self, run: Wired[Any], limit: int = MAX_FAILURES) -> None:
        self._run, self._limit = run, limit
        self.alone = 0
        """How many of the oldest messages go one at a time."""
        self.failures = 0
        """How often a script has failed with the oldest message alone."""

    @property
    def is_poison(self) -> bool:
        """Whether the oldest message has failed so often that it must become a dead letter."""
        return self.failures >= self._limit

    def passed(self, messages: int) -> None:
        """Note that the oldest ``messages`` messages are settled."""
        self.alone, self.failures = max(self.alone - messages, 0), 0

    async def failed(self, error: ResponseError, messages: Sequence[bytes]) -> None:
        """Log that a script has failed with the oldest ``messages``; pause if it goes on with a message by itself."""
        log, reason = self._run.log, describe(error)
        if len(messages) > 1:
            log.error("a script failed", reason=reason, messages=len(messages))
            self.alone = max(self.alone, len(messages))
            return
        self.alone, self.failures = max(self.alone, 1), self.failures + 1
        log.error("a script failed", reason=reason, message=messages[0][:200])
        if not self.is_poison:
            await self._run.pause(BACKOFF.delay_after(self.failures))
