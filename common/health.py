"""Write the health of a process to a file every second; a probe reads it without starting Python."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

FILE: Final = "PENSTOCK_HEALTH"
"""The environment variable that names the file; without it no file is written. ``penstock-health`` reads it."""
EVERY: Final = 1.0
"""Seconds between two writes."""


async def beat(environ: Mapping[str, str], problem: Callable[[], str | None], log: FilteringBoundLogger) -> None:
    """Write ``ready``, or ``live`` with the ``problem``, to the file that ``environ`` names, until cancelled.

    The age of the file shows whether the event loop still runs. Remove the file at the end.
    """
    if not environ.get(FILE):
        return
    file, failed = Path(environ[FILE]), False
    try:
        while True:
            try:
                _write(file, problem())
                failed = False
            except OSError as error:
                if not failed:
                    log.error("the health file cannot be written", file=str(file), reason=error.strerror)
                failed = True
            await asyncio.sleep(EVERY)
    finally:
        with suppress(OSError):
            _remove(file)


def _write(file: Path, problem: str | None) -> None:
    """Replace the file at once: a probe never reads half of it."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(f"live: {problem}\n" if problem else "ready\n", errors="backslashreplace")
    part.replace(file)


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
