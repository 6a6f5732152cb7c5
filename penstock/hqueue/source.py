"""A queue of hqueue as what a consumer takes from: tasks are fetched, kept by heartbeats, and acknowledged."""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, ClassVar, Final, Generic, TypeVar

from penstock.base.errors import PenstockError, Unavailable, WrongCall
from penstock.base.log import Log
from penstock.core.source import AT_ONCE, SETTLE_SECONDS
from penstock.core.tasks import begin
from penstock.hqueue.acks import Acks
from penstock.hqueue.answers import Fetched
from penstock.hqueue.calls import Calls
from penstock.hqueue.errors import LOST, LeaseLost
from penstock.hqueue.task import Outcome, TaskInHand

WAIT_SECONDS: Final = 20
"""Seconds that one fetch waits in the service."""
BEATS: Final = 3
"""Heartbeats in the time of one lease."""
HANG_UP_SECONDS: Final = 0.1
"""Time in which the service notices that a fetch was given up."""
WORD: Final = secrets.token_hex(8)
T = TypeVar("T", bound=TaskInHand)
_log: Final = Log("penstock.hqueue")


class TaskSource(Generic[T]):
    """Takes the tasks of one queue under a ``workerId`` of its own, which the service gives its tasks again until they
    are acknowledged. So every call may be repeated, and an answer that was lost loses no task.
    """

    noun: ClassVar[str] = "task"
    alone: ClassVar[bool] = True
    failures: ClassVar[int] = 0  # the service has failed tasks wait

    def __init__(
        self, calls: Calls, id: str, time_to_recover: float, batch: int, make: Callable[[Fetched, "TaskSource[T]"], T]
    ) -> None:
        if not time_to_recover > 0:
            raise WrongCall(f"time_to_recover={time_to_recover!r}: expected seconds, more than 0")
        if not 1 <= batch <= 100:
            raise WrongCall(f"batch={batch!r}: expected 1 to 100")
        if not 1 <= len(id) <= 128:
            raise WrongCall("worker: expected a name of 1 to 128 characters")
        self._calls, self.id, self._recover, self._make = calls, id, time_to_recover, make
        self.service, self.name = calls.service, f"{calls.service} worker={id!r}"
        self.renew_every, self.judges = time_to_recover / BEATS, True
        self.due_at = AT_ONCE
        self.in_hand: T | None = None
        self._acks = Acks(calls)
        self._held = list[T]()
        """Tasks that were fetched, and are not handled yet or go back."""
        self._back = list[TaskInHand]()
        """Tasks whose handling was cancelled, or never begins."""
        self._unsure = 0
        """How many tasks the answer to a fetch that was given up may have had."""
        self._fetching: asyncio.Task[list[Fetched]] | None = None
        self._calling = asyncio.Lock()

    @property
    def facts(self) -> Mapping[str, str]:
        return {"service": self.service, "worker": self.id}

    @property
    def handled(self) -> int:
        return len(self._acks)

    def judge(self, task: T) -> bool:
        return task.is_lost

    async def take(self, most: int) -> list[T]:
        """Acknowledge what was handled, and give back what was cancelled; wait while the service is away."""
        async with self._calling:
            await self._acks.send()
            await self._release(inf)
        self.due_at = monotonic() + SETTLE_SECONDS
        return []

    async def wait(self, most: int) -> list[T]:
        self._unsure = most
        self._fetching = begin(self._calls.take(self.id, most, self._recover, WAIT_SECONDS, inf, _process()), _log)
        try:
            await asyncio.wait({self._fetching})
        finally:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
        if self._fetching.cancelled():
            return []
        found = self._fetching.result()
        self._unsure = 0
        self._held = [self._make(each, self) for each in found]
        self.due_at = monotonic() + SETTLE_SECONDS
        return [*self._held]

    async def interrupt(self) -> None:
        if self._fetching:
            self._fetching.cancel()

    def check_in_hand(self, task: TaskInHand) -> None:
        """Raise ``WrongCall`` unless ``task`` is in hand."""
        if self.in_hand is not task:
            raise WrongCall("a task is handled once, before the next one is taken")

    def note_end(self, task: TaskInHand, outcome: Outcome | None) -> None:
        """Note that the handling of ``task`` has ended; without an ``outcome`` it goes back."""
        self.check_in_hand(task)
        if outcome is not None:
            self._acks.add(task, outcome)
        else:
            self._back.append(task)
        self.in_hand = None  # last: what is in hand no more was noted

    async def beat(self, task: TaskInHand, progress: Any = None, *, patience: float | None = None) -> bool:
        """Prolong the lease of ``task``; return whether its producer wants it no more. Raise ``LeaseLost``."""
        if task.is_lost:
            raise LeaseLost(f"task {task.id}: {LOST}", 409)
        try:
            lease = await self._calls.prolong(task.task_token, progress, self._recover, patience)
        except LeaseLost:
            if not task.has_ended:  # else it was acknowledged meanwhile
                task.lose()
            raise
        task.is_cancelled = task.is_cancelled or lease.is_cancelled
        return task.is_cancelled

    async def renew(self) -> None:
        if not all(await asyncio.gather(*map(self._kept, self._waiting()))):
            raise Unavailable(f"{self.service}: not all heartbeats were answered")

    async def renew_elsewhere(self) -> None:
        async with self._calls.elsewhere() as calls:
            for task in self._waiting():
                with suppress(LeaseLost):
                    if calls:
                        await calls.prolong(task.task_token, None, self._recover, 0)

    def _waiting(self) -> list[T]:
        return [task for task in self._held if not task.has_ended and not task.is_lost]

    async def _kept(self, task: T) -> bool:
        """Prolong the lease of ``task``. Return False if that has to be tried again."""
        try:
            await self.beat(task, patience=0)
        except LeaseLost:
            return True
        except PenstockError:  # if it is not away only, the acknowledgement meets it as well, and reports it
            return False
        return True

    async def give_back_ahead(self) -> None:
        in_hand = self.in_hand  # first: it may begin meanwhile, in another thread
        async with self._calling:
            ahead = [task for task in self._waiting() if task is not in_hand and not task.has_begun]
            self._held = [task for task in self._held if task not in ahead]
            self._back += ahead
            await self._release(None)

    async def give_back(self) -> None:
        async with self._calling:
            await self._acks.send(None)
            if self._unsure:  # an answer that was not waited for may have given it tasks, which it gets again
                await asyncio.sleep(HANG_UP_SECONDS)  # else the former fetch might renew their leases after us
                found = await self._calls.take(self.id, self._unsure, self._recover, 0, None, _process())
                self._back += [self._make(each, self) for each in found]
            self._back += [task for task in self._held if not task.has_ended]
            await self._release(None)

    async def _release(self, patience: float | None) -> None:
        """End the leases of all in ``_back``, which costs no attempt."""
        while self._back:
            task = self._back[-1]
            if not task.is_lost:
                with suppress(LeaseLost):
                    await self._calls.acknowledge(Outcome.release(task.task_token), patience)
            self._back.pop()

    async def close(self) -> None:
        pass


def _process() -> str:
    """Return a word that no other process has, nor one that was forked from this one."""
    return f"{WORD}-{os.getpid()}"
