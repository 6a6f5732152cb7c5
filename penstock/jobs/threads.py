"""Processors that are functions, in threads."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.jobs.attempt import Attempt

MAX_THREADS: Final = 10_000


class Threads:
    """As many threads as functions run at a time, however many cores there are."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(MAX_THREADS, "penstock-jobs")

    async def __call__(self, function: Callable[..., Any], value: Any, attempts: "Sequence[Attempt]") -> Any:
        """Return what ``function`` returns for ``value``, once it has ended: a thread cannot be cancelled.

        If ``attempts`` were given up at a stop, and it has not asked for that, they are done all the same.
        """
        run = copy_context().run
        running = asyncio.get_running_loop().run_in_executor(self._executor, run, _plainly, function, value)
        try:
            found = await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])  # its slot is not free before
            if running.exception() or not all(each._is_unaware for each in attempts):
                raise
            for each in attempts:
                each.why = None
            return running.result()
        return await found if inspect.isawaitable(found) else found


def _plainly(function: Callable[..., Any], value: Any) -> Any:
    try:
        return function(value)
    except StopIteration as error:  # which no future can hold
        raise RuntimeError("the processor raised StopIteration") from error
