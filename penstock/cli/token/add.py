"""``penstock token add``: make a token, and print it once."""

import re
from typing import Annotated

import typer

from penstock.cli._frame import DEFAULT_URL, Json, Misused, RedisUrl, complain, run
from penstock.cli._servers import lists_of
from penstock.cli._text import clock, print_json, shown

DAY = 86_400


def add(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of the service.")],
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="Whose token it is; messages carry this name.")],
    right: Annotated[
        list[str] | None, typer.Option(help="What the token allows; several times for several. Default: ask.")
    ] = None,
    days: Annotated[float | None, typer.Option(min=0.001, help="Days until it ends. Default: never.")] = None,
    service: Annotated[
        str, typer.Option(help="The only service whose queue of hqueue it is for. Default: all of the owner's.")
    ] = "",
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Make a token and print it.

    It is stored only as a digest: nobody can print it again. A program sends it as `Authorization: Bearer TOKEN`.
    """
    run(_add(namespace, owner, tuple(right or ["ask"]), days, service, redis, json))


async def _add(
    namespace: str, owner: str, rights: tuple[str, ...], days: float | None, service: str, url: str, as_json: bool
) -> int:
    from penstock.base.encoding import encoded
    from penstock.base.keys import Keys
    from penstock.core.tokens import RIGHTS, add_token

    for word in rights:
        if not re.fullmatch(r"[a-z]+", word):
            raise Misused(f"expected a right such as ask, found {word!r}")
    if not owner.strip():
        raise Misused("expected the name of an owner")
    async with lists_of(namespace, url) as redis:
        seconds = None if days is None else days * DAY
        token, made = await add_token(redis, Keys(namespace), owner, rights, seconds, service)
        is_known = await redis.exists(encoded(Keys(namespace).shape))
    if as_json:
        found = {"token": token, "id": made.id, "owner": owner, "rights": rights}
        print_json(found | {"expires": made.expires, "service": service})
    else:
        typer.echo(token)
        ends = f"ends {clock(made.expires)}" if made.expires else "never ends"
        limits = f", of the queue {service} only" if service else ""
        typer.echo(f"token {made.id} of {owner} for {', '.join(rights)}{limits}; {ends}", err=True)
    if not is_known:
        complain(f"no service has registered in {shown(namespace)} so far", 0)
    for word in rights:
        if word not in RIGHTS:
            complain(f"no service of ours knows the right {word}: these are {', '.join(RIGHTS)}", 0)
    return 0
