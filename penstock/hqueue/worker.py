"""One worker of a queue: fetch tasks, hand them out, keep them by heartbeats, acknowledge them, give back the rest."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from penstock.base.errors import PenstockError, Unavailable, WrongCall
from penstock.base.log import Log
from penstock.core.link import BACKOFF
from penstock.core.pace import Pace
from penstock.core.tasks import begin
from penstock.hqueue.acks import Acks
from penstock.hqueue.answers import Fetched
from penstock.hqueue.errors import LOST, LeaseLost
from penstock.hqueue.task import Outcome, TaskInHand

if TYPE_CHECKING:
    from penstock.hqueue.queue import Queue

WAIT_SECONDS: Final = 20
"""Seconds that one fetch waits in the service."""
SETTLE_SECONDS: Final = 0.05
"""Seconds after which what was handled is acknowledged, although the batch is not at its end."""
LEAVE_SECONDS: Final = 5.0
"""Longest time (s) that a stop takes to acknowledge and to give back; after that the leases end by themselves."""
BEATS: Final = 3
"""Heartbeats in the time of one lease."""
QUICK_SECONDS: Final = 1.0
"""A fetch that returns nothing sooner has not waited."""
HANG_UP_SECONDS: Final = 0.1
"""Time in which the service notices that a fetch was given up."""
RELEASE_SECONDS: Final = 0.001
"""The lease of a task that goes back, and that was begun."""
WORD: Final = secrets.token_hex(8)
T = TypeVar("T", bound=TaskInHand)
_log: Final = Log("penstock.hqueue")


class Worker(Generic[T]):
    """Takes the tasks of one queue under a ``workerId`` of its own, which the service gives its tasks again until they
    are acknowledged. So every call may be repeated, and an answer that was lost loses no task.
    """

    def __init__(
        self, queue: "Queue", id: str, time_to_recover: float, batch: int, make: Callable[[Fetched, "Worker[T]"], T]
    ) -> None:
        if not time_to_recover > 0:
            raise WrongCall(f"time_to_recover={time_to_recover!r}: expected seconds, more than 0")
        if not 1 <= batch <= 100:
            raise WrongCall(f"batch={batch!r}: expected 1 to 100")
        if not 1 <= len(id) <= 128:
            raise WrongCall("worker: expected a name of 1 to 128 characters")
        self._queue, self.id, self._recover, self._make = queue, id, time_to_recover, make
        self._queues, self.service = queue.queues, queue.service
        self._acks, self._pace, self._settled = Acks(queue), Pace(SETTLE_SECONDS, batch), time.monotonic()
        self._held = list[T]()
        """Tasks that were fetched, and are not handled yet or go back."""
        self._in_hand: T | None = None
        self._back = list[TaskInHand]()
        """Tasks whose handling was cancelled."""
        self._unsure = 0
        """How many tasks the answer to a fetch that was given up may have had."""
        self._beating: asyncio.Task[None] | None = None
        self._leaving = asyncio.Lock()

    async def tasks(self) -> AsyncGenerator[T]:
        """See ``Queue.tasks``."""
        try:
            while batch := await self.batch():
                for task in batch:
                    yield self.hand_out(task)
                    if self.ends_batch():
                        break
                    if self.is_due():
                        await self.settle()
        finally:
            await self.leave()

    async def batch(self) -> list[T]:
        """Acknowledge what was handled, and return the next tasks; none once all workers shall stop."""
        if self._beating is None:
            self._queues.enter(self)
            self._beating = begin(self._beat(), _log)
        elif self._beating.done():
            self._beating.result()  # by a bug: the leases are not kept any more
        await self.settle()
        empty = 0
        while not self._queues.stopping:
            begun = time.monotonic()
            if found := await self._fetch(self._pace.size()):
                self._pace.begin()
                self._settled = time.monotonic()
                tasks = [self._make(each, self) for each in found]
                self._held = [*tasks]
                return tasks
            self._pace.begin()
            empty = 0 if time.monotonic() - begun > QUICK_SECONDS else empty + 1
            if empty:  # the service has too many that wait, or a proxy ends the wait
                with suppress(TimeoutError):
                    async with asyncio.timeout(BACKOFF.delay_after(empty)):
                        await self._queues.stopped.wait()
        return []

    def hand_out(self, task: T) -> T:
        """Note that ``task`` is in hand, and return it."""
        self._in_hand = task
        return task

    def ends_batch(self) -> bool:
        """Return whether the rest of the batch goes back. Raise ``WrongCall`` if the last task was not handled."""
        if self._in_hand is not None:
            raise WrongCall("a task was not handled: expected `with task:` around its handling")
        return self._queues.stopping

    def is_due(self) -> bool:
        """Return whether to acknowledge before the next task of the batch."""
        return time.monotonic() - self._settled >= SETTLE_SECONDS

    async def settle(self) -> None:
        """Acknowledge what was handled, and give back what was cancelled; wait while the service is away."""
        await self._acks.send()
        await self._release(inf)
        self._settled = time.monotonic()

    def check_in_hand(self, task: TaskInHand) -> None:
        """Raise ``WrongCall`` unless ``task`` is in hand."""
        if self._in_hand is not task:
            raise WrongCall("a task is handled once, before the next one is taken")

    def note_end(self, task: TaskInHand, outcome: Outcome | None) -> None:
        """Note that the handling of ``task`` has ended; without an ``outcome`` it goes back."""
        self.check_in_hand(task)
        if outcome is not None:
            self._acks.add(task, outcome)
        else:
            self._back.append(task)
        self._in_hand = None  # last: what is in hand no more was noted

    async def leave(self) -> None:
        """Acknowledge what was handled and give back the rest; if the service is away, the leases end."""
        async with self._leaving:
            if self._beating is None:
                return
            beating, self._beating, self._in_hand = self._beating, None, None
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            try:
                async with asyncio.timeout(LEAVE_SECONDS if self._queues.stopping else None):
                    await self._acks.send(None)
                    await self._give_back()
            except (Unavailable, TimeoutError) as error:
                left = {"acknowledgements": len(self._acks), "reason": str(error) or "no answer"}
                _log.warning("not given back: the leases end", service=self.service, worker=self.id, **left)
            finally:
                self._queues.leave(self)

    async def beat(self, task: TaskInHand, progress: Any = None, *, patience: float | None = None) -> bool:
        """Prolong the lease of ``task``; return whether its producer wants it no more. Raise ``LeaseLost``."""
        if task.is_lost:
            raise LeaseLost(f"task {task.id}: {LOST}", 409)
        try:
            lease = await self._queue.prolong(task.task_token, progress, self._recover, patience)
        except LeaseLost:
            if not task.has_ended:  # else it was acknowledged meanwhile
                task.lose()
            raise
        task.is_cancelled = task.is_cancelled or lease.is_cancelled
        return task.is_cancelled

    async def _fetch(self, most: int) -> list[Fetched]:
        """Wait for tasks, while the service is away, too; return none if none came in time, or at a stop."""
        fetching = asyncio.create_task(self._queue.take(self.id, most, self._recover, WAIT_SECONDS, inf, _process()))
        stopping = asyncio.create_task(self._queues.stopped.wait())
        self._unsure = most
        try:
            await asyncio.wait({fetching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            fetching.cancel()
            stopping.cancel()
            await asyncio.gather(fetching, stopping, return_exceptions=True)
        if fetching.cancelled():
            return []
        found = fetching.result()
        self._unsure = 0
        return found

    async def _beat(self) -> None:
        """Keep all tasks that are held; after trouble try again soon."""
        failures = 0
        while True:
            pause = self._recover / BEATS
            await asyncio.sleep(min(pause, BACKOFF.delay_after(failures)) if failures else pause)
            held = [task for task in self._held if not task.has_ended and not task.is_lost]
            kept = await asyncio.gather(*map(self._kept, held))
            failures = 0 if all(kept) else failures + 1

    async def _kept(self, task: T) -> bool:
        """Prolong the lease of ``task``. Return False if that has to be tried again."""
        try:
            await self.beat(task, patience=0)
        except LeaseLost:
            return True
        except PenstockError:  # if it is not away only, the acknowledgement meets it as well, and reports it
            return False
        return True

    async def _give_back(self) -> None:
        """Let the leases of what was not handled end now."""
        if self._unsure:  # an answer that was not waited for may have given it tasks, which it gets again
            await asyncio.sleep(HANG_UP_SECONDS)  # else the former fetch might renew their leases after us
            found = await self._queue.take(self.id, self._unsure, self._recover, 0, None, _process())
            self._back += [self._make(each, self) for each in found]
        self._back += [task for task in self._held if not task.has_ended]
        await self._release(None)

    async def _release(self, patience: float | None) -> None:
        """End the leases of all in ``_back``: the attempt counts of those only whose handling has begun."""
        while self._back:
            task = self._back[-1]
            if not task.is_lost:
                with suppress(LeaseLost):
                    if task.has_begun:
                        await self._queue.prolong(task.task_token, None, RELEASE_SECONDS, patience)
                    else:
                        await self._queue.acknowledge(Outcome.release(task.task_token), patience)
            self._back.pop()


def _process() -> str:
    """Return a word that no other process has, nor one that was forked from this one."""
    return f"{WORD}-{os.getpid()}"
