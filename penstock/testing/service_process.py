"""One process of a composition in a sandbox: started, watched, killed and started again."""

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.base.errors import PenstockError
from penstock.composition.model import Part
from penstock.core.child import Child
from penstock.testing.forkserver import ForkServer

RESTART_SECONDS: Final = 0.1
"""Seconds between the failure of a process and its next start."""


class ServiceProcess(Child):
    """One process of a composition; if it fails, it is started again, as a container runtime does.

    ``fork_server`` starts it if its command is just ``python -m``; a shell starts any other command. Its output goes to
    ``log``.
    """

    def __init__(self, part: Part, environ: Mapping[str, str], log: Path, fork_server: ForkServer | None) -> None:
        super().__init__(part.name, str(part.command), environ)
        self.part, self.log = part, log
        self._fork_server = fork_server if part.module else None

    async def _begin(self) -> Coroutine[Any, Any, int]:
        """Raise ``PenstockError`` if the fork server cannot start it."""
        if self._fork_server:
            return await self._from_fork_server(self._fork_server)
        with self.log.open("ab") as output:
            return await self._from_shell(output)

    async def _from_fork_server(self, fork_server: ForkServer) -> Coroutine[Any, Any, int]:
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

        return ended()

    async def _watch(self, end: Coroutine[Any, Any, int]) -> int:
        status = await super()._watch(end)
        if status != 0 and self._wanted:
            await asyncio.sleep(RESTART_SECONDS)
            if self._wanted:
                await self.start()
        return status

    def log_tail(self, characters: int = 2_000) -> str:
        """Return the last ``characters`` of its output."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.is_file() else ""
