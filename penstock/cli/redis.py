"""``penstock redis``: a redis-cli for machines without one."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.encoding import decoded, encoded
from penstock.cli._frame import DEFAULT_URL, Json, RedisUrl, connected, run
from penstock.cli._text import print_json
from penstock.cli._url import resolve_url

if TYPE_CHECKING:
    from penstock.inspect.redis_replies import Reply


def redis(
    words: Annotated[list[str], typer.Argument(metavar="COMMAND [ARG]", help="The command and its arguments.")],
    host: Annotated[str | None, typer.Option("-h", metavar="HOST", help="The server's host.")] = None,
    port: Annotated[int | None, typer.Option("-p", metavar="PORT", help="The server's port.")] = None,
    database: Annotated[int | None, typer.Option("-n", metavar="DB", help="The number of the database.")] = None,
    uri: Annotated[
        str | None, typer.Option("-u", metavar="URL", callback=resolve_url, help="The same as --redis.")
    ] = None,
    raw: Annotated[bool | None, typer.Option("--raw/--no-raw", help="Print replies bare, or with their types.")] = None,
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Send one command to Redis, as redis-cli does.

    The reply is printed as by redis-cli: with types on a terminal, bare otherwise. Put options before the command. The
    exit status is 1 on an error reply, as with redis-cli -e.
    """
    url = _url(uri or redis, host, port, database)
    run(_redis(url, [encoded(word) for word in words], raw, json))


async def _redis(url: str, words: list[bytes], raw: bool | None, as_json: bool) -> int:
    from penstock.inspect import redis_replies as rediscli

    async with connected(url):
        pass  # report an unreachable server as the other commands do
    reply = await rediscli.send_command(url, words)
    if reply is None and words[0].lower() == b"shutdown":
        return 0
    if as_json:
        print_json(_as_json(reply))
    else:
        bare = not (sys.stdout.isatty() or "FAKETTY" in os.environ) if raw is None else raw
        sys.stdout.buffer.write((rediscli.format_raw if bare else rediscli.format_typed)(reply, words))
        sys.stdout.buffer.flush()
    return int(isinstance(reply, rediscli.Failure))


def _as_json(reply: "Reply") -> Any:
    if isinstance(reply, list):
        return [_as_json(element) for element in reply]
    if isinstance(reply, bytes):
        return decoded(reply)
    return {"error": str(reply.args[0])} if isinstance(reply, Exception) else reply


def _url(url: str, host: str | None, port: int | None, database: int | None) -> str:
    """Return ``url`` with the host, port and database of redis-cli's options."""
    from penstock.base.urls import with_database

    if host is not None or port is not None:
        where = host or "127.0.0.1"
        url = f"redis://{f'[{where}]' if ':' in where else where}:{port or 6379}/0"
    return url if database is None else with_database(url, database)
