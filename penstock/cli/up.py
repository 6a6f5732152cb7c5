"""``penstock up``: run a composition on this machine until it ends or is stopped."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli._frame import Json, complain, require_path, run
from penstock.cli._text import print_json
from penstock.cli._url import redis_option
from penstock.secrets import without_files

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
    orders: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: orders.append(number))
    with _server(url) as chosen, composition.start(without_files(os.environ | {"REDIS": chosen})):
        while composition.running and not composition.failed and not orders:
            composition.poll(0.1)
        first = [*composition.failed]
        for name in first:
            complain(f"{name} failed with status {composition.statuses[name]}: stopping the others", 1)
        orders.clear()
        composition.stop(hurry=lambda: bool(orders))
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


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url:
        yield url
        return
    from penstock.testing.server import EmbeddedServer

    with EmbeddedServer() as server:
        complain(f"an embedded server runs at {server.url}; its data is deleted when it ends", 0)
        yield server.url


def _write_json(line: "Line") -> None:
    for text in line.texts:
        print_json({"at": line.time.isoformat(), "name": line.name, "line": text})
