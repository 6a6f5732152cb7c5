"""Processors that are functions, in threads."""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final

MAX_THREADS: Final = 10_000


class Threads:
    """As many threads as functions run at a time, however many cores there are."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(MAX_THREADS, "penstock-jobs")

    async def __call__(self, function: Callable[..., Any], *values: Any) -> Any:
        """Return what ``function`` returns, once it has ended: a thread cannot be cancelled."""
        run = copy_context().run
        running = asyncio.get_running_loop().run_in_executor(self._executor, run, _plainly, function, *values)
        try:
            found = await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])  # its slot is not free before
            running.exception()
            raise
        return await found if inspect.isawaitable(found) else found


def _plainly(function: Callable[..., Any], *values: Any) -> Any:
    try:
        return function(*values)
    except StopIteration as error:  # which no future can hold
        raise RuntimeError("the processor raised StopIteration") from error
