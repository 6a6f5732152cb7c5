"""``penstock outbox status``, ``keys`` and ``subscribers``: who gets what, and how much waits."""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import typer

from penstock.cli._frame import Json, masked, run
from penstock.cli._text import clock, print_json, print_table, shown
from penstock.cli.outbox._store import HERE, Datadir, Limit, brief, owner, reading, rows_of

if TYPE_CHECKING:
    from penstock.outbox.listing import Subscriber
    from penstock.outbox.trouble import Trouble

MOST_AWAY: Final = 10
"""Destinations that ``status`` names at most."""


def status(datadir: Datadir = HERE, json: Json = False) -> None:
    """Show how much an outbox holds, and the process that has it. Reads only, also while the outbox runs.

    Subscribers are destinations that have subscribed here. Of an outgoing message each copy counts that a destination
    has not acknowledged. Bytes are those in use, for all of it; what peers may fill, store_bytes, is known once an
    outbox has run here. Last are the destinations that could not be reached, if messages wait for them: since when, and
    the last error.
    """
    run(_status(datadir, json))


async def _status(datadir: "Datadir", as_json: bool) -> int:
    with reading(datadir) as store:
        from penstock.outbox import listing

        counts, lists, away, holder = store.counts(), listing.spooled(store), listing.away(store), owner(datadir)
        size, bound = store.size, store.peers_bound
    if as_json:
        print_json({
            **counts._asdict(),
            "bytes": size,
            "storeBytes": bound,
            "lists": [
                {
                    "server": each.server,
                    each.kind: shown(each.name),
                    "waiting": each.waiting,
                    "away": _fields(each.away),
                }
                for each in lists
            ],
            "away": {each.address: _fields(each.away) for each in away},
            "owner": None if holder is None else {"pid": holder.pid, "since": holder.since},
        })  # fmt: skip
        return 0
    for name, count in counts._asdict().items():
        typer.echo(f"{count:,} {name if count != 1 else name.removesuffix('s')}")
    for each in lists:
        where = f"{each.kind} {shown(each.name)} of {masked(each.server)}"
        typer.echo(f"{each.waiting:,} for the {where}, which has not taken them{_since(each.away)}")
    _show_away(away[:MOST_AWAY])
    if len(away) > MOST_AWAY:
        typer.echo(f"{len(away) - MOST_AWAY:,} more are away: see penstock outbox subscribers")
    typer.echo(f"{size:,} bytes on disk" + ("" if bound is None else f"; peers may fill {bound:,}"))
    if holder is None:
        typer.echo("not running")
    else:
        typer.echo(f"process {holder.pid or 'unknown'} has it since {holder.since or 'an unknown time'}")
    return 0


def _show_away(found: "Iterable[Subscriber]") -> None:
    for each in found:
        if each.away:
            typer.echo(f"{shown(each.address)} is away{_since(each.away)}")


def _since(away: "Trouble | None") -> str:
    return f" since {clock(away.since, 'minutes')} (UTC): {brief(away.error)}" if away else ""


def _fields(away: "Trouble | None") -> dict[str, Any] | None:
    return away and away._asdict()


def keys(datadir: Datadir = HERE, limit: Limit = None, json: Json = False) -> None:
    """List the keys that others are subscribed to here. --json prints one a line, with the subscribers."""
    run(_keys(datadir, limit, json))


async def _keys(datadir: "Datadir", limit: int | None, as_json: bool) -> int:
    with reading(datadir) as store:
        from penstock.outbox import listing

        found = listing.keys(store)
        if as_json:
            for each in islice(found, limit):
                print_json({"key": each.key, "subscribers": listing.addresses_of(store, each.key)})
        elif rows := rows_of(found, limit, "keys"):
            print_table("keys", ("key", "subscribers"), [(brief(each.key), each.subscribers) for each in rows])
        else:
            typer.echo("nobody has subscribed")
    return 0


def subscribers(datadir: Datadir = HERE, limit: Limit = None, json: Json = False) -> None:
    """List all addresses that messages go to or that we have subscribed to.

    keys: that it has subscribed to here. waiting: messages that it has not acknowledged. ours: keys that we have
    subscribed to there. Below is why those that messages wait for could not be reached. --json prints one a line.
    """
    run(_subscribers(datadir, limit, json))


async def _subscribers(datadir: "Datadir", limit: int | None, as_json: bool) -> int:
    with reading(datadir) as store:
        from penstock.outbox import listing

        found = listing.subscribers(store)
        if as_json:
            for each in islice(found, limit):
                keys = listing.keys_of(store, each.address)
                print_json({**each._asdict(), "keys": keys, "away": _fields(each.away)})
        elif rows := rows_of(found, limit, "addresses"):
            shown_rows = [(shown(each.address), each.keys, each.waiting, each.ours) for each in rows]
            print_table("addresses", ("address", "keys", "waiting", "ours"), shown_rows)
            _show_away(rows)
        else:
            typer.echo("no addresses")
    return 0
