"""``penstock bury``: delete dead letters permanently."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.encoding import counted
from penstock.cli._frame import DEFAULT_URL, Json, Misused, RedisUrl, complain, run
from penstock.cli._progress import progress
from penstock.cli._selection import All, Ids, Reason, Since, choice_of, require_ids_or_all, require_letters
from penstock.cli._servers import lists_of
from penstock.cli._text import print_json, shown
from penstock.cli.revive import missing

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys
    from penstock.tracking.dead_letters import LetterFilter


def bury(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of the service.")],
    ids: Ids = None,
    all: All = False,
    reason: Reason = None,
    since: Since = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm permanent deletion (required with --all).")] = False,
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Delete dead letters permanently.

    --all without --yes deletes nothing and says how many letters it would delete. Exit status 1 if an ID was not found.
    """
    require_ids_or_all(ids, all)
    run(_bury(namespace, ids, (reason, since), yes, redis, json))


async def _bury(
    namespace: str, ids: list[str] | None, conditions: tuple[str | None, str | None], yes: bool, url: str, as_json: bool
) -> int:
    from penstock.base.keys import Keys
    from penstock.tracking.redrive import RedriveResult, bury

    keys, outcome = Keys(namespace), RedriveResult()
    async with lists_of(namespace, url) as redis:
        choice, _ = await choice_of(redis, ids, *conditions)
        length = await require_letters(redis, keys)
        if not (ids or yes):
            count = await _count(redis, keys, choice)
            raise Misused(
                f"{count:,} of {counted(length, 'letter')} would be deleted permanently: pass --yes to confirm"
            )
        try:
            with progress(f"burying letters of {shown(namespace)}", length) as advance:
                await bury(redis, keys, choice, outcome, advance)
        except BaseException:
            complain(f"buried before this: {counted(outcome.moved.total(), 'letter')}", 1)
            raise
    problems, total = missing(choice, outcome), outcome.moved.total()
    if as_json:
        print_json({"namespace": namespace, "buried": total, "problems": problems})
    else:
        typer.echo(f"buried {total:,} letter{'' if total == 1 else 's'}")
        for problem in problems:
            complain(problem, 1)
    return int(bool(problems))


async def _count(redis: "Redis", keys: "Keys", choice: "LetterFilter") -> int:
    from penstock.tracking.dead_letters import newest_first

    return sum([sum(map(choice, chunk)) async for chunk in newest_first(redis, keys)])
