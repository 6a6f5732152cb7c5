"""``penstock done``: mark a message as done, as its worker would."""

import asyncio
import json as json_
import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.encoding import encoded
from penstock.cli._frame import DEFAULT_URL, Json, RedisUrl, run
from penstock.cli._selection import Named, named_by, not_in_flight, require_tracked
from penstock.cli._servers import lists_of
from penstock.cli._text import print_json, shown

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys
    from penstock.tracking.record import By


def done(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of mdispatch.")],
    word: Annotated[str, typer.Argument(metavar="ID", help="The id or xid of the message, or the message itself.")],
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a monitor; 0: only push.")] = 5,
    by: Named = "either",
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Mark a message in flight as done.

    Pushes {"id": ID} to the done list, as its worker would, and waits until a monitor has settled the message. If the
    message is still in a list, a worker will do it again. Exit status 1 if no monitor answered.
    """
    run(_done(namespace, word, named_by(by), wait, redis, json))


async def _done(namespace: str, word: str, by: "By", wait: float, url: str, as_json: bool) -> int:
    from penstock.base.keys import Keys
    from penstock.tracking.record import find_message

    keys = Keys(namespace)
    async with lists_of(namespace, url) as redis:
        policy = await require_tracked(redis, keys)
        found = await find_message(redis, keys, word, by)
        if found is None or not await _is_open(redis, keys, found.id):
            raise not_in_flight(keys, word, "it cannot be ended")
        await redis.lpush(encoded(policy.done), json_.dumps({"id": int(found.id)}))
        ended = await _ends(redis, keys, found.id, wait)
    if as_json:
        print_json({"namespace": namespace, "id": found.id, "ended": ended, "list": policy.done})
    elif ended:
        typer.echo(f"message {shown(found.id)} of {shown(namespace)} is done")
    else:
        why = f": no monitor has taken it within {wait:g} s; it stays there until one does" if wait else ""
        typer.echo(f"pushed to {shown(policy.done)}{why}")
    return int(wait > 0 and not ended)


async def _is_open(redis: "Redis", keys: "Keys", id: str) -> bool:
    """Return True if message ``id`` is in flight, or waits for another attempt."""
    scores = [await redis.zscore(encoded(key), id) for key in (keys.deadlines, keys.delayed)]
    return scores != [None, None]


async def _ends(redis: "Redis", keys: "Keys", id: str, wait: float) -> bool:
    """Wait for at most ``wait`` seconds; return True once message ``id`` has ended."""
    until = time.monotonic() + wait
    while await _is_open(redis, keys, id):
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(0.05)
    return True
