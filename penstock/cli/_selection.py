"""Selection of dead letters and messages: the options that several commands share, and their errors."""

import re
from datetime import UTC, datetime
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from penstock.base.encoding import encoded
from penstock.cli._frame import Failed, Misused, require_list
from penstock.cli._text import shown
from penstock.cli.status import unknown_namespace

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys
    from penstock.tracking.dead_letters import LetterFilter
    from penstock.tracking.policy import Policy
    from penstock.tracking.record import By

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604_800}

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="IDs of letters, as `penstock dead` shows them.")]
Reason = Annotated[str | None, typer.Option(metavar="R", help="Only letters with this reason, e.g. timeout.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="T", help="Only letters written since then: 90s, 30m, 1h, 2d ago, or an ISO time (UTC)."),
]
Named = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="either|xid|id",
        help="Look up an xid or an id; either: the xid of a message in flight, else an id.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="All letters written until now.")]


def named_by(word: str) -> "By":
    if word not in ("either", "xid", "id"):
        raise typer.BadParameter(f"--by {shown(word)}: expected either, xid or id")
    return cast("By", word)


def require_ids_or_all(ids: list[str] | None, all: bool) -> None:
    if bool(ids) == all:
        raise typer.BadParameter("expected IDs of letters, or --all")


async def choice_of(
    redis: "Redis", ids: list[str] | None, reason: str | None, since: str | None
) -> tuple["LetterFilter", float]:
    """Return the filter that the options mean, and the server's time (s since the epoch).

    Letters that are written after that time never match: with a worker that fails at once there would be no end.
    """
    from penstock.core.connection import server_time
    from penstock.tracking.dead_letters import LetterFilter

    now = await server_time(redis)
    start = None if since is None else parse_time(since, now)
    return (LetterFilter(frozenset(ids), reason, start) if ids else LetterFilter(None, reason, start, now)), now


def parse_time(text: str, now: float) -> float:
    """Return the seconds since the epoch of ``1h`` ago, or of an ISO time, in UTC by default. Raise ``Misused``."""
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text, re.ASCII):
        return now - float(found[1]) * UNITS[found[2]]
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise Misused(f"{text!r} is not a time: expected one like 90s, 30m, 1h or 2d, or 2026-01-31T12:00:00") from None


async def require_letters(redis: "Redis", keys: "Keys") -> int:
    """Return the number of dead letters. Raise ``Failed`` if their key is not a list or the namespace is unknown."""
    await require_list(redis, encoded(keys.dead))
    if length := await redis.llen(encoded(keys.dead)):
        return length
    await require_known(redis, keys)
    return 0


async def require_known(redis: "Redis", keys: "Keys") -> None:
    traces = keys.lists, keys.owners, keys.policy, keys.events, keys.metric("revived"), keys.metric("buried")
    if not await redis.exists(*map(encoded, traces)):
        raise await unknown_namespace(redis, redis, keys.namespace)


async def require_events(redis: "Redis", keys: "Keys") -> None:
    """Raise ``Failed`` if the namespace has neither tracked messages nor tasks of hqueue."""
    if not await redis.hexists(encoded(keys.policy), "keeper"):
        await require_tracked(redis, keys)


async def require_tracked(redis: "Redis", keys: "Keys") -> "Policy":
    """Return the tracking policy of the namespace. Raise ``Failed`` if its messages are not tracked."""
    from penstock.tracking.policy import Policy

    if policy := await Policy.read(redis, keys):
        return policy
    await require_known(redis, keys)
    name = shown(keys.namespace)
    if await redis.hexists(encoded(keys.policy), "keeper"):
        raise Failed(f"{name} has tasks of hqueue: `penstock queue` shows them, `penstock trace` what happened to them")
    raise Failed(f"messages of {name} are not tracked: {shown(keys.policy)}, which mdispatch writes, has no policy")


def not_in_flight(keys: "Keys", word: str, so: str) -> Failed:
    """Return the error for a message that is not in flight; ``so`` is the consequence."""
    which = f"message {shown(word)} of {shown(keys.namespace)}"
    see = f"penstock explain {quote(shown(keys.namespace))} {quote(shown(word))}"
    return Failed(f"{which} is not in flight, so {so}: `{see}` says where it is")
