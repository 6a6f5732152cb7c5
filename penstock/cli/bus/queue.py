"""``penstock bus queue``: show all about one queue."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli._frame import Json, masked, run
from penstock.cli._text import print_json, print_table, shown
from penstock.cli.bus._servers import Servers, all_connected, no_such_queue

if TYPE_CHECKING:
    from penstock.inspect.queues import QueueState

Span = tuple[int, int] | None


def queue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The queue, without `bus:queue:`.")],
    servers: Servers = None,
    json: Json = False,
) -> None:
    """Show one queue in detail.

    Its server, messages, ids, consumers, lease and metadata are shown. The exit status is 1 if it does not exist, has
    no metadata, or is on several servers.
    """
    run(_queue(name, servers or [], json))


async def _queue(name: str, urls: Sequence[str], as_json: bool) -> int:
    from penstock.inspect.queues import ends, read_queues

    found, problems = list[dict[str, Any]](), list[str]()
    async with all_connected(urls) as servers:
        for url, redis in servers.items():
            (state,) = [each async for each in read_queues(redis, [name])]
            if state.has_keys:
                spans: list[Span] = [None, None]
                if state.waiting is not None and state.unacknowledged is not None:
                    spans = await ends(redis, name)
                problems += state.problems
                found.append({"server": masked(url), "state": state, "waiting": spans[0], "unacknowledged": spans[1]})
        if not found:
            raise no_such_queue(name, len(servers))
    if len(found) > 1:
        problems.append(f"it is on {len(found)} servers: clients find only the first")
    if as_json:
        print_json({"queue": name, "found": [_as_json(each) for each in found], "problems": problems})
        return int(bool(problems))
    for each in found:
        print_table(f"{shown(name)} on {each['server']}", ("what", "value"), _rows(each))
    for line in problems:
        typer.echo(line)
    return int(bool(problems))


def _as_json(found: dict[str, Any]) -> dict[str, Any]:
    spans = {f"{kind}_ids": found[kind] for kind in ("waiting", "unacknowledged")}
    return {"server": found["server"], **asdict(found["state"]), **spans}


def _rows(found: dict[str, Any]) -> list[list[object]]:
    state: QueueState = found["state"]
    left = "it never expires" if state.left is None else f"expires in {state.left:.1f} s unless it is kept alive"
    lease = "-" if state.lease is None else f"{shown(state.lease)}, {state.lease_left or 0:.1f} s left"
    rows: list[list[object]] = [
        ["waiting", _counted(state.waiting, found["waiting"])],
        ["not acknowledged", _counted(state.unacknowledged, found["unacknowledged"])],
        ["last id", f"{state.last_id:,}"],
        ["ttl", "-" if state.ttl is None else f"{state.ttl} s; {left}"],
        ["maxsize", f"{state.maxsize:,}" if state.maxsize else "no limit"],
        ["consumers", f"{state.consumers:,} listening"],
        ["lease", lease],
        ["source", shown(state.source or "-")],
        ["discoverable", "yes" if state.discoverable else "no"],
    ]
    if state.moving:
        rows.append(["moving to", shown(state.moving)])
    return rows + [[f"metadata: {shown(field)}", shown(value)] for field, value in sorted(state.fields.items())]


def _counted(many: int | None, span: Span) -> str:
    if many is None:
        return "?"
    return f"{many:,}, ids {span[0]:,} to {span[1]:,}" if span else f"{many:,}"
