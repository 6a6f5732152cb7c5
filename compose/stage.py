"""What the demos of all compositions do alike: a server, the processes of a Procfile, rows in, an outcome out."""

import argparse
import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from compose.keyspace import Keyspace
from penstock.composition.procfile import Composition, stoppable
from penstock.connection import connect, mask_password
from penstock.errors import PenstockError
from penstock.testing.server import EmbeddedServer

PATIENCE: Final = 60.0
"""Longest time until everything has to be through (s)."""
STANDSTILL: Final = 1.0
"""With nothing on its way any more, what has not come by then is lost (s)."""
SETTINGS: Final = ("MPUSH_", "MDISPATCH_", "MONITOR_", "VPUSH_", "PIPELINE_")
"""How variables begin that would change what the composition's files say."""


class Outcome(Protocol):
    """What a demo came to."""

    @property
    def differences(self) -> list[str]:
        """In words, what is not as promised."""

    def figures(self) -> dict[str, object]:
        """For JSON."""


OutcomeT = TypeVar("OutcomeT", bound=Outcome)


def main(
    module: str,
    about: str,
    run: Callable[[str], Coroutine[Any, Any, OutcomeT]],
    show: Callable[[OutcomeT, Console], None],
) -> NoReturn:
    """Run the demo in ``module`` on the server that REDIS names, or on one of its own."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    as_json = parser.parse_args().json
    try:
        outcome = asyncio.run(stoppable(_on_a_server(run)))
    except (PenstockError, RedisError) as error:
        sys.exit(f"demo: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    if as_json:
        print(json.dumps(outcome.figures(), indent=2))
    else:
        show(outcome, Console())
    sys.exit(1 if outcome.differences else 0)


async def _on_a_server(run: Callable[[str], Coroutine[Any, Any, OutcomeT]]) -> OutcomeT:
    if named := os.environ.get("REDIS"):
        return await run(named)
    async with EmbeddedServer() as server:
        return await run(server.url)


async def perform(
    url: str,
    directory: Path,
    keyspace: Keyspace,
    carry: Callable[["Redis", Composition], Awaitable[None]],
    judge: Callable[["Redis", Mapping[str, int]], Awaitable[OutcomeT]],
    *,
    beside: Sequence["Redis"] = (),
    own: Mapping[str, Mapping[str, str]] | None = None,
    **variables: str,
) -> OutcomeT:
    """Start the composition in ``directory`` with ``variables``, ``carry`` messages through, stop it, and ``judge``.

    The latter is called with the exit status of each process. What the processes said is printed only where something
    differs. ``beside`` are further servers that the composition uses, ``own`` are variables of single processes by
    name. Raises ``PenstockError`` where a server holds data of a composition which is not a demo's.
    """
    said: list[Any] = []
    environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    print(f"{keyspace.name}: {directory / 'Procfile'} on {mask_password(url)}", file=sys.stderr)
    async with connect(url) as redis:
        for server in (redis, *beside):
            await keyspace.prepare(server)
        with Composition(directory, write=said.append) as composition:
            for name, given in (own or {}).items():
                words = " ".join(f"{variable}={shlex.quote(value)}" for variable, value in given.items())
                composition.commands[name] = f"export {words}; {composition.commands[name]}"
            composition.start(environ | {"REDIS": url} | variables)
            await carry(redis, composition)
            await asyncio.to_thread(composition.stop)
        outcome = await judge(redis, composition.statuses)
    if outcome.differences:
        for line in said:
            print(f"{line.name}: {line.data.decode(errors='backslashreplace').rstrip()}", file=sys.stderr)
    return outcome


class Sight(NamedTuple):
    """What is seen of the messages at one moment."""

    counts: tuple[int, ...]
    """How far they are: while these change, something moves."""
    through: bool
    waiting: bool
    """Whether something is on its way."""


async def until_through(composition: Composition, look: Callable[[], Awaitable[Sight]]) -> None:
    """Wait until all is through, or until that cannot be any more."""
    until = time.monotonic() + PATIENCE
    seen, since = tuple[int, ...](), time.monotonic()
    while time.monotonic() < until and len(composition.running) == len(composition.commands):
        sight = await look()
        if sight.waiting or sight.counts != seen:
            seen, since = sight.counts, time.monotonic()
        if not sight.waiting and (sight.through or time.monotonic() - since > STANDSTILL):
            return
        composition.poll()
        await asyncio.sleep(0.02)


async def push(redis: "Redis", source: str, rows: Sequence[bytes], batch: int, advance: Callable[[int], None]) -> None:
    """``rows`` oldest first; ``advance`` is called with the number of those just pushed."""
    for start in range(0, len(rows), batch):
        pushed = rows[start : start + batch]
        await redis.lpush(source, *pushed)
        advance(len(pushed))


def progress(*more: ProgressColumn, width: int = 40) -> Progress:
    """Bars on stderr, ``width`` characters wide, with columns of the caller's after the usual ones."""
    columns = (TextColumn("{task.description:9}"), BarColumn(width), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, *more, console=Console(stderr=True))
