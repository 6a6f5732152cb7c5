"""``penstock up``: run a composition on this machine until it ends or is stopped."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.secrets import without_files
from penstock.cli._frame import Json, complain, require_path, run
from penstock.cli._text import print_json
from penstock.cli._url import redis_option

if TYPE_CHECKING:
    from penstock.composition.procfile import Line, ProcessGroup


def up(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The composition: a folder with a Procfile.")],
    redis: Annotated[str | None, redis_option("The server; default: an embedded one.")] = None,
    json: Json = False,
) -> None:
    """Run a composition on this machine.

    The processes of DIR/Procfile run in the current folder, with REDIS set, until ctrl-C or SIGTERM; a second ctrl-C
    kills them. If one ends with status 0 the others go on; if one fails they are stopped, and the exit status is 1.
    """
    run(_up(directory, redis, json))


async def _up(directory: Path, url: str | None, as_json: bool) -> int:
    from penstock.composition.procfile import ProcessGroup

    require_path(directory)
    composition = ProcessGroup(directory, write=_write_json if as_json else None)
    order = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, order.set)
    async with _server(url) as chosen, composition:
        await composition.start(without_files(os.environ | {"REDIS": chosen}))
        await composition.wait(order)
        first = [*composition.failed]
        for name in first:
            complain(f"{name} failed with status {composition.statuses[name]}: stopping the others", 1)
        order.clear()
        await composition.stop(order)
    return _end(composition, first, as_json)


def _end(composition: "ProcessGroup", already_reported: list[str], as_json: bool) -> int:
    if as_json:
        print_json({"statuses": composition.statuses, "failed": composition.failed})
    for name in composition.failed:
        if name not in already_reported:
            complain(f"{name} did not stop cleanly: status {composition.statuses[name]}", 1)
    for name in composition.running:
        complain(f"{name} was killed, but a process that it started keeps its output open", 1)
    return int(bool(composition.failed or composition.running))


@asynccontextmanager
async def _server(url: str | None) -> AsyncIterator[str]:
    if url:
        yield url
        return
    from penstock.testing.server import EmbeddedServer

    async with EmbeddedServer() as server:
        complain(f"an embedded server runs at {server.url}; its data is deleted when it ends", 0)
        yield server.url


def _write_json(line: "Line") -> None:
    for text in line.texts:
        print_json({"at": line.time.isoformat(), "name": line.name, "line": text})
