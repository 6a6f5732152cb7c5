"""A process that this one starts, kills and starts again, and that ends with it."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from penstock.core.orphaned import HELD, Watchdog
from penstock.core.tasks import begin

STOP_SECONDS: Final = 40.0
"""Time between SIGTERM and SIGKILL: more than a service's ``stopTimeout``."""
MAX_LINE: Final = 2**30
"""Bytes of the longest line of output; of longer ones some are dropped."""


class Child:
    """A ``command`` in a shell, in a process group of its own; call ``write`` with each line of its output.

    If this process ends without a stop, or ``write`` raises, the child gets the signal ``orphaned``.
    """

    orphaned = signal.SIGKILL

    def __init__(
        self, name: str, command: str, environ: Mapping[str, str], write: Callable[[bytes], None] | None = None
    ) -> None:
        self.name, self._command, self._environ, self._write = name, command, environ, write
        self.pid: int | None = None
        """None while it does not run."""
        self.starts = 0
        self._end: asyncio.Task[int] | None = None
        self._wanted = False
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start it unless it runs. Raise ``OSError`` if not even a shell can be started."""
        async with self._starting:
            self._wanted = True
            if self.pid is None:
                self._end = begin(self._watch(await self._begin()))
                self.starts += 1

    async def _begin(self) -> Coroutine[Any, Any, int]:
        """Start it, set ``pid``, and return a coroutine that awaits its end and returns its status."""
        return await self._from_shell(asyncio.subprocess.PIPE)

    async def _from_shell(self, output: Any) -> Coroutine[Any, Any, int]:
        process = await asyncio.create_subprocess_exec(
            *HELD,
            "/bin/sh",
            "-c",
            self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environ,
            start_new_session=True,
            limit=MAX_LINE,
        )
        self.pid, watchdog = process.pid, Watchdog(process.pid, self.orphaned)
        assert process.stdin
        process.stdin.write(b"\n")
        process.stdin.close()

        async def ended() -> int:
            reading = asyncio.create_task(self._read(process.stdout)) if process.stdout else None
            status = await process.wait()
            watchdog.release()
            if reading:
                await reading
            return status

        return ended()

    async def _read(self, output: asyncio.StreamReader) -> None:
        assert self._write
        while True:
            try:
                line = await output.readline()
            except ValueError:  # it is longer than MAX_LINE, and what was read of it is dropped
                continue
            if not line:
                return
            try:
                self._write(line)
            except Exception:  # raised once the process has ended
                self.send(self.orphaned)
                raise

    async def wait(self) -> int:
        """Return the exit status once it has ended and its output, too."""
        assert self._end is not None
        return await asyncio.shield(self._end)

    async def _watch(self, end: Coroutine[Any, Any, int]) -> int:
        status = await end
        self.pid = None
        return status

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all that it started."""
        if self.pid:
            with suppress(ProcessLookupError):
                try:
                    os.killpg(self.pid, number)
                except ProcessLookupError:  # not yet in a session of its own
                    os.kill(self.pid, number)

    async def kill(self) -> None:
        await self._stopped(signal.SIGKILL)

    async def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Send SIGTERM, and SIGKILL after ``seconds``; return the exit status, 0 if it was never started."""
        return await self._stopped(signal.SIGTERM, seconds)

    async def _stopped(self, number: signal.Signals, seconds: float = STOP_SECONDS) -> int:
        """Send the signal ``number`` and return the exit status; see ``stop``."""
        async with self._starting:  # otherwise a restart under way would go on unseen
            self._wanted = False
            if self._end is None:
                return 0
            self.send(number)
        end = self._end
        done, _ = await asyncio.wait({end}, timeout=seconds)
        if not done:
            self.send(signal.SIGKILL)
        async with asyncio.timeout(STOP_SECONDS):
            return await end
