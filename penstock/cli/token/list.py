"""``penstock token list``: show who has a token, and what it allows."""

from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli._frame import DEFAULT_URL, Json, RedisUrl, run
from penstock.cli._servers import lists_of
from penstock.cli._text import clock, print_json, print_table, shown


def list_tokens(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of the service.")],
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """List the tokens of a namespace, without the tokens themselves, which nobody knows."""
    run(_list(namespace, redis, json))


async def _list(namespace: str, url: str, as_json: bool) -> int:
    from penstock.base.keys import Keys
    from penstock.core.tokens import read_tokens

    async with lists_of(namespace, url) as redis:
        tokens = await read_tokens(redis, Keys(namespace))
    if as_json:
        print_json([{"id": token.id, **asdict(token)} for token in tokens])
        return 0
    if not tokens:
        typer.echo(f"{shown(namespace)} has no tokens")
        return 0
    rows = [
        (token.id, shown(token.owner), " ".join(token.rights), clock(token.created), clock(token.expires))
        for token in tokens
    ]
    print_table(f"tokens of {shown(namespace)}", ("id", "owner", "rights", "created", "ends"), rows)
    return 0
