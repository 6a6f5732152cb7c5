"""The command line as a user has it: a process with pipes or a terminal."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from penstock.cli import app
from penstock.testing.watchdog import Watchdog

ROOT = Path(__file__).parent.parent

AWKWARD = ["in", "with space", 'it\'s "quoted"', "ünï¢ødé ✓", "glob*?[a-z]\\x", "{tag}:list", "a:b:c", "$HOME;`x`"]
"""Names that a list or a namespace may have."""


WITHIN = {
    *("--help", "status", "stop", "audit", "lint", "redis"),
    *("dead", "revive", "bury", "clear", "touch", "done", "explain", "trace"),
}
"""Commands that neither read their input nor mind being run within the tests' own process."""

PATIENCE = 60
"""Seconds until something that was expected counts as not coming."""


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
    """``penstock WORDS``, with REDIS in its environment unless that is None; ended with the block if it still runs."""
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


async def ended(process: Process, seconds: float = PATIENCE) -> tuple[int, str]:
    """The exit status, and what it said on stderr."""
    _, err = await asyncio.wait_for(process.communicate(), seconds)
    assert process.returncode is not None
    return process.returncode, err.decode()


async def _end(process: Process) -> None:
    """As gently as it lets us: what it has started goes with it."""
    try:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), 10)
    except TimeoutError:
        process.kill()
        await process.communicate()


async def penstock(
    *words: str | bytes | Path, redis: str | None = None, stdin: bytes = b"", patience: float = 120
) -> Result:
    """``penstock WORDS < stdin``, to its end; what reads and writes pipes itself as a process, all else within this."""
    if words[0] in WITHIN or "--help" in words:
        return await asyncio.to_thread(_within, [os.fsdecode(word) for word in words], redis)
    async with running(*words, redis=redis) as process:
        out, err = await asyncio.wait_for(process.communicate(stdin), patience)
    assert process.returncode is not None
    return Result(process.returncode, out, err)


def _within(words: list[str], redis: str | None) -> Result:
    result = CliRunner().invoke(app, words, env={"REDIS": redis, "COLUMNS": "200"}, prog_name="penstock")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Result(result.exit_code, result.stdout_bytes, result.stderr_bytes)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    """Wait for something to be true; fails after so long."""
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)
