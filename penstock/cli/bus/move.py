"""``penstock bus move``: carry queues to the servers where the placement puts them."""

import asyncio
import re
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.encoding import counted
from penstock.base.urls import server_of
from penstock.cli._frame import Json, Misused, complain, masked, run
from penstock.cli._progress import progress
from penstock.cli._text import print_json, print_table, shown
from penstock.cli._url import resolve_url
from penstock.cli.bus._servers import Servers, all_connected

if TYPE_CHECKING:
    from penstock.bus.bus import Bus
    from penstock.bus.move import Mover, Step

PATIENCE_SECONDS = 10
MAX_ROWS = 20
"""Maximum number of queues that --dry-run shows."""


def move(
    servers: Servers = None,
    placement: Annotated[
        str,
        typer.Option(metavar="busmq|rendezvous", help="How names choose their server, the same as in your programs."),
    ] = "busmq",
    to: Annotated[
        str | None,
        typer.Option(metavar="URL", callback=resolve_url, help="Move them to this one of the servers instead."),
    ] = None,
    match: Annotated[str, typer.Option(metavar="PATTERN", help="Move queues of these names, e.g. 'orders:*'.")] = "*",
    durability: Annotated[
        str,
        typer.Option(
            metavar="memory|aof|replicas:N|replicas:majority",
            help="Where a queue must be at its new server before the former one deletes it.",
        ),
    ] = "memory",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be moved, and move nothing.")] = False,
    json: Json = False,
) -> None:
    """Move queues to the servers where the placement puts them.

    Name all servers of the bus, in its order, the new ones, too. First start every client with that list: one that has
    an older list does not find what has moved. Ids, order, ttl, metadata and what is not acknowledged are kept. Clients
    of ours wait while their queue is moved, and follow. Those of busmq must attach anew; run the move once more after
    that, since it gathers what they have pushed to the former server meanwhile.

    Ctrl-C leaves the queues in hand where they were. A killed move leaves some that clients wait for: run it again to
    continue. The exit status is 1 if a queue could not be moved.
    """
    run(_move(servers or [], placement, to, match, durability, dry_run, json))


async def _move(
    urls: Sequence[str], placement: str, to: str | None, pattern: str, durability: str, dry_run: bool, as_json: bool
) -> int:
    from penstock.bus import Bus, Placement
    from penstock.bus.move import Mover
    from penstock.core.durability import DURABILITY

    if placement not in [*Placement]:
        raise Misused(f"--placement {shown(placement)}: expected {' or '.join(Placement)}")
    addresses = [server_of(url) for url in urls]
    if len(urls) < 2:
        raise Misused("expected at least two servers: all of the bus, in its order")
    if to is not None and server_of(to) not in addresses:
        raise Misused(f"--to {masked(to)} is not one of the servers")
    if not re.fullmatch(DURABILITY, durability):
        raise Misused(f"--durability {shown(durability)}: expected memory, aof, replicas:N or replicas:majority")
    async with all_connected(urls) as clients:
        keys = sum([await redis.dbsize() for redis in clients.values()])
    async with Bus(*urls, placement=placement, patience=PATIENCE_SECONDS, durability=durability) as bus:
        target = None if to is None else bus.instances[addresses.index(server_of(to))]
        mover = Mover(bus, placement=Placement(placement), target=target)
        with progress("keys", keys) as advance:
            steps = await mover.plan(pattern, advance)
        if dry_run:
            return _show_plan(mover, steps, as_json)
        return await _carry(bus, mover, steps, as_json)


async def _carry(bus: "Bus", mover: "Mover", steps: "Sequence[Step]", as_json: bool) -> int:
    problems, started = list(mover.problems), time.monotonic()
    interrupted = asyncio.Event()

    def stop() -> None:
        interrupted.set()
        mover.stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    with progress("queues", len(steps)) as advance:

        def report(step: "Step", error: Exception | None) -> None:
            advance(1)
            if error is not None and not interrupted.is_set():
                problems.append(f"queue {shown(step.name)}: {shown(str(error))}")

        await mover.run(list(steps), report)
    seconds = time.monotonic() - started
    if as_json:
        numbers: dict[str, Any] = {"queues": mover.moved.queues, "messages": mover.moved.messages}
        numbers |= {"gathered": mover.moved.gathered, "seconds": seconds}
        print_json({**numbers, "interrupted": interrupted.is_set(), "problems": problems})
    else:
        typer.echo(_summary(mover, seconds))
        for line in problems:
            complain(line, 1)
    return 130 if interrupted.is_set() else int(bool(problems))


def _summary(mover: "Mover", seconds: float) -> str:
    moved = mover.moved
    late = f"; gathered {counted(moved.gathered, 'message')} pushed to a former server" if moved.gathered else ""
    if not moved.queues and not late:
        return "every queue is where it belongs: nothing moved"
    return f"moved {counted(moved.queues, 'queue')} with {counted(moved.messages, 'message')} in {seconds:.2f} s{late}"


def _show_plan(mover: "Mover", steps: "Sequence[Step]", as_json: bool) -> int:
    moves = [each for each in steps if not each.stray and not each.gone]
    if as_json:
        rows = [{"queue": each.name, "from": each.source.address, "to": each.target.address} for each in moves]
        print_json({"moves": rows, "problems": mover.problems})
    else:
        rows_ = [(shown(each.name), each.source.address, each.target.address) for each in moves[:MAX_ROWS]]
        if rows_:
            print_table("Queues to move", ("queue", "from", "to"), rows_)
        typer.echo(f"{counted(len(moves), 'queue')} would be moved")
        for line in mover.problems:
            complain(line, 1)
    return int(bool(mover.problems))
