"""``penstock revive``: redrive dead letters to the lists that they came from."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.encoding import counted, decoded, encoded
from penstock.cli._frame import DEFAULT_URL, Json, RedisUrl, complain, run
from penstock.cli._progress import progress
from penstock.cli._selection import All, Ids, Reason, Since, choice_of, require_ids_or_all, require_letters
from penstock.cli._servers import lists_of
from penstock.cli._text import print_json, shown

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys
    from penstock.tracking.dead_letters import LetterFilter
    from penstock.tracking.redrive import RedriveResult


def revive(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of the service.")],
    ids: Ids = None,
    all: All = False,
    reason: Reason = None,
    since: Since = None,
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Redrive dead letters: put their messages back into their lists.

    Each message goes to the list that it was taken from, byte for byte, the oldest first, as if it were pushed anew:
    its attempts begin at 1. A letter is revived once, even if several operators do it at the same time. Exit status 1
    if an ID was not found or a letter could not be revived.
    """
    require_ids_or_all(ids, all)
    run(_revive(namespace, ids, reason, since, redis, json))


async def _revive(
    namespace: str, ids: list[str] | None, reason: str | None, since: str | None, url: str, as_json: bool
) -> int:
    from penstock.base.keys import Keys
    from penstock.tracking.redrive import RedriveResult, revive

    keys, outcome = Keys(namespace), RedriveResult()
    async with lists_of(namespace, url) as redis:
        choice, _ = await choice_of(redis, ids, reason, since)
        length = await require_letters(redis, keys)
        try:
            with progress(f"reviving letters of {shown(namespace)}", length) as advance:
                await revive(redis, keys, choice, outcome, advance)
        except BaseException:
            complain(f"{counted(outcome.moved.total(), 'message')} went back before this:", 1)
            raise
        problems = [*missing(choice, outcome), *[await _why_left(redis, name, n) for name, n in outcome.left.items()]]
    _report(keys, outcome, problems, as_json)
    return int(bool(problems))


def missing(choice: "LetterFilter", outcome: "RedriveResult") -> list[str]:
    """Return a line with the IDs that no letter has; empty if there are none."""
    absent = sorted((choice.ids or set()) - outcome.ids)
    return [f"no such dead letter: {', '.join(map(shown, absent))}"] if absent else []


async def _why_left(redis: "Redis", destination: str, count: int) -> str:
    letters = counted(count, "letter")
    if not destination:
        return f"{letters} stayed: not written by Penstock, or without a list to go back to; see `penstock dead --json`"
    kind = decoded(await redis.type(encoded(destination)))
    return f"{letters} stayed: {shown(destination)} is a {kind}, expected a list"


def _report(keys: "Keys", outcome: "RedriveResult", problems: list[str], as_json: bool) -> None:
    total = outcome.moved.total()
    if as_json:
        result: dict[str, Any] = {"namespace": keys.namespace, "revived": dict(outcome.moved), "total": total}
        print_json(result | {"left": dict(outcome.left), "problems": problems})
        return
    where = ", ".join(f"{count:,} to {shown(name)}" for name, count in outcome.moved.items())
    typer.echo(f"revived {counted(total, 'message')}{f': {where}' if where else ''}")
    for problem in problems:
        complain(problem, 1)
