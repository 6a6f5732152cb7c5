"""Lists for answers of one namespace: ended when their time is over, with what nobody took counted."""

import time
from math import inf
from pathlib import Path
from typing import Any, Final

from common.context import Context
from penstock.atomic import AtomicRead
from penstock.encoding import encoded
from penstock.keys import Keys
from penstock.script import Script
from services.monitor.settings import Settings

_end: Final = Script.read(Path(__file__).parent / "lua" / "end_answers.lua")
PAUSE: Final = 1.0
"""Seconds between two looks at least, so that lists which end one after the other are ended together."""


class Answers:
    """Any number of monitors may end them: the script acts on those whose time is over still."""

    def __init__(self, context: Context[Settings], keys: Keys) -> None:
        self._context, self._keys = context, keys
        self._look_at = 0.0

    async def end(self) -> float:
        """End a batch of lists; return the seconds until the next look, infinite if no list is to end.

        There is a look a second at most, however often the namespace is swept.
        """
        if (wait := self._look_at - time.monotonic()) > 0:
            return wait
        wait = await self._end()
        self._look_at = time.monotonic() + min(wait, PAUSE)
        return wait

    async def _end(self) -> float:
        keys, batch = self._keys, self._context.settings.batch
        async with AtomicRead(self._context.redis) as snapshot:
            snapshot.time()
            snapshot.zrange(encoded(keys.answers), 0, batch, withscores=True)
            (seconds, micros), lists = await snapshot.execute()
        now = seconds + micros / 1e6
        due: list[Any] = [name for name, score in lists[:batch] if score <= now]
        if due:
            await self._context.run(_end, lists=due, **keys.answer_keys)
        if len(due) == batch:
            return 0.0
        following: list[float] = [score for _, score in lists[len(due) :]]
        return max(following[0] - now, PAUSE) if following else inf
