"""Expiry of the reply lists of one namespace, which counts the answers that nobody took."""

import time
from math import inf
from pathlib import Path
from typing import Any, Final

from common.context import Context
from penstock.base.encoding import encoded
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicRead
from penstock.core.script import Script
from services.monitor.settings import Settings

_expire: Final = Script.read(Path(__file__).parent / "lua" / "end_answers.lua")
MIN_INTERVAL_SECONDS: Final = 1.0
"""Shortest time between two checks, so that lists which expire one after the other are closed together."""


class ReplyListExpiry:
    """Closes expired reply lists. Any number of monitors may run it: the script checks the time again."""

    def __init__(self, context: Context[Settings], keys: Keys) -> None:
        self._context, self._keys = context, keys
        self._check_at = 0.0

    async def expire(self) -> float:
        """Close a batch of expired lists; return the seconds until the next check, infinite without reply lists.

        Check at most once a second, however often the namespace is swept.
        """
        if (wait := self._check_at - time.monotonic()) > 0:
            return wait
        wait = await self._expire()
        self._check_at = time.monotonic() + min(wait, MIN_INTERVAL_SECONDS)
        return wait

    async def _expire(self) -> float:
        keys, batch = self._keys, self._context.settings.batch
        async with AtomicRead(self._context.redis) as snapshot:
            snapshot.time()
            snapshot.zrange(encoded(keys.answers), 0, batch, withscores=True)
            (seconds, micros), lists = await snapshot.execute()
        now = seconds + micros / 1e6
        due: list[Any] = [name for name, score in lists[:batch] if score <= now]
        if due:
            await self._context.run(_expire, lists=due, **keys.answer_keys)
        if len(due) == batch:
            return 0.0
        following: list[float] = [score for _, score in lists[len(due) :]]
        return max(following[0] - now, MIN_INTERVAL_SECONDS) if following else inf
