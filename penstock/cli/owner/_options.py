"""Options of the commands ``penstock owner``, and the keyring that they open."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli._frame import Failed, Misused, connected
from penstock.cli._text import shown
from penstock.cli._url import URL_FORMS, redis_option

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys
    from penstock.sealing.keyring import Keyring
    from penstock.sealing.owners import KeyRecord

Namespace = Annotated[str, typer.Argument(metavar="NS", help="The namespace of the service.")]
Owner = Annotated[str, typer.Argument(metavar="OWNER", help="The owner, as `penstock owner list` shows it.")]
Master = Annotated[
    str,
    typer.Option(
        metavar="SETTING",
        help="The master key: file:/PATH, or vault:https://HOST:PORT/MOUNT/KEY with VAULT_TOKEN_FILE or VAULT_TOKEN.",
    ),
]
KeysRedisUrl = Annotated[str, redis_option(f"The server of the data keys. {URL_FORMS}")]


@asynccontextmanager
async def keyring(namespace: str, master: str, url: str) -> "AsyncIterator[tuple[Redis, Keys, Keyring]]":
    """Read the master key, connect to the server of the data keys, and yield the keyring on it."""
    from penstock.base.keys import Keys
    from penstock.base.secrets import NoSecret
    from penstock.sealing.keyring import Keyring
    from penstock.sealing.master import master_key

    try:
        key, keys = master_key(master), Keys(namespace)
    except NoSecret as error:
        raise Misused(str(error)) from error
    async with connected(url) as redis:
        yield redis, keys, Keyring(redis, keys, key)


async def require_owner(redis: "Redis", keys: "Keys", owner: str) -> "KeyRecord":
    """Return the record of ``owner``. Raise ``Failed`` if this server has no keys of it: the owner may be misspelt."""
    from penstock.sealing.owners import read_record

    record = await read_record(redis, keys, owner)
    if not record.wrapped and record.forgotten is None:
        where = f"this server has no data keys of the owner {shown(owner)!r} in {shown(keys.namespace)}"
        raise Failed(f"{where}: `penstock owner list {shown(keys.namespace)}` shows all; --redis names another server")
    return record
