"""Options of all commands for queues, the connection, and how tasks look in a table."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.base.errors import Unavailable, WrongCall
from penstock.base.exact_json import as_json, parse_whole
from penstock.base.secrets import FILE_SUFFIX, NoSecret, secret_in_file
from penstock.cli._frame import Failed, Misused
from penstock.cli._text import shown

if TYPE_CHECKING:
    from penstock.hqueue import Queue, Status

URL_VARIABLE: Final = "PENSTOCK_QUEUE_URL"
TOKEN_VARIABLE: Final = "PENSTOCK_QUEUE_TOKEN"
DEFAULT_URL: Final = "http://localhost:8080"
CELL_WIDTH: Final = 30
"""Characters of a value or an error in a table."""

Service = Annotated[str, typer.Argument(metavar="SERVICE", help="The queue: the name of the service that works on it.")]
Url = Annotated[str, typer.Option("--url", envvar=URL_VARIABLE, metavar="URL", help="Where hqueue listens.")]
TokenAt = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="@FILE|env:NAME",
        help=f"Where the token is; default: in {TOKEN_VARIABLE}. Never the token itself: `ps` shows it to all.",
    ),
]


@asynccontextmanager
async def queue_of(service: str, url: str, token_at: str | None, patience: float | None = 0) -> AsyncIterator["Queue"]:
    """Yield the queue; a call waits ``patience`` (s) for a service that is away. Raise ``Misused`` and ``Failed``."""
    from penstock.hqueue import Queues

    try:
        async with Queues(url, token=_token(token_at), patience=patience) as queues:
            yield queues[service]
    except (WrongCall, NoSecret) as error:
        raise Misused(str(error)) from None
    except Unavailable as error:
        advice = f"; start hqueue there, or name another with --url URL or {URL_VARIABLE}"
        raise Failed(f"{error}{advice if 'cannot reach' in str(error) else ''}") from None


def _token(token_at: str | None) -> str | None:
    """Return the token, or a reference to it; None without one."""
    if token_at is not None:
        if not token_at.startswith(("@", "env:")):
            raise Misused(f"--token: expected @FILE or env:NAME, for `ps` shows a token: put it in {TOKEN_VARIABLE}")
        return token_at
    if by_file := os.environ.get(f"{TOKEN_VARIABLE}{FILE_SUFFIX}"):
        if os.environ.get(TOKEN_VARIABLE):
            raise Misused(f"{TOKEN_VARIABLE} and {TOKEN_VARIABLE}{FILE_SUFFIX} are both set: unset one of them")
        return secret_in_file(by_file)
    return os.environ.get(TOKEN_VARIABLE) or None


def parse_json(text: str | bytes, what: str) -> Any:
    """Return the JSON that ``text`` is. Raise ``Misused``."""
    try:
        return parse_whole(text if isinstance(text, bytes) else text.encode())
    except ValueError:
        found = shown(text[:CELL_WIDTH])
        raise Misused(f"{what}: expected JSON, found {found}; a text is written '\"tea\"'") from None


def brief(value: Any, width: int = CELL_WIDTH) -> str:
    """Return the begin of ``value`` as one line; bytes by their length."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        kind = value.get("type")
        value = f"{kind}: {value['message']}" if kind else value["message"]
    text = value if isinstance(value, str) else as_json(value).decode()
    line = shown(re.sub(r"\s+", " ", text[: 4 * width]))
    return line if len(line) <= width else f"{line[: width - 1]}…"


def as_fields(name: str, value: Any) -> dict[str, Any]:
    """Return ``value`` as JSON has it: bytes as base64."""
    from penstock.hqueue.values import packed

    return packed(name, value)


def status_fields(status: "Status") -> dict[str, Any]:
    """Return what ``--json`` prints of a task."""
    found = {"taskId": status.id, "index": status.index, "state": status.state, "attempt": status.attempt}
    more = {"added": status.added, "reason": status.reason, "error": status.error}
    return found | {name: value for name, value in more.items() if value is not None}
