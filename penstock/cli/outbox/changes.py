"""``penstock outbox requeue``, ``remove``, ``purge``, ``unlock``, ...: change a store that nobody has."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.base.encoding import counted
from penstock.base.errors import WrongCall
from penstock.cli._frame import Failed, Json, Misused, require_path, run
from penstock.cli._text import print_json, print_table, shown
from penstock.cli.outbox._store import (
    HERE,
    Datadir,
    changing,
    reading,
    require_message,
    require_store,
)

if TYPE_CHECKING:
    from penstock.outbox.store import Store

KINDS: Final = ("incoming", "outgoing", "dead")
STEP: Final = 1000
"""Dead letters that are sent again in one transaction."""


def requeue(
    number: Annotated[
        int | None, typer.Argument(metavar="NUMBER", help="The dead letter, as `penstock outbox dead` shows it.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    datadir: Datadir = HERE,
    json: Json = False,
) -> None:
    """Let a dead letter wait again: for its handlers, or for the destination or list that would not take it.

    It goes to the end, with as many attempts as at first. Refused while the outbox runs.
    """
    run(_requeue(number, everything, datadir, json))


async def _requeue(number: int | None, everything: bool, datadir: Path, as_json: bool) -> int:
    if (number is None) != everything:
        raise Misused("expected the number of a dead letter, or --all")
    with changing(datadir) as store:
        if number is None:
            count = sum(_requeued(store))
        else:
            with store.transaction():
                count = int(store.requeue(number))
            if not count:
                raise Failed(f"no dead letter {number}: `penstock outbox dead` lists them")
    _tell("requeued", count, f"{count:,} dead letter{'s wait' if count != 1 else ' waits'} again", as_json)
    return 0


def _requeued(store: "Store") -> Iterator[int]:
    """Requeue all that are dead now, some in a transaction; yield how many."""
    after = 0
    while letters := store.list_dead(after, 1):
        numbers = [letters[0].number]
        found = store.connection.execute(
            "SELECT number FROM dead WHERE number > ? ORDER BY number LIMIT ?", (numbers[0], STEP - 1)
        )
        numbers += [number for (number,) in found.fetchall()]
        with store.transaction():
            yield sum(map(store.requeue, numbers))
        after = numbers[-1]


def remove(
    what: Annotated[
        str, typer.Argument(metavar="ID|ADDRESS", help="The id of a message, or the address of a destination.")
    ],
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Of an address, end only its subscription to this key.")
    ] = None,
    datadir: Datadir = HERE,
    json: Json = False,
) -> None:
    """Remove a message wherever it waits, or a destination with its subscriptions and all that waits for it.

    Refused while the outbox runs. The exit status is 1 if neither exists.
    """
    run(_remove(what, key, datadir, json))


async def _remove(what: str, key: str | None, datadir: Path, as_json: bool) -> int:
    with changing(datadir) as store:
        if ":" not in what:
            id = require_message(what) or b""
            if key is not None:
                raise Misused("--key is for an address")
            with store.transaction():
                count = store.remove(id)
            text = f"{what} is removed from {counted(count, 'place')}"
        else:
            count, text = _remove_address(store, what, key)
    if not count:
        raise Failed(f"{shown(what)} is unknown here" + (f", or not subscribed to {shown(key)}" if key else ""))
    _tell("removed", count, text, as_json)
    return 0


def _remove_address(store: "Store", address: str, key: str | None) -> tuple[int, str]:
    with store.transaction():
        if key is None:
            known = address in store.destinations()
            store.forget([address])
            return int(known), f"{shown(address)} is removed, with its subscriptions and all that waited for it"
        known = (key, address) in store.subscriptions()
        store.remove_subscriptions(address, [key])
        return int(known), f"{shown(address)} is not subscribed to {shown(key)} any more"


def trust(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="What the other outbox advertises.")],
    datadir: Datadir = HERE,
    json: Json = False,
) -> None:
    """Let another store subscribe with an address: that outbox was installed anew.

    An address belongs to the store that first subscribes with it; others that say it is theirs are refused. Now it
    belongs to the next one. Refused while the outbox runs. The exit status is 1 if the address belongs to no store.
    """
    run(_trust(address, datadir, json))


async def _trust(address: str, datadir: Path, as_json: bool) -> int:
    with changing(datadir) as store, store.transaction():
        count = store.trust([address])
    if not count:
        raise Failed(f"{shown(address)} has not subscribed here: the first store that does is trusted")
    _tell("trusted", count, f"{shown(address)} belongs to the store that subscribes next", as_json)
    return 0


def purge(
    what: Annotated[str, typer.Argument(metavar="|".join(KINDS), help="What to remove.")],
    yes: Annotated[bool, typer.Option("--yes", help="Confirm permanent deletion.")] = False,
    datadir: Datadir = HERE,
    json: Json = False,
) -> None:
    """Remove all incoming messages, all outgoing ones or all dead letters permanently.

    Without --yes it deletes nothing and says how many it would delete. Refused while the outbox runs.
    """
    run(_purge(what, yes, datadir, json))


async def _purge(what: str, yes: bool, datadir: Path, as_json: bool) -> int:
    if what not in KINDS:
        raise Misused(f"{shown(what)}: expected {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if not yes:
        with reading(datadir) as store:
            count = store.counts()._asdict()[what]
        raise Misused(f"{count:,} {what} would be deleted permanently: pass --yes to confirm")
    with changing(datadir) as store, store.transaction():
        count = store.purge(what)
    _tell("removed", count, f"{count:,} {what} removed", as_json)
    return 0


def unlock(datadir: Datadir = HERE, json: Json = False) -> None:
    """Remove the lock file that a crashed outbox has left. It blocks nobody: the system frees the lock itself.

    Refused while the owner lives. The exit status is 0 also if there is nothing to unlock.
    """
    run(_unlock(datadir, json))


async def _unlock(datadir: Path, as_json: bool) -> int:
    require_store(datadir)
    from penstock.outbox.lock import NAME, remove_stale

    removed = remove_stale(datadir)
    text = f"removed {shown(str(datadir / NAME))}" if removed else "nothing to unlock"
    _tell("removed", int(removed), text, as_json)
    return 0


def compact(datadir: Datadir = HERE, json: Json = False) -> None:
    """Give the space of removed messages back to the disk. Refused while the outbox runs.

    As much free space as the rest of the store has is needed meanwhile.
    """
    run(_compact(datadir, json))


async def _compact(datadir: Path, as_json: bool) -> int:
    with changing(datadir) as store:
        before = _size(store)
        store.compact()
        after = _size(store)
    if as_json:
        print_json({"before": before, "after": after})
    else:
        typer.echo(f"{before:,} bytes before, {after:,} bytes now")
    return 0


def salvage(
    datadir: Annotated[Path, typer.Argument(metavar="DIR", help="The datadir of an outbox that is damaged.")],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="NEW", show_default=False, help="The new datadir; default: DIR.salvaged."),
    ] = None,
    json: Json = False,
) -> None:
    """Copy what verifies of a damaged store into a new datadir, and say what does not.

    Messages, marks of duplicates, dead letters, subscriptions and the identity of the store are copied. DIR stays as it
    is: look at the copy, then move it to where DIR was. The exit status is 1 if something could not be copied.
    """
    run(_salvage(datadir, to or datadir.with_name(f"{datadir.absolute().name}.salvaged"), json))


async def _salvage(datadir: Path, target: Path, as_json: bool) -> int:
    require_path(datadir)
    from penstock.outbox.salvage import salvage

    try:
        found = salvage(datadir, target)
    except FileExistsError:
        raise Misused(f"{shown(str(target))} exists: name a new datadir with --to") from None
    except WrongCall as error:
        raise Misused(str(error)) from None
    if as_json:
        print_json({"to": str(target), **{each.table: {"copied": each.copied, "lost": each.lost} for each in found}})
    else:
        rows = [(each.table, each.copied, "\n".join(each.lost)) for each in found if each.copied or each.lost]
        print_table(f"copied to {shown(str(target))}", ("what", "copied", "not copied"), rows)
    return int(any(each.lost for each in found))


def _size(store: "Store") -> int:
    log = store.path.with_name(f"{store.path.name}-wal")
    return sum(path.stat().st_size for path in (store.path, log) if path.exists())


def _tell(name: str, count: int, text: str, as_json: bool) -> None:
    if as_json:
        print_json({name: count})
    else:
        typer.echo(text)
