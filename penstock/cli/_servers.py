"""The servers of a namespace: of its lists and of its registrations, found from either of them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from penstock.cli._frame import Failed, both, connected
from penstock.cli._text import shown

if TYPE_CHECKING:
    from redis.asyncio import Redis


@asynccontextmanager
async def servers_of(
    namespace: str, url: str, service_url: str | None = None
) -> AsyncIterator[tuple["Redis", "Redis"]]:
    """Connect to the server of the lists and to that of the registrations, of which ``url`` may be either.

    Raise ``Failed``, with the option that names it, if the other one cannot be reached.
    """
    from penstock.base.keys import Keys
    from penstock.inspect.namespace import other_servers

    if service_url is not None:
        async with both(url, service_url) as found:
            yield found
        return
    async with AsyncExitStack() as exits:
        given = await exits.enter_async_context(connected(url))
        found_at = await other_servers(given, Keys(namespace))
        if found_at.lists:
            lists = await _other(exits, namespace, "lists", url, found_at.lists, "--redis")
            yield lists, given
        elif found_at.registry:
            yield given, await _other(exits, namespace, "registrations", url, found_at.registry, "--service-redis")
        else:
            yield given, given


@asynccontextmanager
async def lists_of(namespace: str, url: str) -> AsyncIterator["Redis"]:
    """Connect to the server of the lists, of which ``url`` may be the other one."""
    from penstock.base.keys import Keys
    from penstock.inspect.namespace import other_servers

    async with AsyncExitStack() as exits:
        given = await exits.enter_async_context(connected(url))
        server = (await other_servers(given, Keys(namespace))).lists
        yield await _other(exits, namespace, "lists", url, server, "--redis") if server else given


async def _other(exits: AsyncExitStack, namespace: str, what: str, url: str, server: str, option: str) -> "Redis":
    try:
        return await exits.enter_async_context(connected(beside(url, server)))
    except Failed as error:
        where = f"the {what} of {shown(namespace)} are on another server, {shown(server)}"
        raise Failed(f"{where}: name it with {option} URL ({error})") from error


def beside(url: str, server: str) -> str:
    """Return a URL of the server with the name ``server``.

    It has the login and options of ``url`` only if the host is the same: a password must not go to a server that only
    another server names.
    """
    from penstock.base.urls import server_of, split_server, url_of, with_database

    where, database = split_server(server)
    return with_database(url, database) if split_server(server_of(url))[0] == where else url_of(server)
