"""``penstock token revoke``: end a token."""

import re
from typing import Annotated

import typer

from penstock.cli._frame import DEFAULT_URL, Failed, Json, Misused, RedisUrl, run
from penstock.cli._servers import lists_of
from penstock.cli._text import print_json, shown


def revoke(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of the service.")],
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that `penstock token list` shows.")],
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """End a token. Services refuse it within 5 seconds."""
    run(_revoke(namespace, id, redis, json))


async def _revoke(namespace: str, id: str, url: str, as_json: bool) -> int:
    from penstock.base.keys import Keys
    from penstock.core.tokens import revoke_token

    if not re.fullmatch(r"[0-9a-f]{1,64}", id):
        raise Misused(f"expected an id that `penstock token list` shows, found {id!r}")
    async with lists_of(namespace, url) as redis:
        found = await revoke_token(redis, Keys(namespace), id)
    if len(found) != 1:
        many = "several tokens" if found else "no token"
        raise Failed(f"{shown(namespace)} has {many} {shown(id)}: `penstock token list {shown(namespace)}` shows all")
    if as_json:
        print_json({"id": found[0].id, "owner": found[0].owner})
    else:
        typer.echo(f"token {found[0].id} of {shown(found[0].owner)} is revoked")
    return 0
