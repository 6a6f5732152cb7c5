"""Options of all commands for jobs, the connection, and how jobs look in a table."""

import base64
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.base.errors import WrongCall
from penstock.base.exact_json import parse_whole
from penstock.cli._frame import DEFAULT_URL, NAME_ANOTHER, Failed, Misused, masked
from penstock.cli._text import shown
from penstock.cli._url import URL_FORMS
from penstock.cli.bus._servers import all_connected, resolve_urls

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.jobs import Jobs

PATIENCE_SECONDS: Final = 10
"""Seconds that a call waits for a server that goes away."""
DEFAULT_PREFIX: Final = "hfxbus"
ENTRY: Final = re.compile(r"\d+-\d+")
CELL_WIDTH: Final = 40
"""Characters of an error or a value in a table."""

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream, without `hfxbus:str:`.")]
Job = Annotated[str, typer.Argument(metavar="JOB|ENTRY", help="The id of the job, or its entry in the stream.")]
Redis = Annotated[
    list[str] | None,
    typer.Option(
        "--redis",
        metavar="URL",
        callback=resolve_urls,
        help=f"A server of the jobs; repeat it for several, in their order. Default: REDIS, which may name several. "
        f"{URL_FORMS}",
    ),
]
Prefix = Annotated[str, typer.Option(metavar="TEXT", help="What all keys begin with: hfxbus's keyPrefix.")]
Routes = Annotated[
    list[str] | None,
    typer.Option(
        "--route", metavar="NAME=N", help="A static route: NAME is on server N, from 0; repeat it for several."
    ),
]


@asynccontextmanager
async def jobs_at(
    urls: Sequence[str] | None, prefix: str, routes: Sequence[str] | None = None
) -> AsyncIterator["Jobs"]:
    """Connect to all servers. Raise ``Misused`` and ``Failed``."""
    from penstock.jobs import Jobs

    urls = urls or [DEFAULT_URL]
    async with all_connected(urls, advice=NAME_ANOTHER):
        pass
    try:
        jobs = Jobs(*urls, prefix=prefix, routes=_routes(routes), patience=PATIENCE_SECONDS)
    except WrongCall as error:
        raise Misused(str(error)) from None
    async with jobs:
        yield jobs


def _routes(words: Sequence[str] | None) -> dict[str | int, int]:
    found = dict[str | int, int]()
    for word in words or ():
        name, _, place = word.rpartition("=")
        if not name or not place.isdecimal():
            raise Misused(f"--route {shown(word)}: expected NAME=N, N the place of a server, from 0")
        found[name] = int(place)
    return found


def no_such_stream(jobs: "Jobs", stream: str) -> Failed:
    """Return the error for a stream that no server has."""
    return Failed(
        f"{servers_of(jobs, 'has', 'have')} no stream {shown(stream)}: `penstock jobs status` lists all that exist"
    )


def no_such_job(jobs: "Jobs", stream: str, job: str) -> Failed:
    """Return the error for a job that no server has."""
    found = f"{servers_of(jobs, 'has', 'have')} no job {shown(job)} in stream {shown(stream)}"
    return Failed(f"{found}: what all groups have done is removed; `penstock jobs list {shown(stream)}` shows the rest")


def servers_of(jobs: "Jobs", one: str, several: str) -> str:
    """Return the servers as the subject of a sentence."""
    return f"this server {one}" if len(jobs.nodes) == 1 else f"these {len(jobs.nodes)} servers {several}"


async def nodes_with(jobs: "Jobs", stream: str) -> "list[Instance]":
    """Return the servers that have anything of a stream. Raise ``Failed`` if none has."""
    from penstock.inspect.jobs import read_streams

    found = []
    for node in jobs.nodes:
        state = await anext(read_streams(node, jobs.keys, [stream]))
        if state.exists:
            found.append(node)
    if not found:
        raise no_such_stream(jobs, stream)
    return found


async def nodes_with_entry(jobs: "Jobs", stream: str, entry: str) -> "list[Instance]":
    """Return the servers whose stream has an entry."""
    from penstock.inspect.jobs import entry_at

    return [node for node in jobs.nodes if await entry_at(node, jobs.keys, stream, entry) is not None]


def at(node: "Instance") -> str:
    """Return the name of a server."""
    return masked(node.url)


def brief(error: Any, width: int = CELL_WIDTH) -> str:
    """Return the begin of an error, as consumers publish it, as one line."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        error = f"{error['name']}: {error['message']}" if error.get("name") else error["message"]
    text = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    line = shown(re.sub(r"\s+", " ", text[: 4 * width]))
    return line if len(line) <= width else f"{line[: width - 1]}…"


def as_fields(value: bytes) -> dict[str, Any]:
    """Return a value as JSON has it: ``value`` if it is JSON, else ``value64``."""
    try:
        return {"value": parse_whole(value)} if value else {"value": None}
    except (ValueError, RecursionError):
        return {"value64": base64.b64encode(value).decode()}
