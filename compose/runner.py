"""Runner of the demos: start a server and the processes of a Procfile, carry messages through, print the outcome."""

import argparse
import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from compose.bars import MAX_SECONDS as MAX_SECONDS
from compose.bars import STANDSTILL_SECONDS
from compose.keyspace import Keyspace
from penstock.composition.procfile import ProcessGroup, stoppable
from penstock.connection import connect, mask_password
from penstock.errors import PenstockError
from penstock.testing.server import EmbeddedServer

SETTING_PREFIXES: Final = (
    *("MPUSH_", "MDISPATCH_", "MONITOR_", "VPUSH_", "PIPELINE_"),
    *("HIMPORTER_", "HROUTER_", "MBALANCE_", "HQUEUE_", "WORKER_", "OUTBOX_", "FIGURES_"),
)
"""Prefixes of environment variables that would override the composition's files."""


class Judged(Protocol):
    """Result of a demo."""

    @property
    def differences(self) -> list[str]:
        """Return a line for everything that is not as promised."""

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""


OutcomeT = TypeVar("OutcomeT", bound=Judged)


def main(
    module: str,
    about: str,
    run: Callable[[str], Coroutine[Any, Any, OutcomeT]],
    show: Callable[[OutcomeT, Console], None] | None = None,
    *,
    aof: bool = False,
) -> NoReturn:
    """Run the demo in ``module`` on the server of the variable REDIS, or on an embedded one, with an ``aof`` or not."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    as_json = parser.parse_args().json
    try:
        outcome = asyncio.run(stoppable(_on_a_server(run, aof=aof)))
    except (PenstockError, RedisError) as error:
        sys.exit(f"demo: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    if as_json:
        print(json.dumps(outcome.figures(), indent=2))
    else:
        show(outcome, Console()) if show else outcome.show(Console())  # type: ignore[attr-defined]
    sys.exit(1 if outcome.differences else 0)


async def _on_a_server(run: Callable[[str], Coroutine[Any, Any, OutcomeT]], *, aof: bool) -> OutcomeT:
    if named := os.environ.get("REDIS"):
        return await run(named)
    async with EmbeddedServer(aof=aof) as server:
        return await run(server.url)


async def run_composition(
    url: str,
    directory: Path,
    keyspace: Keyspace,
    carry: Callable[["Redis", ProcessGroup], Awaitable[None]],
    evaluate: Callable[["Redis", Mapping[str, int]], Awaitable[OutcomeT]],
    *,
    prepare: Callable[["Redis"], Awaitable[Mapping[str, str]]] | None = None,
    other_servers: Sequence["Redis"] = (),
    process_variables: Mapping[str, Mapping[str, str]] | None = None,
    **variables: str,
) -> OutcomeT:
    """Start the composition in ``directory`` with ``variables``, ``carry`` messages through, stop it, and ``evaluate``.

    ``evaluate`` gets the exit status of each process. The output of the processes is printed only if there are
    differences. ``prepare`` is awaited before the start, and returns more variables. ``other_servers`` belong to the
    composition, too; ``process_variables`` are by process.
    Raise ``PenstockError`` if a server holds data of a composition that is no demo.
    """
    output: list[Any] = []
    environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTING_PREFIXES)}
    print(f"{keyspace.name}: {directory / 'Procfile'} on {mask_password(url)}", file=sys.stderr)
    async with connect(url) as redis:
        for server in (redis, *other_servers):
            await keyspace.prepare(server)
        more = await prepare(redis) if prepare else {}
        async with ProcessGroup(directory, write=output.append) as composition:
            for name, given in (process_variables or {}).items():
                words = " ".join(f"{variable}={shlex.quote(value)}" for variable, value in given.items())
                composition.commands[name] = f"export {words}; {composition.commands[name]}"
            await composition.start(environ | {"REDIS": url} | variables | dict(more))
            await carry(redis, composition)
            await composition.stop()
        outcome = await evaluate(redis, composition.statuses)
    if outcome.differences:
        for line in output:
            print(f"{line.name}: {line.data.decode(errors='backslashreplace').rstrip()}", file=sys.stderr)
    return outcome


async def until(
    composition: ProcessGroup, condition: Callable[[], Awaitable[object]], *, otherwise: str | None = None
) -> None:
    """Wait until ``condition`` is true, at most as long as a demo may take, and only while all processes run.

    Raise ``PenstockError`` if it does not come and ``otherwise`` says what is then missing.
    """
    end = time.monotonic() + MAX_SECONDS
    while not await condition():
        if time.monotonic() > end or len(composition.running) < len(composition.commands):
            if otherwise:
                raise PenstockError(f"the composition did not start: {composition.statuses or otherwise}")
            return
        await asyncio.sleep(0.05)


@asynccontextmanager
async def meanwhile(problems: list[str], *work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` for the duration and cancel what has not ended; add what it has raised to ``problems``."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        problems += [f"the demo: {error}" for error in found if isinstance(error, Exception)]


async def content(redis: "Redis", key: str) -> list[bytes]:
    """Return the messages of a list, oldest first."""
    newest_first: Any = await redis.lrange(key, 0, -1)
    return list(newest_first[::-1])


class Snapshot(NamedTuple):
    """Progress of the messages at one moment."""

    counts: tuple[int, ...]
    """Numbers that change while messages move."""
    through: bool
    waiting: bool
    """True if messages are in flight."""


async def until_through(composition: ProcessGroup, take_snapshot: Callable[[], Awaitable[Snapshot]]) -> None:
    """Wait until all messages are through, or until that is no longer possible."""
    until = time.monotonic() + MAX_SECONDS
    seen, since = tuple[int, ...](), time.monotonic()
    while time.monotonic() < until and len(composition.running) == len(composition.commands):
        snapshot = await take_snapshot()
        if snapshot.waiting or snapshot.counts != seen:
            seen, since = snapshot.counts, time.monotonic()
        if not snapshot.waiting and (snapshot.through or time.monotonic() - since > STANDSTILL_SECONDS):
            return
        await asyncio.sleep(0.02)


async def push(redis: "Redis", source: str, rows: Sequence[bytes], batch: int, advance: Callable[[int], None]) -> None:
    """Push ``rows``, oldest first; call ``advance`` with the size of each batch."""
    for start in range(0, len(rows), batch):
        pushed = rows[start : start + batch]
        await redis.lpush(source, *pushed)
        advance(len(pushed))


def progress(*more: ProgressColumn, width: int = 40) -> Progress:
    """Return bars on stderr, ``width`` characters wide, with the columns ``more`` after the usual ones."""
    columns = (TextColumn("{task.description:9}"), BarColumn(width), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, *more, console=Console(stderr=True))
