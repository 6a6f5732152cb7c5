"""Runs a consumer: reads jobs from its servers, has them done, and settles them."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError, Unavailable, Unreadable, WrongCall
from penstock.base.log import Log
from penstock.core.connection import connect
from penstock.core.runner import Runner
from penstock.core.watchdog import NAME, Watchdog
from penstock.jobs.attempt import Attempt
from penstock.jobs.consumer import Consumer
from penstock.jobs.deadlines import Deadlines
from penstock.jobs.errors import DeadlineTimeout, as_error
from penstock.jobs.errors import Final as FinalError
from penstock.jobs.job import packed_value
from penstock.jobs.processes import Processes
from penstock.jobs.producer import DISTRIBUTED
from penstock.jobs.reader import Reader
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.jobs.ledger import Ledger

MAX_DEADLINE: Final = 1e8
"""Seconds from which a deadline is none."""
SHORT_SECONDS: Final = 0.02
"""While attempts take less than this, jobs are read ahead."""
WAIT_SECONDS: Final = 0.2
"""How long a job that was read ahead waits before it goes to others."""
AVERAGED: Final = 50
"""About how many attempts count for how long one takes."""
RENEW_SHARE: Final = 3
"""How often an attempt is renewed in the time after which others claim it."""
_log: Final = Log("penstock.jobs")


class Worker:
    """One run of a consumer."""

    def __init__(self, servers: Servers, consumer: Consumer, ledger: "Ledger | None" = None) -> None:
        if not consumer.options.handlers:
            raise WrongCall(f"group {consumer.group}: no stream has a processor: expected @consumer.job(stream)")
        self.servers, self.consumer, self.options = servers, consumer, consumer.options
        self.ledger, self.stopping = ledger, False
        self.runner = Runner[Attempt | Batch](
            self._do, self.options.concurrency, _log,
            counts=_counts, settled=self._settled, changed=self._changed,
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._deadlines = {
            name: Deadlines(handler.deadline)
            for name, handler in self.options.handlers.items()
            if handler.deadline < MAX_DEADLINE
        }
        self._seconds = SHORT_SECONDS
        """About how long an attempt takes."""
        self._looks = False
        self.looks_when_free = False
        """Whether something waits in vain to be tried again while there is no room."""
        self._room, self._ended = asyncio.Event(), asyncio.Event()
        self._room.set()
        route = self.options.route
        nodes = servers.nodes if route is DISTRIBUTED else [servers.node(str(route))]
        alone = [[name] for name, handler in self.options.handlers.items() if handler.limit or handler.size]
        others = [name for name, handler in self.options.handlers.items() if not handler.limit and not handler.size]
        together = [*alone, others] if others else alone
        self.readers = [Reader(self, node, streams) for node in nodes for streams in together]

    @property
    def running(self) -> int:
        """Return how many jobs run."""
        return len(attempts_of(self.runner.running))

    @property
    def free(self) -> int:
        """Return how many more jobs may begin."""
        return self.runner.free

    def room(self, *, ahead: bool) -> int:
        """Return how many more jobs may be read; with ``ahead`` as many again as may run, while jobs are short."""
        if self.runner.holds_back:
            return 0
        more = self.options.concurrency if ahead and self._seconds < SHORT_SECONDS else 0
        return max(0, self.options.concurrency + more - self.runner.busy)

    async def run(self) -> None:
        """Read and work until ``stop``; then wait for what is in hand, and hand back the rest."""
        self.consumer.joined(self)
        self.runner.is_paused = self.consumer.is_paused
        renewing = [asyncio.create_task(self._renew(reader)) for reader in self.readers]
        watchdog = Watchdog(_log, self.options.claim_after / RENEW_SHARE, self._runs_now, self._renew_elsewhere)
        watchdog.start()
        try:
            await asyncio.gather(*(reader.run() for reader in self.readers))
            await self._finish()
        finally:
            self.stopping = True
            self.hand_back()
            self._give_up_all()
            watchdog.stop()
            await self.runner.idle.wait()
            self.hand_back()
            await asyncio.gather(*(reader.settler.finish() for reader in self.readers))
            for task in renewing:
                task.cancel()
            await asyncio.gather(*renewing, return_exceptions=True)
            await asyncio.gather(*(reader.close() for reader in self.readers))
            await asyncio.gather(*(processes.close() for processes in self.consumer.processes))
            await self.runner.close()
            self.consumer.left(self)
            self._ended.set()

    def hand_back(self, *, suspects: bool = True) -> None:
        """Hand back what has not begun."""
        for attempt in attempts_of(self.runner.take_back(suspects=suspects)):
            attempt._reader.release(attempt)
            attempt._reader.settler.settle(attempt, "back")

    async def _finish(self) -> None:
        self.hand_back()
        try:
            async with asyncio.timeout(self.options.stop_timeout):
                await self.runner.idle.wait()
        except TimeoutError:
            what = {"group": self.consumer.group, "many": self.running, "seconds": self.options.stop_timeout}
            _log.warning("jobs have not ended in time: coroutines are cancelled, threads are waited for", **what)
            self._give_up_all()
            await self.runner.idle.wait()

    def _give_up_all(self) -> None:
        for unit, task in tuple(self.runner.running.items()):
            if isinstance(unit, Batch):
                for attempt in unit.attempts:
                    attempt._give_up("stop")
                task.cancel()
            else:
                unit._give_up("stop")

    def stop(self) -> None:
        """End ``run``."""
        if not self.stopping:
            self.stopping = True
            self._room.set()
            self.consumer.play()
            for reader in self.readers:
                reader.wake()

    async def ended(self) -> None:
        """Return once ``run`` has ended."""
        await self._ended.wait()

    async def idle(self) -> None:
        """Return once nothing runs."""
        await self.runner.idle.wait()

    def note_node(self, node: "Instance") -> None:
        """Note that ``node`` has come or gone."""
        for reader in self.readers:
            if reader.node is node:
                reader.note()

    async def has_room(self, *, ahead: bool) -> None:
        """Return once a job may be read, or all shall stop."""
        while not self.stopping:
            await self.consumer.may_begin()
            if self.room(ahead=ahead):
                return
            self._room.clear()
            await self._room.wait()

    # Attempts

    def begin(self, reader: "Reader", attempts: Sequence[Attempt], *, suspects: bool = False) -> None:
        """Begin attempts, now or as soon as there is room."""
        for attempt in attempts:
            attempt._reader = reader
        units: Sequence[Attempt | Batch] = attempts
        if size := reader.size:
            units = [Batch(attempts[first : first + size]) for first in range(0, len(attempts), size)]
        self.runner.add(units, suspects=suspects)
        if self.consumer.is_paused:
            self.hand_back()
        elif self.runner.waiting and not self._looks:
            self._looks = True
            self._loop.call_later(WAIT_SECONDS, self._look)

    def _look(self) -> None:
        """Hand back what waits for longer than it should: another consumer may have room."""
        self._looks = False
        if waiting := attempts_of(self.runner.waiting):
            if time.monotonic() - waiting[0]._begun > WAIT_SECONDS / 2:
                self._seconds = SHORT_SECONDS
                self.hand_back(suspects=False)
            else:
                self._looks = True
                self._loop.call_later(WAIT_SECONDS, self._look)

    async def _do(self, unit: "Attempt | Batch") -> None:
        await (self._work_batch(unit) if isinstance(unit, Batch) else self._work(unit))

    async def _work_batch(self, batch: "Batch") -> None:
        attempts, reader = [each for each in batch.attempts if each.why is None], batch.attempts[0]._reader
        if not attempts:  # they were lost or cancelled while they waited
            return
        handler = self.options.handlers[attempts[0].stream]
        failure: BaseException | None = None
        try:
            async with asyncio.timeout(None if handler.deadline > MAX_DEADLINE else handler.deadline) as deadline:
                await handler.call(attempts)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it ends this batch only
            failure = error
            if deadline.expired():
                failure = DeadlineTimeout(f"the processor took longer than its deadline, {handler.deadline:g} s")
        is_stranded = any(attempt._is_stranded for attempt in attempts)
        for attempt in attempts:
            attempt._is_stranded = is_stranded
            error_ = attempt._failure or failure
            if error_ is not None:
                self._failed(reader, attempt, error_)
            elif attempt.why is None:
                reader.settler.settle(attempt, "done")

    def _changed(self) -> None:
        """Take note that there may be room."""
        self._room.set()
        if self.looks_when_free and self.free:
            self.looks_when_free = False
            self.tend()

    async def _settled(self) -> None:
        """Return once what has ended is settled."""
        for reader in self.readers:
            await reader.settler.idle()
        self.tend()

    def resume(self) -> None:
        """Begin and claim what there is room for."""
        self.runner.is_paused = self.consumer.is_paused
        self.runner.resume()
        self._changed()

    def tend(self) -> None:
        """Look at once after what waits."""
        for reader in self.readers:
            reader.tender.within(0)

    async def _work(self, attempt: Attempt) -> None:
        handler, begun, reader = self.options.handlers[attempt.stream], time.monotonic(), attempt._reader
        deadlines = self._deadlines.get(attempt.stream)
        attempt._task = asyncio.current_task()
        try:
            if isinstance(handler.call, Processes):
                await handler.call.prepare(attempt)
            if deadlines:
                deadlines.add(attempt)
            result = await handler.call(attempt)
            kept = None if handler.result is None else (handler.result, packed_value(handler.result, result))
            if kept and attempt.why is None and attempt._node is not reader.node:
                await attempt.set(*kept).push()
                kept = None
            if attempt.why is None:
                reader.settler.settle(attempt, "done", result=kept)
                if reader.without_values:
                    reader.without_values.discard(attempt._node)
            else:
                self._failed(reader, attempt, asyncio.CancelledError())  # it has not heard of its cancellation
        except BaseException as error:  # noqa: BLE001  # whatever it is, it ends this attempt only
            self._failed(reader, attempt, error)
        finally:
            self._seconds += (time.monotonic() - begun - self._seconds) / AVERAGED
            if deadlines:
                deadlines.discard(attempt)
            attempt._task = None
            reader.release(attempt)
            if len(self.runner.running) == 1:
                reader.settler.flush()

    def _failed(self, reader: "Reader", attempt: Attempt, error: BaseException) -> None:
        """Settle an attempt that was given up, or whose processor has raised."""
        handler, final = self.options.handlers[attempt.stream], isinstance(error, FinalError)
        if attempt.why in ("lost", "cancelled"):
            return  # others have it, or nobody
        if attempt.why == "stop" or (attempt.why is None and is_cancelled(error)):
            reader.settler.settle(attempt, "back")
            return
        if attempt.why == "deadline":
            error = DeadlineTimeout(f"the processor took longer than its deadline, {handler.deadline:g} s")
        if attempt._is_stranded and isinstance(error, Unavailable | DeadlineTimeout):
            reader.hand_back_for_a_while(attempt, str(error))
            return
        if final or attempt.number >= self.options.attempts or isinstance(error, Unreadable):
            reader.settler.bury(attempt, as_error(error))
        else:
            reader.settler.settle(attempt, "again", as_error(error), self.options.backoff.delay_after(attempt.number))
        where = {"stream": attempt.stream, "group": attempt.group, "job": attempt.id, "attempt": attempt.number}
        if not isinstance(error, PenstockError):
            _log.warning("a processor has failed", error, **where)
        elif not final:  # which is no fault of it
            _log.warning("a processor has failed", **where, reason=f"{type(error).__name__}: {error}")

    async def _renew(self, reader: "Reader") -> None:
        """Keep what is in hand, running or not, from being claimed; give up what others have.

        Of each server by itself: a call to one that is away lasts.
        """
        while True:
            await asyncio.sleep(self.options.claim_after / RENEW_SHARE)
            await reader.renew(self.held_by(reader))

    def _runs_now(self) -> dict[str, Any]:
        """Return stream and job of the processor that runs."""
        task = asyncio.current_task(self._loop)
        for attempt in attempts_of([*self.runner.running]):
            if attempt._task is not None and attempt._task is task:
                return {"stream": attempt.stream, "group": attempt.group, "job": attempt.id}
        return {"group": self.consumer.group, "jobs": len(self.runner.running)}

    async def _renew_elsewhere(self) -> None:
        """Renew all whose deadline is not over, from another event loop."""
        for reader in self.readers:
            now, handlers = time.monotonic(), self.options.handlers
            attempts = [each for each in self.held_by(reader) if now - each._begun < handlers[each.stream].deadline]
            if attempts:
                async with connect(reader.node.url, name=NAME) as redis:
                    await reader.renew_through(redis, attempts)

    def held_by(self, reader: "Reader") -> list[Attempt]:
        """Return what ``reader`` has read and not settled: running, ended, or not begun."""
        runner = self.runner
        units = [*runner.running, *runner.suspects, *runner.waiting]
        return [*(each for each in attempts_of(units) if each._reader is reader), *reader.settler.waiting()]

    def goes_on(self, reader: "Reader", claimed: Attempt) -> bool:
        """Return whether a job that was claimed is in hand already: then that attempt has the number of the new one.

        So it is after this process stood still, or had no server, for so long that it claims what it has itself.
        """
        for attempt in self.held_by(reader):
            if (attempt.entry, attempt.stream, attempt.why) == (claimed.entry, claimed.stream, None):
                attempt.number = claimed.number
                return True
        return False

    def cancel(self, reader: "Reader", entry: bytes, stream: str) -> None:
        """Give up a job that somebody has cancelled: its entry is gone."""
        for attempt in self.held_by(reader):
            if (attempt.entry, attempt.stream) == (entry, stream):
                attempt._give_up("cancelled")
                self._forget(reader, attempt)

    def lost(self, reader: "Reader", attempt: Attempt) -> None:
        """Give up an attempt that is another consumer's by now."""
        attempt._give_up("lost")
        self._forget(reader, attempt)
        where: dict[str, Any] = {"stream": attempt.stream, "group": attempt.group, "job": attempt.id}
        _log.warning("another consumer has the job: it was not renewed in time", **where, server=reader.node.address)

    def _forget(self, reader: "Reader", attempt: Attempt) -> None:
        """Do not begin an attempt that waits."""
        if self.runner.forget(attempt):
            reader.release(attempt)
            self._room.set()
        self.runner.resume()  # suspects may wait for it


class Batch:
    """Attempts that a processor gets together; they count as one for ``concurrency``."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = [*attempts]
        for attempt in attempts:
            attempt._batch = self


def _counts(unit: Attempt | Batch) -> bool:
    """Return whether a job of ``unit`` was not given up."""
    return any(attempt.why is None for attempt in attempts_of([unit]))


def attempts_of(units: Iterable[Attempt | Batch]) -> list[Attempt]:
    """Return all attempts."""
    return [each for unit in units for each in (unit.attempts if isinstance(unit, Batch) else [unit])]


def is_cancelled(error: BaseException) -> bool:
    """Return whether the running task is cancelled, which is not so if it has raised the error by itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
