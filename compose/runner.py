"""Runner of the demos: start a server and the processes of a Procfile, carry messages through, print the outcome."""

import argparse
import asyncio
import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from redis.asyncio import Redis
from redis.exceptions import RedisError
from rich.console import Console

from compose.bars import MAX_SECONDS
from compose.keyspace import Keyspace
from compose.outcome import Outcome
from penstock.composition.procfile import ProcessGroup, stoppable
from penstock.connection import connect, mask_password
from penstock.errors import PenstockError
from penstock.keys import Keys
from penstock.testing.server import EmbeddedServer
from penstock.tracking.events import TrackedEvent, read_entries

SETTING_PREFIXES: Final = (
    *("MPUSH_", "MDISPATCH_", "MONITOR_", "VPUSH_", "PIPELINE_"),
    *("HIMPORTER_", "HROUTER_", "MBALANCE_", "HQUEUE_", "WORKER_", "OUTBOX_", "FIGURES_"),
)
"""Prefixes of environment variables that would override the composition's files."""


def main(module: str, about: str, run: Callable[[str], Coroutine[Any, Any, Outcome]], *, aof: bool = False) -> NoReturn:
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
        outcome.show(Console())
    sys.exit(1 if outcome.differences else 0)


async def _on_a_server(run: Callable[[str], Coroutine[Any, Any, Outcome]], *, aof: bool) -> Outcome:
    if named := os.environ.get("REDIS"):
        return await run(named)
    async with EmbeddedServer(aof=aof) as server:
        return await run(server.url)


async def run_composition(
    url: str,
    directory: Path,
    keyspace: Keyspace,
    carry: Callable[["Redis", ProcessGroup], Awaitable[None]],
    evaluate: Callable[["Redis", Mapping[str, int]], Awaitable[Outcome]],
    *,
    prepare: Callable[["Redis"], Awaitable[Mapping[str, str]]] | None = None,
    other_servers: Sequence["Redis"] = (),
    process_variables: Mapping[str, Mapping[str, str]] | None = None,
    **variables: str,
) -> Outcome:
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
    composition: ProcessGroup,
    condition: Callable[[], Awaitable[object]],
    *,
    seconds: float = MAX_SECONDS,
    killed: Collection[str] = (),
    otherwise: str | None = None,
) -> None:
    """Wait until ``condition`` is true, at most for ``seconds``, and while all processes run but those ``killed``.

    Raise ``PenstockError`` if it does not come and ``otherwise`` says what is then missing.
    """
    end = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > end or not composition.commands.keys() - composition.running <= {*killed}:
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


async def count_events(redis: "Redis", keys: Keys, name: Callable[[TrackedEvent], str]) -> dict[str, Counter[str]]:
    """Return how often there is each kind of event in a history, by the ``name`` of what it is about."""
    found = dict[str, Counter[str]]()
    async for chunk in read_entries(redis, keys):
        for event in (event for entry in chunk for event in entry.events()):
            found.setdefault(name(event), Counter())[event.event] += 1
    return found
