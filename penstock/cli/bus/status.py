"""``penstock bus status``: show the queues of a bus."""

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.base.encoding import counted
from penstock.cli._frame import Json, masked, run
from penstock.cli._progress import progress
from penstock.cli._text import print_json, print_table, shown
from penstock.cli.bus._servers import Servers, all_connected

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.inspect.queues import QueueState

DEFAULT_ROWS: Final = 100
COLUMNS: Final = ("queue", "waiting", "unacked", "ttl", "last id", "consumers")


def status(
    servers: Servers = None,
    match: Annotated[str, typer.Option(metavar="PATTERN", help="Show queues of these names, e.g. 'orders:*'.")] = "*",
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Show at most this many queues a server; default: {DEFAULT_ROWS}, with --json all."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show them again every second, until ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show the queues of a bus, by name.

    Of each queue: the messages that wait, those that are taken and not acknowledged, the seconds until it expires and
    its ttl, the last id, and the connections that wait for messages. A queue without metadata, or on several servers,
    is reported; the exit status is then 1. No queue is kept alive by looking at it.
    """
    run(_status(servers or [], match, limit if limit or json else DEFAULT_ROWS, watch, json))


async def _status(urls: Sequence[str], pattern: str, limit: int | None, watch: bool, as_json: bool) -> int:
    stop, failed = asyncio.Event(), False
    if watch:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with all_connected(urls) as servers:
        while True:
            failed = bool(await _show(servers, pattern, limit, as_json)) or failed
            if watch and not stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await stop.wait()
            if not watch or stop.is_set():
                return int(failed)


async def _show(servers: dict[str, "Redis"], pattern: str, limit: int | None, as_json: bool) -> list[str]:
    """Print the queues of all servers, and return what is wrong with them."""
    from penstock.inspect.queues import queue_names, read_queues

    places, found, problems = Counter[str](), list[dict[str, Any]](), list[str]()
    for url, redis in servers.items():
        with progress(f"keys of {masked(url)}", await redis.dbsize()) as advance:
            names = await queue_names(redis, pattern, advance)
        chosen = names[:limit]
        with progress(f"queues of {masked(url)}", len(chosen)) as advance:
            states = list["QueueState"]()
            async for each in read_queues(redis, chosen):
                states.append(each)
                advance(1)
        places.update(names)
        problems += [f"{shown(each.name)}: {words}" for each in states for words in each.problems]
        if as_json:
            found.append({"server": masked(url), "total": len(names), "queues": [asdict(each) for each in states]})
        else:
            _print(url, states, len(names), pattern)
    twice = [name for name, many in places.items() if many > 1]
    problems += [f"{shown(name)} is on {places[name]} servers: clients find only the first" for name in twice]
    if as_json:
        print_json({"servers": found, "problems": problems})
    else:
        for line in problems:
            typer.echo(line)
    return problems


def _print(url: str, states: "Sequence[QueueState]", total: int, pattern: str) -> None:
    if not states:
        typer.echo(f"{masked(url)}: no queues" + ("" if pattern == "*" else f" match {shown(pattern)}"))
        return
    more = [_more(each) for each in states]
    columns = (*COLUMNS, "more") if any(more) else COLUMNS
    rows = [_row(each, rest)[: len(columns)] for each, rest in zip(states, more, strict=True)]
    print_table(f"{masked(url)}: {counted(total, 'queue')}", columns, rows)
    if total > len(states):
        typer.echo(f"{total - len(states):,} more queues: --limit shows more, --match chooses")


def _row(state: "QueueState", more: str) -> list[object]:
    left = "-" if state.left is None else f"{state.left:.0f}"
    ttl = "-" if state.ttl is None else f"{left}/{state.ttl}"
    counts = ["?" if count is None else count for count in (state.waiting, state.unacknowledged)]
    return [shown(state.name), *counts, ttl, state.last_id, state.consumers, more]


def _more(state: "QueueState") -> str:
    """Return what few queues have."""
    parts = []
    if state.maxsize:
        parts.append(f"maxsize {state.maxsize:,}")
    if state.lease:
        parts.append(f"lease {shown(state.lease)[:8]}")
    if state.source not in (None, "local"):
        parts.append(f"from {shown(state.source or '')}")
    if state.discoverable:
        parts.append("discoverable")
    if state.moving:
        parts.append(f"moving to {shown(state.moving)}")
    return "\n".join(parts)
