"""One process of a composition in a sandbox: started, watched, killed and started again."""

import asyncio
import os
import signal
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.composition.model import Part
from penstock.composition.procfile import STOP_SECONDS
from penstock.errors import PenstockError
from penstock.testing.forkserver import ForkServer
from penstock.testing.watchdog import HELD, Watchdog

RESTART_SECONDS: Final = 0.1
"""Seconds between the failure of a process and its next start."""


class ServiceProcess:
    """One process of a composition; if it fails, it is started again, as a container runtime does.

    ``fork_server`` starts it if its command is just ``python -m``; a shell starts any other command.
    """

    def __init__(self, part: Part, environ: Mapping[str, str], log: Path, fork_server: ForkServer | None) -> None:
        self.part, self.name, self.log = part, part.name, log
        self.pid: int | None = None
        """None while the process does not run."""
        self.starts = 0
        self._environ, self._fork_server = environ, fork_server if part.module else None
        self._end: asyncio.Task[int] | None = None
        self._wanted = False
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the process unless it runs. Raise ``PenstockError`` if the fork server cannot start it."""
        async with self._starting:
            self._wanted = True
            if self.pid is not None:
                return
            self._end = await (self._from_fork_server(self._fork_server) if self._fork_server else self._from_shell())
            self.starts += 1

    async def _from_fork_server(self, fork_server: ForkServer) -> "asyncio.Task[int]":
        try:
            connection = fork_server.run(self.part.module[0], self.part.module[1:], self._environ, self.log)
        except OSError as error:
            raise PenstockError(f"{self.name} cannot be started: the fork server has ended") from error
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            pid = await reader.readline()
        except BaseException:
            writer.close()  # which kills the process
            raise
        if not pid:
            raise PenstockError(
                f"{self.name} cannot be started: {self.log} cannot be written, or the fork server ended"
            )
        self.pid = int(pid)

        async def ended() -> int:
            status = int(await reader.readline() or -signal.SIGKILL)
            writer.close()
            return status

        return asyncio.create_task(self._watch(ended()))

    async def _from_shell(self) -> "asyncio.Task[int]":
        with self.log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *HELD,
                "/bin/sh",
                "-c",
                str(self.part.command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environ,
                start_new_session=True,
            )
        self.pid, watchdog = process.pid, Watchdog(process.pid)
        assert process.stdin
        process.stdin.write(b"\n")
        process.stdin.close()

        async def ended() -> int:
            status = await process.wait()
            watchdog.release()
            return status

        return asyncio.create_task(self._watch(ended()))

    async def _watch(self, end: Coroutine[None, None, int]) -> int:
        status = await end
        self.pid = None
        if status != 0 and self._wanted:
            await asyncio.sleep(RESTART_SECONDS)
            if self._wanted:
                await self.start()
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

    async def stop(self) -> int:
        """Send SIGTERM, and SIGKILL after ``STOP_SECONDS``; return the exit status, 0 if it was never started."""
        return await self._stopped(signal.SIGTERM)

    async def _stopped(self, number: signal.Signals) -> int:
        async with self._starting:  # otherwise a restart under way would go on unseen
            self._wanted = False
            if self._end is None:
                return 0
            self.send(number)
        end = self._end
        done, _ = await asyncio.wait({end}, timeout=STOP_SECONDS)
        if not done:
            self.send(signal.SIGKILL)
        async with asyncio.timeout(STOP_SECONDS):
            return await end

    def log_tail(self, characters: int = 2_000) -> str:
        """Return the last ``characters`` of its output."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.is_file() else ""
