"""Tasks that nobody awaits while they run: an error that nobody expected is logged, and their owner hears of it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.base.log import Log, traceback_of
from penstock.core.link import Fate, fate

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

ENDED: Final = "a task has ended by an error that nobody expected"
T = TypeVar("T")
_log: Final = Log("penstock")


class Tasks:
    """The tasks of one owner, which are forgotten when they end.

    An error that ends one and that nobody expected (see ``fate``) is logged with its trace, and ``hears`` gets it.
    """

    def __init__(
        self, log: "Log | FilteringBoundLogger" = _log, hears: Callable[[Exception], object] | None = None
    ) -> None:
        self._log, self._hears = log, hears
        self._running = set[asyncio.Task[Any]]()

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Begin ``work``, and return its task."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and fate(error) is Fate.BUG:
            name = getattr(task.get_coro(), "__qualname__", task.get_name())
            self._log.error(ENDED, task=name, exception=traceback_of(error))
            if self._hears:
                self._hears(error)

    def __iter__(self) -> Iterator["asyncio.Task[Any]"]:
        return iter(tuple(self._running))

    def __len__(self) -> int:
        return len(self._running)

    async def cancel(self) -> None:
        """Cancel all but the task that calls, forget them, and wait for their ends."""
        running = self._running - {asyncio.current_task()}
        self._running = set()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def begin(
    work: Coroutine[Any, Any, T],
    log: "Log | FilteringBoundLogger" = _log,
    hears: Callable[[Exception], object] | None = None,
) -> "asyncio.Task[T]":
    """Begin ``work`` as the only one of ``Tasks(log, hears)``."""
    return Tasks(log, hears).begin(work)
