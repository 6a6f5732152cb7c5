"""``penstock jobs pause`` and ``resume``: let no job of a stream begin, and let them begin again."""

from collections.abc import Sequence

import typer

from penstock.cli._frame import Json, run
from penstock.cli._text import print_json, shown
from penstock.cli.jobs._jobs import DEFAULT_PREFIX, Prefix, Redis, Stream, at, jobs_at, nodes_with


def pause(stream: Stream, redis: Redis = None, prefix: Prefix = DEFAULT_PREFIX, json: Json = False) -> None:
    """Let no job of a stream begin, in no process, until it is resumed.

    Jobs that run go on. Consumers of Node do not know of it. The exit status is 1 if the stream does not exist.
    """
    run(_pause(stream, redis, prefix, json))


def resume(stream: Stream, redis: Redis = None, prefix: Prefix = DEFAULT_PREFIX, json: Json = False) -> None:
    """Let jobs of a stream begin again. The exit status is 1 if it was not paused."""
    run(_resume(stream, redis, prefix, json))


async def _pause(stream: str, urls: Sequence[str] | None, prefix: str, as_json: bool) -> int:
    async with jobs_at(urls, prefix) as jobs:
        nodes = await nodes_with(jobs, stream)
        for node in nodes:
            await jobs.pause_at(node, stream)
    if as_json:
        print_json({"stream": stream, "paused": [at(node) for node in nodes]})
    else:
        typer.echo(f"{shown(stream)} is paused: no job begins until `penstock jobs resume {shown(stream)}`")
    return 0


async def _resume(stream: str, urls: Sequence[str] | None, prefix: str, as_json: bool) -> int:
    async with jobs_at(urls, prefix) as jobs:
        resumed = [at(node) for node in jobs.nodes if await jobs.play_at(node, stream)]
    if as_json:
        print_json({"stream": stream, "resumed": resumed})
    else:
        typer.echo(f"{shown(stream)} {'goes on' if resumed else 'was not paused'}")
    return int(not resumed)
