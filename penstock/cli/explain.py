"""``penstock explain``: explain where a message is, since when, who has it, and what happens to it next."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.encoding import encoded
from penstock.cli._frame import DEFAULT_URL, Json, RedisUrl, ServiceRedisUrl, require_list, run
from penstock.cli._selection import Named, named_by, require_tracked
from penstock.cli._servers import servers_of
from penstock.cli._text import print_json

if TYPE_CHECKING:
    from penstock.tracking.record import By


def explain(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of mdispatch.")],
    word: Annotated[str, typer.Argument(metavar="ID|XID", help="The id or xid of the message, or the message itself.")],
    by: Named = "either",
    redis: RedisUrl = DEFAULT_URL,
    service_redis: ServiceRedisUrl = None,
    json: Json = False,
) -> None:
    """Explain where a message is, and what happens to it next.

    A number is looked up as the xid of a message in flight, else as an id; --by chooses one of them. Exit status 1 if
    the message is unknown.
    """
    run(_explain(namespace, word, named_by(by), (redis, service_redis), json))


async def _explain(namespace: str, word: str, by: "By", urls: tuple[str, str | None], as_json: bool) -> int:
    from penstock.base.keys import Keys
    from penstock.cli._explanation import explanation
    from penstock.inspect.locate import locate

    keys = Keys(namespace)
    async with servers_of(namespace, *urls) as (redis, service_redis):
        policy = await require_tracked(redis, keys)
        await require_list(redis, encoded(keys.dead))
        found = await locate(redis, service_redis, keys, policy, word, by)
    if as_json:
        print_json({**asdict(found), "overdue": found.overdue})
    else:
        typer.echo("\n".join(explanation(found)))
    return int(found.state == "unknown")
