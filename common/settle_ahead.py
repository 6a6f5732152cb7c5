"""Batches of a backlog, two at a time: the server settles one and reads another while the caller works on a third."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from redis.exceptions import ResponseError

from common.in_flight import ArrivalCounter
from common.settle import HOLD, SETTLE, Batch, Settling, Take
from common.transaction import REFUSED
from common.wired import Wired
from penstock.base.errors import WrongCall
from penstock.core.script import Script


class SettlingAhead(Settling):
    """Like ``Settling``, but ``settle`` does not wait for the server, and the next batch is read before it.

    A batch is settled only if it is the oldest of what the pending list holds, so the server does nothing if the batch
    before was not settled. Then all that was read ahead is forgotten, and read again.
    """

    def __init__(self, run: Wired[Any], take: Take, count: Callable[[ArrivalCounter | None], Awaitable[None]]) -> None:
        super().__init__(run, take, count)
        self._settles: Batch | None = None
        """The batch that the server settles at present."""
        self._reads = False
        """Whether it reads one, too."""
        self._ahead: Batch | None = None
        """The batch that it has read last."""
        self._is_all = False
        """Whether the last batch was all that was pending."""
        self._pending_count = 0
        """How many messages the pending list holds once the server has done what is under way."""

    async def batches(self, most: int, size: int) -> AsyncIterator[Batch]:
        """See ``Context.batches``."""
        self._check_bound(most)
        run = self._run
        while True:
            batch = self._ahead or await self._oldest(most, size)
            self._ahead, self._is_all = None, batch is not None and len(batch) == batch.held
            if batch:
                if run.running and 2 * len(batch) >= most > 1:
                    await run.start(HOLD, **self._sought(most, size, skip=len(batch)))
                    self._reads = True
                self._in_hand = batch
                yield batch
                if self._in_hand is batch:
                    raise WrongCall("a batch was not settled: call settle before you ask for the next one")
            if not (run.running or self._ahead):
                await self._finish()
                return

    async def _oldest(self, most: int, size: int) -> Batch | None:
        """Read the oldest messages, once nothing is under way; wait for some if the last batch was all that there was.

        The server waits while it still settles that batch, so that no round trip lies between.
        """
        run = self._run
        if run.durability.commands or not self._settles:
            await self._finish()
        if self._is_all and run.running:
            batch = await self._wait(most, size, self._finish if self._settles else None)
        else:
            await self._finish()
            batch = await self._take(most, size)
        self._pending_count = batch.held if batch else 0
        return batch

    async def _settle(self, batch: Batch, named: dict[str, Any]) -> bool:
        """Return True once the server has been asked to settle the batch."""
        self._in_hand = None
        if not await self._finish():
            return False
        await self._run.start(SETTLE, **{**named, "held": self._pending_count})
        self._settles = batch
        return True

    async def settle_by(self, script: Script, batch: Batch, named: Mapping[str, Any], *, isolates: bool) -> Any:
        """Raise ``WrongCall``: what is under way was read on the assumption that ``settle_batch.lua`` comes next."""
        raise WrongCall("settle_by takes a batch that was read without ahead=True")

    async def _finish(self) -> bool:
        """Receive what is under way; return False if a batch was not settled."""
        settles, reads = self._settles, self._reads
        self._settles, self._reads = None, False
        done, failure = True, None
        if settles:
            try:
                done = await self._run.outcome(SETTLE) == 1
            except ResponseError as error:
                self._require_isolation(error)
                done, failure = False, error
            self._pending_count -= len(settles)
        if reads and (reply := await self._run.outcome(HOLD, recovers=False)) is not REFUSED:
            found = self._read(reply)
            self._pending_count, self._ahead = found.held, found or None
        if not done:
            self._ahead, self._is_all = None, False
        if settles and failure:
            await self._isolate(settles, failure)
        elif settles and done:
            self._isolation.passed(len(settles))
        return done
