"""``penstock touch``: extend the deadline of a message in flight."""

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.encoding import decoded
from penstock.cli._frame import DEFAULT_URL, Json, Misused, RedisUrl, run
from penstock.cli._selection import Named, named_by, not_in_flight, require_tracked
from penstock.cli._servers import lists_of
from penstock.cli._text import age, clock, print_json, shown

if TYPE_CHECKING:
    from penstock.tracking.record import By


def touch(
    namespace: Annotated[str | None, typer.Argument(metavar="NS", help="The namespace of mdispatch.")] = None,
    word: Annotated[
        str | None, typer.Argument(metavar="ID", help="The id or xid of the message, or the message itself.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Argument(metavar="SECONDS", help="The new time left; default: messageTimeout.")
    ] = None,
    script: Annotated[bool, typer.Option("--script", help="Print the Lua script, for EVAL from any client.")] = False,
    by: Named = "either",
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Give a message in flight more time.

    Its deadline moves to SECONDS from now, by the server's clock, unless it is later already. A worker does the same
    with redis-cli lpush NS:done '{"id": 3, "touch": 30}'.
    """
    if script:
        typer.echo(source(namespace or "demo", word or "3", seconds or 30))
    elif namespace is None or word is None:
        raise typer.BadParameter("expected a namespace and the ID of a message, or --script")
    else:
        run(_touch(namespace, word, named_by(by), seconds, redis, json))


async def _touch(namespace: str, word: str, by: "By", seconds: float | None, url: str, as_json: bool) -> int:
    from penstock.base.keys import Keys
    from penstock.core.connection import server_time
    from penstock.tracking.record import find_message, touch

    keys = Keys(namespace)
    async with lists_of(namespace, url) as redis:
        await require_tracked(redis, keys)
        found = await find_message(redis, keys, word, by)
        try:
            deadline = await touch(redis, keys, found.id, seconds) if found else None
        except ValueError as error:
            raise Misused(str(error)) from None
        if found is None or deadline is None:
            raise not_in_flight(keys, word, "it has no deadline to move")
        left = deadline - await server_time(redis)
    if as_json:
        print_json({"namespace": namespace, "id": found.id, "deadline": deadline, "seconds": left})
    else:
        which = f"message {shown(found.id)} of {shown(namespace)}"
        typer.echo(f"{which} has until {clock(deadline)} UTC, {age(left + 0.5)} from now")
    return 0


def source(namespace: str, id: str, seconds: float) -> str:
    """Return the Lua script for EVAL, headed by a command line that calls it."""
    from penstock.base.keys import Keys
    from penstock.tracking.record import touch_script

    keys = Keys(namespace)
    record, xid = keys.message(id), keys.xid("XID")
    named = {**keys.event_keys, "record": record, "deadlines": keys.deadlines, "policy": keys.policy}
    named |= {"touched": keys.metric("touched"), "xid": xid}
    names = list(named.values())
    _, text, *_ = touch_script.by_source(**named, id=id, seconds=seconds, attempt="")
    body = "\n".join(line for line in decoded(text).splitlines() if line.strip())
    call = f"redis-cli --eval touch.lua {' '.join(map(_word, names))} , {_word(id)} {seconds:g}"
    return f"-- {call}\n-- XID is what this prints: redis-cli hget {_word(record)} xid\n{body}"


def _word(name: str) -> str:
    return quote(shown(name))
