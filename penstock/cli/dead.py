"""``penstock dead``: show the dead letters of a namespace."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.base.encoding import decoded
from penstock.cli._frame import DEFAULT_URL, Json, RedisUrl, run
from penstock.cli._progress import progress
from penstock.cli._selection import Reason, Since, choice_of, require_letters
from penstock.cli._servers import lists_of
from penstock.cli._text import age, clock, print_json, print_table, shown

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys
    from penstock.tracking.dead_letters import Letter, LetterFilter

DEFAULT_ROWS: Final = 100
"""Rows of a table without --limit."""

CELL_WIDTH: Final = 60
"""Characters of a message or an error in the table."""

COLUMNS: Final = ("id", "reason", "attempts", "died (UTC)", "ago", "queue", "error", "message")


def dead(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of the service.")],
    reason: Reason = None,
    since: Since = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Show at most this many letters; default: {DEFAULT_ROWS}, with --json all."),
    ] = None,
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show dead letters, the newest first.

    Dead letters are messages that were given up, with the reason; `penstock revive` puts them back into their list.
    --json prints every letter in full, one a line.
    """
    run(_dead(namespace, reason, since, limit, redis, json))


async def _dead(
    namespace: str, reason: str | None, since: str | None, limit: int | None, url: str, as_json: bool
) -> int:
    from penstock.base.keys import Keys

    keys = Keys(namespace)
    async with lists_of(namespace, url) as redis:
        choice, now = await choice_of(redis, None, reason, since)
        choice = replace(choice, until=None)
        length = await require_letters(redis, keys)
        if as_json:
            await _print_lines(redis, keys, choice, limit)
        else:
            await _print(redis, keys, choice, limit or DEFAULT_ROWS, length, now)
    return 0


async def _print_lines(redis: "Redis", keys: "Keys", choice: "LetterFilter", limit: int | None) -> None:
    from penstock.tracking.dead_letters import newest_first

    left = limit
    async for chunk in newest_first(redis, keys):
        for letter in filter(choice, chunk):
            print_json({"id": letter.id, "letter": letter.fields or decoded(letter.raw)})
            left = None if left is None else left - 1
            if left == 0:
                return


async def _print(redis: "Redis", keys: "Keys", choice: "LetterFilter", limit: int, length: int, now: float) -> None:
    from penstock.tracking.dead_letters import newest_first

    letters: list[Letter] = []
    reasons: Counter[str] = Counter()
    name = shown(keys.namespace)
    with progress(f"dead letters of {name}", length) as advance:
        async for chunk in newest_first(redis, keys):
            matching = list(filter(choice, chunk))
            letters += matching[: limit - len(letters)]
            reasons.update(letter.text("reason") or "unknown" for letter in matching)
            advance(len(chunk))
    if letters:
        print_table(f"{name}: dead letters", COLUMNS, [_row(letter, now) for letter in letters])
    typer.echo(f"{name}: {_summary(len(letters), reasons, length)}")


def _summary(shown_: int, reasons: Counter[str], length: int) -> str:
    if not length:
        return "no dead letters"
    found = reasons.total()
    if not found:
        return f"no match among {length:,} dead letters: leave out --reason and --since to see all"
    parts = ", ".join(f"{count:,} {shown(reason)}" for reason, count in reasons.most_common())
    newest = "" if shown_ == found else f"; these are the newest {shown_:,}: --limit shows more"
    return f"{found:,} of {length:,} dead letters ({parts}){newest}"


def _row(letter: "Letter", now: float) -> list[object]:
    message: Any = letter.raw if letter.message is None else letter.message
    attempts = letter.text("attempts")
    return [
        shown(letter.id),
        shown(letter.text("reason")) or "-",
        int(attempts) if attempts.isdecimal() else shown(attempts) or "-",
        clock(letter.at),
        "-" if letter.at is None else age(now - letter.at),
        shown(letter.text("queue") or letter.text("source")) or "-",
        _begin(letter.text("error")) or "-",
        _begin(message),
    ]


def _begin(text: str | bytes) -> str:
    """Return the first ``CELL_WIDTH`` characters of ``text``, with an ellipsis if there are more."""
    begin = shown(text[:CELL_WIDTH])
    return begin if len(begin) <= CELL_WIDTH and len(text) <= CELL_WIDTH else f"{begin[: CELL_WIDTH - 1]}…"
