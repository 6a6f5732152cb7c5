"""Runs a handler over items, some at a time, by a pool of workers: a task for each item costs more than the item."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from time import monotonic
from typing import Final, Generic, TypeVar

from penstock.base.log import Log
from penstock.core.tasks import Tasks

TURN_SECONDS: Final = 0.005
"""How long handlers that do not wait run one after the other before all else has its turn of the event loop."""
I = TypeVar("I")  # noqa: E741


class Runner(Generic[I]):
    """Awaits ``handle`` with each item, at most ``concurrency`` at a time, in the order in which they were added.

    ``handle`` raises nothing but its cancellation, which ends the handling of that item only. Suspects are items that
    may have ended the process before: they begin when nothing else runs that ``counts``, as what was given up does not,
    and nothing else begins until they have ended and ``settled`` has returned.
    """

    def __init__(
        self,
        handle: Callable[[I], Awaitable[None]],
        concurrency: int,
        log: Log,
        *,
        changed: Callable[[], None],
        counts: Callable[[I], bool] = lambda _: True,
        settled: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._handle, self._counts, self._settled, self._changed = handle, counts, settled, changed
        self.concurrency = concurrency
        self.waiting, self.suspects = deque[I](), deque[I]()
        """Items that have not begun."""
        self.running = dict[I, asyncio.Task[None]]()
        self.is_paused = False
        self.idle = asyncio.Event()
        """Set while nothing runs."""
        self.idle.set()
        self._busy = 0
        """How many run that have not been released."""
        self._released = set[I]()
        self._suspected = set[I]()
        """Suspects that run."""
        self._settling = False
        """Whether suspects have ended that are not settled."""
        self._workers = self._waking = 0
        """How many there are, and how many of them are about to look for an item."""
        self._resting = list[asyncio.Future[None]]()
        """What wakes those that have nothing to do."""
        self._turn_ends = 0.0
        """When (monotonic) this turn of the event loop is over; 0 before anything was handled in it."""
        self._tasks, self._loop, self._context = Tasks(log), asyncio.get_running_loop(), copy_context()

    @property
    def free(self) -> int:
        """Return how many more items may begin."""
        return 0 if self.holds_back else max(0, self.concurrency - self._busy - len(self.waiting))

    @property
    def busy(self) -> int:
        """Return how many items run, but for those released, or wait."""
        return self._busy + len(self.waiting)

    @property
    def holds_back(self) -> bool:
        """Return whether nothing may be added, since there are suspects."""
        return bool(self.suspects or self._suspected or self._settling)

    def add(self, items: Iterable[I], *, suspects: bool = False) -> None:
        """Have ``items`` handled as soon as there is room."""
        (self.suspects if suspects else self.waiting).extend(items)
        self.resume()

    def resume(self) -> None:
        """Begin what may begin."""
        for _ in range(min(len(self.waiting) + len(self.suspects), self.concurrency - self._busy) - self._waking):
            if self._resting:
                self._resting.pop().set_result(None)
            elif self._workers < self.concurrency + len(self._released):
                self._workers += 1
                self._context.run(self._tasks.begin, self._work())
            else:
                return
            self._waking += 1

    def forget(self, item: I) -> bool:
        """Do not begin ``item``; return whether it waited."""
        for line in (self.waiting, self.suspects):
            if item in line:
                line.remove(item)
                self._changed()
                break
        else:
            return False
        self.resume()  # suspects may have waited for it
        return True

    def take_back(self, *, suspects: bool = True) -> list[I]:
        """Return what has not begun, and begin it no more; without ``suspects`` leave those, which wait longer."""
        found = [*self.waiting]
        self.waiting.clear()
        if suspects:
            found += self.suspects
            self.suspects.clear()
        return found

    def release(self, item: I) -> None:
        """Let another item begin in the place of ``item``, which goes on."""
        if item in self.running and item not in self._released:
            self._released.add(item)
            self._busy -= 1
            self.resume()
            self._changed()

    async def close(self) -> None:
        """End the workers; nothing runs."""
        self.is_paused, self._resting = True, []
        self.take_back()
        await self._tasks.cancel()

    def _next(self) -> I | None:
        """Return an item that may begin now."""
        if self.is_paused or self._busy >= self.concurrency or self._settling:
            return None
        if self.suspects and not any(map(self._counts, self.running.keys() - self._suspected)):
            item = self.suspects.popleft()
            self._suspected.add(item)
            self.resume()  # those that rest have found none that might begin
            return item
        return self.waiting.popleft() if self.waiting and not self.suspects and not self._suspected else None

    async def _work(self) -> None:
        """Handle one item after the other, and end after one that was cancelled, or has changed the context.

        A cancellation may come as late as the handler's last line; then the next item would meet it.
        """
        task, context = asyncio.current_task(), copy_context()
        assert task
        self._waking -= 1
        try:
            while self._workers <= self.concurrency + len(self._released):
                while monotonic() > (self._turn_ends or self._begin_turn()):
                    await asyncio.sleep(0)
                item = self._next()
                if item is None:
                    if not self.running:
                        self.idle.set()
                    self._resting.append(resting := self._loop.create_future())
                    await resting
                    self._waking -= 1
                    continue
                if self.idle.is_set():
                    self.idle.clear()
                self._busy += 1
                self.running[item] = task
                try:
                    await self._handle(item)
                except asyncio.CancelledError:
                    pass
                finally:
                    self._end(item)
                if task.cancelling() or copy_context() != context:
                    break
        finally:
            self._workers -= 1
            if not self.running:
                self.idle.set()
            self.resume()

    def _begin_turn(self) -> float:
        """Return when handlers have had their share of this turn of the event loop."""
        self._turn_ends = monotonic() + TURN_SECONDS
        self._loop.call_soon(self._end_turn)
        return self._turn_ends

    def _end_turn(self) -> None:
        self._turn_ends = 0.0

    def _end(self, item: I) -> None:
        del self.running[item]
        if item in self._released:
            self._released.discard(item)
        else:
            self._busy -= 1
        if item in self._suspected:
            self._suspected.discard(item)
            if not self._suspected and not self.suspects and self._settled:
                self._settling = True
                self._tasks.begin(self._settle(self._settled))
        self._changed()

    async def _settle(self, settled: Callable[[], Awaitable[None]]) -> None:
        try:
            await settled()
        finally:
            self._settling = False
        self.resume()
        self._changed()
