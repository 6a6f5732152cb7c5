"""Group commit: what is asked for while a transaction commits is the next one, with one fsync for all who wait.

The event loop executes the statements, and a thread commits, which is what waits for the disk. A thread that does both
waits for the interpreter's lock twice a statement, 5 ms each if the event loop is busy: that cost a third of the
messages a second (measured with both ends in one process).

What is small (``INLINE_BYTES``) is committed in the event loop while the disk is quick (``QUICK_SECONDS``): to wake a
thread and to be woken takes as long as such a disk. What several tasks share, only if the loop had nothing else to do
when the thread last came back to it. Only the thread copies the log into the file (a checkpoint).
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from penstock.base.errors import WrongCall
from penstock.outbox.errors import Damaged, DiskFull
from penstock.outbox.store import Store

Write = Callable[[Store, list[Any]], object]
Then = Callable[[Any], object]
"""Called with rows once they are on disk."""
SAVE_CLOCK_SECONDS: Final = 5.0
QUICK_SECONDS: Final = 0.001
"""A commit that takes less, on average, may be waited for in the event loop."""
INLINE_BYTES: Final = 131_072
"""Maximum number of bytes that a commit in the event loop writes."""
IDLE_SECONDS: Final = 0.0002
"""An event loop that takes longer to go on after a commit has other work, during which the thread may wait."""
MOST_INLINE: Final = 100
"""Commits in the event loop after one in the thread, which makes checkpoints."""
RETRY_SECONDS: Final = 1.0
"""Between attempts to write what must be written, while the disk is full."""


class _Group:
    """What is written in one transaction: each kind of write with all that it gets, and who waits."""

    __slots__ = ("bytes", "committed", "error", "failed", "thens", "waiting", "writes")

    def __init__(self) -> None:
        self.writes: dict[Write, list[Any]] = {}
        self.waiting: list[tuple[Write, asyncio.Future[None]]] = []
        self.thens: list[tuple[Write, Then, list[Any]]] = []
        self.failed: BaseException | None = None
        """Why the statements of all together could not be executed."""
        self.error: dict[Write, BaseException] = {}
        self.bytes = 0
        self.committed = 0.0


class GroupCommit:
    """Writes to ``store``, for the tasks of one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._next = _Group()
        self._busy = self._soon = self.is_closed = False
        self._queue = SimpleQueue[_Group | None]()
        self._idle = asyncio.Event()
        self._idle.set()
        self._saved = store.clock
        self._seconds = 1.0
        """What a commit takes, on average."""
        self._inline = 0
        self._is_idle = False
        self.counts: Counter[str] = Counter()
        """``commits``, and ``refused`` for those that failed."""
        self.trouble = ""
        """Why the last transaction failed, e.g. as the disk is full, or what is damaged; empty if neither is."""
        self._damage = ""
        self._thread = threading.Thread(target=self._run, name="outbox-store", daemon=True)
        self._thread.start()

    def write(
        self, write: Write, rows: Sequence[Any], then: Then | None = None, size: int = INLINE_BYTES + 1
    ) -> asyncio.Future[None]:
        """Add ``rows`` to the group that comes next; the future is done once they are on disk.

        ``then`` is called with them when they are, in the order of the calls, also if the future was cancelled; once
        for calls in a row that agree in all but the rows. ``size``: about how many bytes of the store change.

        Of a group, each ``write`` is called once with the rows of all. The future raises ``DiskFull`` if they are not
        stored. Writes of different kinds in a group happen in the order of the first of each.
        """
        if self.is_closed:
            raise WrongCall("the outbox is closed")
        group = self._next
        found = group.writes.get(write)
        if found is None:
            group.writes[write] = list(rows)
        else:
            found.extend(rows)
        future = self._loop.create_future()
        group.waiting.append((write, future))
        if then is not None:
            last = group.thens[-1] if group.thens else None
            if last is not None and last[1] == then and last[0] == write:
                last[2].extend(rows)
            else:
                group.thens.append((write, then, list(rows)))
        group.bytes += size
        if not self._busy and not self._soon:
            self._soon = True
            self._loop.call_soon(self._flush)
        return future

    def write_surely(self, write: Write, rows: list[Any], then: Then | None = None) -> None:
        """As ``write``, in the background, and again after a while if the disk is full; ``then`` is called at last."""

        def done(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if isinstance(error, DiskFull):
                if not self.is_closed:
                    self._loop.call_later(RETRY_SECONDS, self.write_surely, write, rows, then)
            elif error is not None:
                self._loop.call_exception_handler({"message": "the store of the outbox failed", "exception": error})

        if not self.is_closed:
            self.write(write, rows, then).add_done_callback(done)

    def note_damage(self, error: Damaged) -> None:
        """Have ``trouble`` say what is damaged, from now on."""
        self._damage = self.trouble = str(error)

    async def close(self) -> None:
        """Write what was asked for and the store's clock, and end the thread; the store stays open."""
        while self._busy or self._soon or self._next.waiting:
            self._idle.clear()
            await self._idle.wait()
        if not self.is_closed:
            self.is_closed = True
            self._queue.put(None)
            await self._loop.run_in_executor(None, self._thread.join)
            with suppress(DiskFull), self._store.transaction():
                self._store.save_clock()
            self._store.require_file()

    def _flush(self) -> None:
        self._soon = False
        if not self._next.waiting:
            self._idle.set()
        elif not self._busy:
            group, self._next = self._next, _Group()
            self._busy = True
            try:
                self._store.begin_transaction()
                with self._store.translated():
                    self._execute(group.writes)
            except BaseException as error:  # noqa: BLE001 - the one that waits raises it
                self._store.roll_back()
                group.failed = error
            if self._may_be_inline(group):
                self._inline += 1
                self._store.checkpoints(False)
                self._commit(group)
                self._settle(group)
            else:
                self._inline = 0
                self._queue.put(group)

    def _may_be_inline(self, group: _Group) -> bool:
        return (
            group.bytes <= INLINE_BYTES
            and (self._is_idle or len(group.waiting) == 1)
            and group.failed is None
            and self._seconds < QUICK_SECONDS
            and self._inline < MOST_INLINE
        )

    def _execute(self, writes: dict[Write, list[Any]]) -> None:
        for write, rows in writes.items():
            write(self._store, rows)
        if self._store.clock - self._saved > SAVE_CLOCK_SECONDS:
            self._store.save_clock()
            self._saved = self._store.clock

    def _run(self) -> None:
        while (group := self._queue.get()) is not None:
            self._store.checkpoints(True)
            self._commit(group)
            group.committed = time.perf_counter()
            try:
                self._loop.call_soon_threadsafe(self._done, group)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    def _commit(self, group: _Group) -> None:
        try:
            if group.failed is not None:
                raise group.failed
            begun = time.perf_counter()
            self._store.commit()
            self._seconds += (time.perf_counter() - begun - self._seconds) / 4
        except BaseException as error:  # noqa: BLE001 - the one that waits raises it
            self._refused(error)
            # What needs no room, e.g. to remove, is not refused with what does.
            for write, rows in group.writes.items():
                self._commit_alone(group, write, rows)
        else:
            self.counts["commits"] += 1
            self.trouble = self._damage

    def _refused(self, error: BaseException) -> None:
        self.counts["refused"] += 1
        if isinstance(error, Damaged):
            self.note_damage(error)
        elif isinstance(error, DiskFull):
            self.trouble = str(error)

    def _commit_alone(self, group: _Group, write: Write, rows: list[Any]) -> None:
        try:
            with self._store.transaction():
                write(self._store, rows)
        except BaseException as error:  # noqa: BLE001 - the one that waits raises it
            self._refused(error)
            group.error[write] = error
        else:
            self.counts["commits"] += 1
            if not group.error:
                self.trouble = self._damage

    def _done(self, group: _Group) -> None:
        self._is_idle = time.perf_counter() - group.committed < IDLE_SECONDS
        self._settle(group)

    def _settle(self, group: _Group) -> None:
        self._busy = False
        errors = group.error
        for write, then, rows in group.thens:
            if write not in errors:
                then(rows)
        for write, future in group.waiting:
            error = errors.get(write) if errors else None
            if future.cancelled():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(_copy_of(error))
        # Those who wake now and write again are in the next group, too.
        self._soon = True
        self._loop.call_soon(self._flush)


def report(task: asyncio.Task[None]) -> None:
    """Tell the event loop of an error that ended ``task``, which runs for as long as the outbox is open."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        task.get_loop().call_exception_handler({"message": f"{task.get_name()} has ended", "exception": error})


def _copy_of(error: BaseException) -> BaseException:
    """Return one for each who waits: an exception that several tasks raise collects the traceback of all."""
    return type(error)(*error.args) if isinstance(error, DiskFull) else error


__all__ = ["GroupCommit", "Write", "report"]
