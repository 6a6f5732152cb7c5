"""What the commands of ``penstock outbox`` share: the datadir, its store to read or to change, and messages as JSON."""

import base64
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from penstock.cli._frame import Failed, Misused, require_path
from penstock.cli._text import shown

if TYPE_CHECKING:
    from penstock.outbox.lock import Owner
    from penstock.outbox.store import Store

DEFAULT_LIMIT: Final = 100
WIDTH: Final = 200
"""Maximum number of characters of a text in a table."""
T = TypeVar("T")

Datadir = Annotated[
    Path,
    typer.Option(
        "--datadir",
        metavar="DIR",
        show_default=False,
        help="The datadir of the outbox; default: the current directory.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help=f"Show at most N rows; default: {DEFAULT_LIMIT}, with --json all."),
]
HERE: Final = Path()


@contextmanager
def reading(datadir: Path) -> "Iterator[Store]":
    """Yield the store to read, also while its owner runs. Raise ``Misused`` if there is none."""
    store_class = _required(datadir)
    if owner(datadir) is None:
        from penstock.outbox.store import NAME, log

        log.check(datadir / NAME, expected=False)  # SQLite forgets how much there was once it reads the log
    with _explained(datadir), closing(store_class.read(datadir)) as store, store.translated():
        yield store


def require_store(datadir: Path) -> None:
    """Raise ``Misused`` if ``datadir`` has no store."""
    _required(datadir)


@contextmanager
def changing(datadir: Path) -> "Iterator[Store]":
    """Yield the store to change. Raise ``Locked`` while its owner lives, ``Misused`` if there is none."""
    store_class = _required(datadir)
    from penstock.outbox.lock import Lock

    lock = Lock(datadir)
    try:
        with _explained(datadir), closing(store_class.open(datadir, has_log=lock.has_log)) as store, store.translated():
            lock.note_log(False)
            yield store
    finally:
        lock.release()


@contextmanager
def _explained(datadir: Path) -> Iterator[None]:
    """Raise ``Failed`` for what SQLite reports and the store does not translate, e.g. that it is locked."""
    try:
        yield
    except sqlite3.Error as error:
        raise Failed(f"{shown(str(datadir))}: {error}") from error


def owner(datadir: Path) -> "Owner | None":
    """Return the living process that has the outbox."""
    from penstock.outbox.lock import owner_of

    return owner_of(datadir)


def _required(datadir: Path) -> "type[Store]":
    """Return the class of stores. Raise ``Misused`` if ``datadir`` has none, ``OSError`` if it may not be read."""
    from penstock.outbox.store import NAME, Store

    require_path(datadir)
    try:
        (datadir / NAME).open("rb").close()
    except (FileNotFoundError, NotADirectoryError):
        where = shown(str(datadir.absolute()))
        raise Misused(f"{where} has no {NAME}: name the datadir of an outbox with --datadir") from None
    return Store


def require_message(text: str | None) -> bytes | None:
    """Return the id that ``text`` is; None for None. Raise ``Misused``."""
    from penstock.outbox.ids import as_id

    try:
        return None if text is None else as_id(text)
    except ValueError:
        raise Misused(
            f"{shown(text or '')} is not the id of a message, e.g. 01890a5d-ac96-774b-bcce-b302099a8057"
        ) from None


def rows_of(found: Iterable[T], limit: int | None, title: str) -> list[T]:
    """Return the rows of a table; say if there are more."""
    most = limit or DEFAULT_LIMIT
    rows = list(islice(found, most + 1))
    if len(rows) > most:
        typer.echo(f"penstock: these are the first {most:,} {title}: --limit shows more, --json all", err=True)
    return rows[:most]


def body_of(data: bytes | None) -> dict[str, Any]:
    """Return the data of a message as JSON has it: ``data`` if it is text, else ``data64``."""
    try:
        return {"data": (data or b"").decode()}
    except ValueError:
        return {"data64": base64.b64encode(data or b"").decode()}


def brief(text: str, width: int = WIDTH) -> str:
    """Return the begin of ``text`` as one line."""
    line = shown(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width else f"{line[: width - 1]}…"


def names(found: Iterable[str], most: int = 5) -> str:
    """Return some of ``found``, a line each."""
    listed = [brief(each) for each in found]
    rest = [f"{len(listed) - most:,} more"] if len(listed) > most else []
    return "\n".join([*listed[:most], *rest])
