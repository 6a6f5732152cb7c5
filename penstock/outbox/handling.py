"""Runs handlers of incoming messages, and removes each message when its handlers have returned.

What begins is noted on disk before its handlers run, for a batch in one write: so a message that kills the process is
a dead letter after some starts. Those that had begun when the process ended are suspects: of them, some run together,
and if the process ends again, each of those runs alone. An attempt that a crash ends counts for one that was alone.
Nothing of this is needed where messages are tried for ever.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Final

from penstock.base.log import Log, describe
from penstock.core.backoff import Backoff
from penstock.core.runner import Runner
from penstock.core.tasks import Tasks
from penstock.outbox.commits import GroupCommit
from penstock.outbox.errors import Damaged, DiskFull
from penstock.outbox.handlers import Handlers
from penstock.outbox.message import Message
from penstock.outbox.store import Arrived, Failed, Store, Waiting
from penstock.outbox.upcoming import Upcoming

MOST_BEGUN: Final = 500
QUICK_SECONDS: Final = 0.05
"""A batch whose handlers take less makes the next one larger, one that takes longer smaller."""
RANGE_BYTES: Final = 4096
"""Of the store that change, at most, for a range of messages that begin."""
RETRY_WRITE_SECONDS: Final = 1.0
ERROR_CHARACTERS: Final = 2000
log = Log("outbox")


class _Run:
    """Messages whose attempt was counted in one write."""

    __slots__ = ("left", "ranges", "since")

    def __init__(self, messages: Sequence[Waiting]) -> None:
        self.left = len(messages)
        self.ranges = list[tuple[int, int, bool]]()
        self.since = time.monotonic()
        alone = len(messages) == 1
        for each in messages:
            if self.ranges and self.ranges[-1][1] == each.seq - 1:
                self.ranges[-1] = (self.ranges[-1][0], each.seq, alone)
            else:
                self.ranges.append((each.seq, each.seq, alone))


class _Attempt:
    """A message that has begun."""

    __slots__ = ("run", "waiting")

    def __init__(self, waiting: Waiting, run: _Run) -> None:
        self.waiting, self.run = waiting, run


class Handling:
    """Calls ``handlers``, at most ``concurrency`` at once; a message fails for good after ``attempts``, or never."""

    def __init__(
        self,
        reader: Store,
        commits: GroupCommit,
        attempts: int | None,
        backoff: Backoff,
        concurrency: int,
        handlers: Handlers,
        finished: Callable[[], None],
    ) -> None:
        self._reader, self._commits, self._attempts, self._backoff = reader, commits, attempts, backoff
        self._concurrency, self._has_finished = concurrency, finished
        self._handlers = handlers
        self._upcoming = Upcoming(reader, commits, handlers)
        self._pool = Runner[_Attempt](self._run_one, concurrency, log, changed=self._changed)
        self._batch = concurrency
        self._finished, self._failed, self._ended = list[int](), list[Failed](), list[tuple[int, int, bool]]()
        self._is_flushing = self._is_closed = False
        self._tasks, self._loop = Tasks(log), asyncio.get_running_loop()

    def start(self) -> None:
        self._tasks.begin(self._begin_all())

    def arrived(self, messages: Sequence[Arrived]) -> None:
        """Take messages that were just stored."""
        self._upcoming.arrived(messages)

    @property
    def is_behind(self) -> bool:
        """Whether more waits for handlers than is in memory."""
        return self._upcoming.is_behind

    def start_again(self) -> None:
        """Look at all messages again: a handler was added."""
        self._upcoming.start_again()

    async def close(self, seconds: float) -> None:
        """Wait ``seconds`` for handlers that run, then cancel them: they run again at the next start."""
        self._is_closed = self._pool.is_paused = True
        for attempt in self._pool.take_back():
            self._end(attempt)
        self._flush()
        self._upcoming.close()
        self._upcoming.news.set()
        try:
            async with asyncio.timeout(seconds):
                await self._pool.idle.wait()
        except TimeoutError:
            log.warning("handlers are cancelled: they run again at the next start", count=len(self._pool.running))
        if self._tasks:  # what is being noted as begun is noted as ended
            await asyncio.wait(self._tasks, timeout=seconds)
        await self._tasks.cancel()
        await self._pool.close()
        self._flush()

    # ---- what begins

    async def _begin_all(self) -> None:
        """Begin what may, until the end, or until what is read is damaged."""
        try:
            with self._reader.translated():
                await self._begin_each()
        except Damaged as error:
            log.error("no handler runs any more", reason=str(error))
            self._commits.note_damage(error)

    async def _begin_each(self) -> None:
        upcoming = self._upcoming
        while not self._is_closed:
            upcoming.news.clear()
            if len(self._pool.waiting) >= self._batch:
                await upcoming.news.wait()
            elif batches := upcoming.next(self._batch):
                await self._begin(batches)
            else:
                await upcoming.wait()

    async def _begin(self, batches: Sequence[list[Waiting]]) -> None:
        """Note on disk that each batch begins, then let its handlers run."""
        runs = list[_Run]()
        begun = list[_Attempt]()
        for batch in batches:
            lost = [each for each in batch if self._is_last(each.attempts)]
            for each in lost:
                self._fail(each, each.attempts, each.error)
                self._flush()
            left = [each for each in batch if each not in lost] if lost else batch
            if left:
                runs.append(_Run(left))
                begun += [_Attempt(each, runs[-1]) for each in left]
        if not runs:
            return
        while self._attempts is not None and not self._is_closed:
            try:
                ranges = [each for run in runs for each in run.ranges]
                await self._commits.write(Store.begin, ranges, size=RANGE_BYTES * len(ranges))
                break
            except DiskFull as error:
                log.error("cannot count attempts: no handler runs", reason=str(error))
                await asyncio.sleep(RETRY_WRITE_SECONDS)
        if self._is_closed:
            for attempt in begun:
                self._end(attempt)
        else:
            self._pool.add(begun)

    # ---- handlers

    async def _run_one(self, attempt: "_Attempt") -> None:
        """Have one message handled; end by its cancellation alone."""
        waiting = attempt.waiting
        try:
            if handlers := self._handlers.of(waiting.keys):
                message = Message(waiting)
                for handler in handlers:
                    result = handler(message)
                    if result is not None and isawaitable(result):
                        await result
                self._finished.append(waiting.seq)
            else:
                self._upcoming.put_back(waiting.seq)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and self._is_cancelled():
                raise
            self._failed_with(error, waiting)
        finally:
            self._end(attempt)

    def _changed(self) -> None:
        """Begin more if there is room."""
        if len(self._pool.waiting) < self._batch:
            self._upcoming.news.set()

    def _is_cancelled(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def _is_last(self, attempts: int) -> bool:
        return self._attempts is not None and attempts >= self._attempts

    def _failed_with(self, error: BaseException, waiting: Waiting) -> None:
        """Log the traceback of an error that is not that of the attempt before, else a line."""
        reason, which = describe(error)[:ERROR_CHARACTERS], str(Message(waiting).id)
        if reason == waiting.error:
            log.warning("a handler failed", id=which, attempts=waiting.attempts + 1, reason=reason)
        else:
            log.warning("a handler failed", error, id=which, attempts=waiting.attempts + 1)
        self._fail(waiting, waiting.attempts + 1, reason)

    def _fail(self, waiting: Waiting, attempts: int, error: str) -> None:
        if self._is_last(attempts):
            log.error("a message is a dead letter", id=str(Message(waiting).id), attempts=attempts)
            self._failed.append(Failed(waiting.seq, attempts, None, error))
        else:
            due = self._reader.clock + self._backoff.delay_after(attempts)
            self._failed.append(Failed(waiting.seq, attempts, due, error))

    def _end(self, attempt: _Attempt) -> None:
        """Note that an attempt has ended, and how is in ``_finished`` or ``_failed``; in neither if it did not run."""
        run = attempt.run
        run.left -= 1
        if not run.left:
            if self._attempts is not None:
                self._ended += run.ranges
            quick = time.monotonic() - run.since < QUICK_SECONDS
            self._batch = min(MOST_BEGUN, 2 * self._batch) if quick else max(self._concurrency, self._batch // 2)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what has ended since the last flush."""
        self._is_flushing = False
        finished, self._finished = self._finished, []
        failed, self._failed = self._failed, []
        ended, self._ended = self._ended, []
        if finished:
            self._commits.write_surely(Store.finish, finished, self._removed)
        if failed:
            self._commits.write_surely(Store.fail, failed, self._noted)
        if ended:
            self._commits.write_surely(Store.ended, ended)

    def _removed(self, seqs: Sequence[int]) -> None:
        self._upcoming.removed(seqs)
        self._has_finished()

    def _noted(self, failed: Sequence[Failed]) -> None:
        self._upcoming.failed(failed)
        self._has_finished()
