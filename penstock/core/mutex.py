"""A lock of tasks that an exception between any two steps does not leave taken."""

import asyncio
from types import TracebackType


class Mutex:
    """``async with mutex:`` as with ``asyncio.Lock``.

    If a signal handler raises just as a task has taken it, nobody gives it back: then that task has it, and
    everybody once it has ended.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._owner: asyncio.Task[object] | None = None

    @property
    def is_taken(self) -> bool:
        """Return whether another task has it."""
        owner = self._owner
        return self._lock.locked() and owner is not None and owner is not asyncio.current_task() and not owner.done()

    async def __aenter__(self) -> None:
        if self.is_taken or not self._lock.locked():
            await self._lock.acquire()
        self._owner = asyncio.current_task()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner = None
        self._lock.release()
