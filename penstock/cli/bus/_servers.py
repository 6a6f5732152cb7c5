"""The servers of a bus on the command line."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.base.secrets import FILE_SUFFIX, NoSecret, resolve_reference, secret_in_file
from penstock.base.urls import server_of
from penstock.cli._frame import DEFAULT_URL, Failed, Misused, connected
from penstock.cli._text import shown
from penstock.cli._url import URL_FORMS

if TYPE_CHECKING:
    from redis.asyncio import Redis

VARIABLE: Final = "REDIS"


def resolve_urls(values: list[str] | None) -> list[str]:
    """Return the URLs that ``values`` are or refer to; without one, what REDIS or REDIS_FILE has, or the default."""
    try:
        if values:
            return [url for value in values for url in resolve_reference(value, os.environ).split()]
        if by_file := os.environ.get(f"{VARIABLE}{FILE_SUFFIX}"):
            if VARIABLE in os.environ:
                raise typer.BadParameter(f"{VARIABLE} and {VARIABLE}{FILE_SUFFIX} are both set: unset one of them")
            return secret_in_file(by_file).split()
        return [resolve_reference(value, os.environ) for value in os.environ.get(VARIABLE, DEFAULT_URL).split()]
    except NoSecret as error:
        raise typer.BadParameter(str(error)) from None


Servers = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[URL]...",
        callback=resolve_urls,
        help=f"The servers of the bus, in its order; default: REDIS, which may name several. {URL_FORMS}",
    ),
]


@asynccontextmanager
async def all_connected(
    urls: Sequence[str] | None, advice: str = "or name others"
) -> AsyncIterator[dict[str, "Redis"]]:
    """Connect to all servers, by URL. Raise ``Misused`` if one is named twice, ``Failed`` if one is away."""
    urls = urls or [DEFAULT_URL]
    require_different(urls)
    async with AsyncExitStack() as exits:
        yield {url: await exits.enter_async_context(connected(url, advice=advice)) for url in urls}


def require_different(urls: Sequence[str]) -> None:
    """Raise ``Misused`` if ``urls`` has a server twice."""
    if len(set(map(server_of, urls))) < len(urls):
        raise Misused("a server is named twice: name each once")


def no_such_queue(name: str, servers: int) -> Failed:
    """Return the error for a queue that no server has."""
    where = "this server" if servers == 1 else f"these {servers} servers"
    return Failed(f"{where} has no queue {shown(name)}: `penstock bus status` lists those that exist")
