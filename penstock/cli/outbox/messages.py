"""``penstock outbox incoming``, ``outgoing`` and ``dead``: list messages."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli._frame import Failed, Json, run
from penstock.cli._text import clock, print_json, print_table, shown
from penstock.cli.outbox._store import HERE, Datadir, Limit, body_of, brief, names, reading, require_message, rows_of

if TYPE_CHECKING:
    from penstock.outbox.listing import Letter, Listed
    from penstock.outbox.store import Store

Message = Annotated[str | None, typer.Argument(metavar="ID", help="Only the message with this id.")]


def incoming(message: Message = None, datadir: Datadir = HERE, limit: Limit = None, json: Json = False) -> None:
    """List the messages that have come and whose handlers have not returned, the oldest first.

    attempts: how often handlers began before. --json prints one a line, with the sender and the data.
    """
    run(_listed("incoming", message, datadir, limit, json))


def outgoing(message: Message = None, datadir: Datadir = HERE, limit: Limit = None, json: Json = False) -> None:
    """List the messages that a destination has not acknowledged, the oldest first.

    --json prints one a line, with the data.
    """
    run(_listed("outgoing", message, datadir, limit, json))


def dead(message: Message = None, datadir: Datadir = HERE, limit: Limit = None, json: Json = False) -> None:
    """List the dead letters, the oldest first: handlers have failed, or a destination would not take it.

    number: what `penstock outbox requeue` takes. --json prints one a line, with the data.
    """
    run(_listed("dead", message, datadir, limit, json))


async def _listed(what: str, message: str | None, datadir: Path, limit: int | None, as_json: bool) -> int:
    with reading(datadir) as store:
        id = require_message(message)
        found: Iterator[Any] = _found(store, what, id, data=as_json)
        rows = list[Any]()
        if as_json:
            for each in islice(found, limit):
                rows = [each]
                print_json(_letter_fields(each) if what == "dead" else _fields(each, what))
        else:
            rows = rows_of(found, limit, "messages" if what != "dead" else "dead letters")
            _print(what, rows)
    if id is not None and not rows:
        raise Failed(f"no {what} message {message}")
    return 0


def _found(store: "Store", what: str, id: bytes | None, *, data: bool) -> Iterator[Any]:
    from penstock.outbox import listing

    kinds: dict[str, Any] = {"incoming": listing.incoming, "outgoing": listing.outgoing, "dead": listing.dead}
    found: Iterator[Any] = kinds[what](store, id, data=data)
    return found


def _print(what: str, rows: list[Any]) -> None:
    if not rows:
        typer.echo(f"no {what} messages" if what != "dead" else "no dead letters")
    elif what == "incoming":
        came = [(_text(each), names(each.keys), each.size, each.attempts) for each in rows]
        print_table("incoming", ("id", "keys", "bytes", "attempts"), came)
    elif what == "outgoing":
        to = [(_text(each), names(each.keys), each.size, names(each.addresses)) for each in rows]
        print_table("outgoing", ("id", "keys", "bytes", "to"), to)
    else:
        letters = [_letter_row(each) for each in rows]
        print_table("dead letters", ("number", "died (UTC)", "keys", "peer", "error"), letters)


def _text(found: "Listed | Letter") -> str:
    from penstock.outbox.ids import as_text

    return as_text(found.id)


def _letter_row(letter: "Letter") -> tuple[object, ...]:
    peer = f"{'to' if letter.outgoing else 'from'} {shown(letter.address)}"
    return letter.number, clock(letter.at, "minutes"), names(letter.keys), peer, brief(letter.error)


def _fields(found: "Listed", what: str) -> dict[str, Any]:
    from penstock.outbox.ids import sent_at

    fields = {"id": _text(found), "sent": sent_at(found.id), "keys": found.keys}
    if what == "outgoing":
        return {**fields, "to": found.addresses, **body_of(found.data)}
    more = {"from": found.addresses[0], "attempts": found.attempts, "error": found.error or None}
    return {**fields, **more, **body_of(found.data)}


def _letter_fields(letter: "Letter") -> dict[str, Any]:
    return {
        "number": letter.number, "id": _text(letter), "keys": letter.keys,
        "to" if letter.outgoing else "from": letter.address, "attempts": letter.attempts, "at": letter.at,
        "error": letter.error, **body_of(letter.data),
    }  # fmt: skip
