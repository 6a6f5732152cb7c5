"""``penstock audit``: the proof that a service has neither lost nor doubled a message."""

import asyncio
import signal
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.frame import DEFAULT, Json, RedisUrl, complain, connected, run
from penstock.cli.status import unknown
from penstock.cli.text import print_json, print_table, shown

if TYPE_CHECKING:
    from penstock.audit import Audit
    from penstock.ledger import Ledger

COLUMNS = ("list", "taken", "delivered", "dead", "dropped", "pending", "missing")


def audit(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of the service.")],
    watch: Annotated[bool, typer.Option("--watch", help="Once a second, until ctrl-C; 1 if it ever failed.")] = False,
    redis: RedisUrl = DEFAULT,
    json: Json = False,
) -> None:
    """Prove that nothing was lost or doubled.

    For every list that a hop feeds, taken = delivered + dead + dropped + pending. Where messages are tracked, taken =
    registered + untracked + dead at the door + pending, and registered = done + dead + expired + in flight + delayed.
    All is read at one instant.
    """
    run(_audit(namespace, watch, redis, json))


async def _audit(namespace: str, watch: bool, url: str, as_json: bool) -> int:
    from penstock.audit import audit
    from penstock.keys import Keys
    from penstock.ledger import ledger

    stop, failed = asyncio.Event(), False
    if watch:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connected(url) as redis:
        while True:
            result = await ledger(redis, Keys(namespace)) or await audit(redis, Keys(namespace))
            if result is None:
                raise await unknown(redis, redis, namespace)
            _print(result, as_json, brief=watch)
            failed = failed or not result.holds
            if not watch or stop.is_set():
                return int(failed)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1)
                return int(failed)


def _print(result: "Audit | Ledger", as_json: bool, *, brief: bool) -> None:
    if as_json:
        print_json(_plain(result))
        return
    held = sum(result.pending.values())
    if brief:
        wrong = f"{len(result.problems)} problem{'s' if len(result.problems) > 1 else ''}"
        found = "conserved" if result.holds else f"NOT CONSERVED, {wrong}"
        typer.echo(f"{shown(result.namespace)}: {result.messages:,} settled, {held:,} pending: {found}")
    else:
        _table(result)
    for problem in result.problems:
        complain(problem, 1)
    if not brief and result.holds:
        typer.echo(f"conserved: {result.messages:,} messages settled, {held:,} pending")


def _table(result: "Audit | Ledger") -> None:
    from penstock.audit import Audit

    name = shown(result.namespace)
    if isinstance(result, Audit):
        rows: list[list[object]] = [[shown(leg.name), *_numbers(leg).values()] for leg in result.legs]
        print_table(f"{name}: taken = delivered + dead + dropped + pending", COLUMNS, rows)
        return
    steps = [each for law in result.laws for each in ((law.whole, law.count), *_indented(law.parts))]
    print_table(f"{name}: tracked messages", ("step", "count"), [[*step] for step in steps])


def _indented(parts: dict[str, int]) -> list[tuple[str, int]]:
    return [(f"  {name}", count) for name, count in parts.items()]


def _plain(result: "Audit | Ledger") -> dict[str, Any]:
    from penstock.audit import Audit

    if isinstance(result, Audit):
        parts: dict[str, Any] = {"legs": [{"list": leg.name, **_numbers(leg)} for leg in result.legs]}
    else:
        parts = {"laws": [{**asdict(law), "missing": law.difference} for law in result.laws]}
    return {**asdict(result), **parts, "holds": result.holds}


def _numbers(leg: Any) -> dict[str, int]:
    return {name: getattr(leg, name) for name in COLUMNS[1:-1]} | {"missing": leg.difference}
