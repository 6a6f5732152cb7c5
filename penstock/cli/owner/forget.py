"""``penstock owner forget``: delete the data keys of an owner permanently."""

from typing import Annotated

import typer

from penstock.base.encoding import counted
from penstock.cli._frame import DEFAULT_URL, Json, Misused, connected, run
from penstock.cli._text import print_json, shown
from penstock.cli.owner._options import KeysRedisUrl, Namespace, Owner, require_owner


def forget(
    namespace: Namespace,
    owner: Owner,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm permanent deletion.")] = False,
    redis: KeysRedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Delete the data keys of an owner permanently: none of its messages can be read again.

    The owner gets no new keys, so nothing is accepted for it any more. Running services follow within 30 seconds.
    Backups, AOF and RDB files that hold the wrapped keys must be deleted apart. Without --yes it deletes nothing and
    says what it would delete.
    """
    run(_forget(namespace, owner, yes, redis, json))


async def _forget(namespace: str, owner: str, yes: bool, url: str, as_json: bool) -> int:
    from penstock.base.keys import Keys
    from penstock.sealing.owners import forget_owner

    keys = Keys(namespace)
    async with connected(url) as redis:
        count = len((await require_owner(redis, keys, owner)).wrapped)
        if not yes:
            raise Misused(f"{_words(owner, count)} would be deleted permanently: pass --yes to confirm")
        count = await forget_owner(redis, keys, owner)
    if as_json:
        print_json({"owner": owner, "deleted": count})
    else:
        typer.echo(f"deleted {_words(owner, count)}")
    return 0


def _words(owner: str, count: int) -> str:
    return f"{counted(count, 'data key')} of {shown(owner)}"
