"""Ask a program whether it is ready: a URL of it, or a command."""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from services.sregister.settings import Settings

WEB: Final = ("http://", "https://")
LAST: Final = 200
"""Maximum number of characters of a command's output in a reason."""
_DIRECT: Final = build_opener(ProxyHandler({}))
"""The program is here: no proxy lies between."""


class Health:
    """Counts the checks that have failed in a row; a program is not ready before the first that succeeds."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._settings, self._environ = settings, environ
        self._failures = settings.health_failures
        self.problem = "starting" if settings.health else ""
        """Why the program is not ready; empty if it is."""

    async def check(self) -> None:
        """Check once."""
        if not self._settings.health:
            return
        found = await self._found(self._settings.health)
        self._failures = self._failures + 1 if found else 0
        if not found or self._failures >= self._settings.health_failures:
            self.problem = found

    async def _found(self, health: str) -> str:
        """Return what is wrong, in words; empty if nothing is."""
        seconds = self._settings.health_timeout
        if health.startswith(WEB):
            return await asyncio.to_thread(_asked, health, seconds)
        return await _run(health, seconds, self._environ)


def _asked(url: str, seconds: float) -> str:
    try:
        with _DIRECT.open(Request(url, headers={"User-Agent": "sregister"}), timeout=seconds):  # of the settings
            return ""
    except HTTPError as error:
        return f"{url}: status {error.code}"
    except (URLError, OSError, ValueError) as error:
        return f"{url}: {getattr(error, 'reason', error)}"


async def _run(command: str, seconds: float, environ: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environ,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        return f"{command}: no end within {seconds:g} s"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode == 0:
        return ""
    said = output.decode(errors="replace").strip()[-LAST:]
    return f"{command}: status {process.returncode}" + (f": {said}" if said else "")
