"""The command line as users run it, with pipes or a terminal."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from penstock.cli import app
from penstock.core.orphaned import Watchdog
from tests.support.harness import PATIENCE

ROOT = Path(__file__).parent.parent.parent

AWKWARD = ["in", "with space", 'it\'s "quoted"', "ünï¢ødé ✓", "glob*?[a-z]\\x", "{tag}:list", "a:b:c", "$HOME;`x`"]
"""Possible names of a list or a namespace."""


IN_PROCESS = {
    *("--help", "status", "stop", "audit", "lint", "redis"),
    *("dead", "revive", "bury", "clear", "touch", "done", "explain", "trace", "bus", "jobs", "outbox", "owner"),
    "archive",
}
"""Commands that read no input and may run in the tests' own process."""


@dataclass(frozen=True)
class Result:
    status: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def error(self) -> str:
        return self.err.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@asynccontextmanager
async def running(
    *words: str | bytes | Path, redis: str | None, stdin: Any = PIPE, stdout: Any = PIPE
) -> AsyncIterator[Process]:
    """Run ``penstock WORDS`` with REDIS in its environment unless that is None; end it with the block."""
    environment = {name: value for name, value in os.environ.items() if name != "REDIS"}
    environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | ({} if redis is None else {"REDIS": redis})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "penstock",
        *words,
        stdin=stdin,
        stdout=stdout,
        stderr=PIPE,
        env=environment,
        start_new_session=True,
    )
    watchdog = Watchdog(process.pid, signal.SIGTERM)
    try:
        yield process
    finally:
        await _end(process)
        watchdog.release()


async def ended(process: Process) -> tuple[int, str]:
    """Return the exit status and the text on stderr."""
    _, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode is not None
    return process.returncode, err.decode()


async def _end(process: Process) -> None:
    """Send SIGTERM, so that it ends what it has started, and SIGKILL if that takes too long."""
    try:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), PATIENCE)
    except TimeoutError:
        process.kill()
        await process.communicate()


async def penstock(
    *words: str | bytes | Path, redis: str | None = None, stdin: bytes = b"", seconds: float = 2 * PATIENCE
) -> Result:
    """Run ``penstock WORDS < stdin`` to its end, in this process if the command is one of ``IN_PROCESS``."""
    if (words[0] in IN_PROCESS and words[:2] != ("bus", "move")) or "--help" in words:
        return await asyncio.to_thread(_run_in_process, [os.fsdecode(word) for word in words], redis)
    async with running(*words, redis=redis) as process:
        out, err = await asyncio.wait_for(process.communicate(stdin), seconds)
    assert process.returncode is not None
    return Result(process.returncode, out, err)


def _run_in_process(words: list[str], redis: str | None) -> Result:
    result = CliRunner().invoke(app, words, env={"REDIS": redis, "COLUMNS": "200"}, prog_name="penstock")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Result(result.exit_code, result.stdout_bytes, result.stderr_bytes)
