"""Props in a hash of a Redis server, ``redis://host:port/db/key``, instead of a file."""

import asyncio
import re
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from redis.exceptions import AuthenticationError, MovedError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as Unanswered

from common.settings.formats import MAX_PROPERTIES, Unreadable
from common.settings.redaction import plain
from penstock.base.urls import EXPECTED, joined, server_url
from penstock.core.connection import connect, follow, mask_password

LARGEST: Final = 1024 * 1024
"""Bytes of all names and values; a larger hash holds no props."""
SILENCE: Final = 3.0
"""Seconds without an answer after which the server counts as away."""


class Away(Unreadable):
    """The server of the hash does not answer now."""


@dataclass(frozen=True)
class Hash:
    """The hash ``key`` on the server at ``url``."""

    url: str
    key: str

    @classmethod
    def at(cls, text: str) -> Self:
        """Return the hash that ``text`` names: ``redis://host:port/db/key``, or any server's URL with ``key=``.

        Raise ``Unreadable`` with a reason that repeats nothing of ``text``.
        """
        try:
            parts = urlsplit(text)
            key = dict(parse_qsl(parts.query)).get("key", "")
            options = [option for option in parts.query.split("&") if option and not option.startswith("key=")]
            named = re.fullmatch(r"/([0-9]{1,9})/(.+)", parts.path)
            if not key and named and parts.scheme in ("redis", "rediss"):
                parts, key = parts._replace(path=f"/{named[1]}"), unquote(named[2])
            if not key:
                raise ValueError("it names no key")
            return cls(server_url(joined(parts, options)), key)
        except ValueError as error:
            expected = f"expected redis://host:port/db/key, or with ?key=KEY any of {EXPECTED}"
            raise Unreadable(f"not the place of a hash ({str(error).partition(': expected')[0]}): {expected}") from None

    def __str__(self) -> str:
        """Return its URL without a password."""
        parts = urlsplit(mask_password(self.url))
        if parts.scheme in ("redis", "rediss"):
            parts = parts._replace(path=f"{parts.path.rstrip('/') or '/0'}/{quote(self.key, safe=':')}")
            return joined(parts, [parts.query])
        return joined(parts, [*filter(None, [parts.query]), f"key={quote(self.key, safe=':')}"])

    def read(self) -> dict[str, str]:
        """Return the fields that are not empty. Raise ``Unreadable``, or ``Away`` if the server does not answer."""
        return _apart(self._read())

    async def _read(self) -> dict[str, str]:
        async with connect(self.url, silence=SILENCE, name="penstock-props") as redis:
            try:
                try:
                    return await self._fields(redis)
                except MovedError as moved:
                    await follow(moved, redis)
                    return await self._fields(redis)
            except AuthenticationError as error:
                raise Unreadable(f"cannot be read: {error}") from None
            except (Disconnected, Unanswered, OSError) as error:
                raise Away(f"cannot be read: {error}") from None
            except RedisError as error:
                raise Unreadable(f"cannot be read: {error}") from None

    async def _fields(self, redis: Any) -> dict[str, str]:
        try:
            count = await redis.hlen(self.key)
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                raise Unreadable("another type than a hash: expected a field for each property") from None
            raise
        if not count:
            raise Unreadable("no such key, or no fields: expected a hash with a field for each property")
        if count > MAX_PROPERTIES:
            raise Unreadable(f"more than {MAX_PROPERTIES:,} properties: not props")
        names = await redis.hkeys(self.key)
        async with redis.pipeline(transaction=False) as wire:
            for name in names:
                wire.hstrlen(self.key, name)
            if sum(await wire.execute()) + sum(map(len, names)) > LARGEST:
                raise Unreadable(f"longer than {LARGEST} bytes: not props")
        pairs = zip(names, await redis.hmget(self.key, names), strict=True)
        return {(field := _text(name, "a name")): _text(value, plain(field)) for name, value in pairs if value}


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Unreadable(f"{what} is not UTF-8") from None


def _apart(action: "Coroutine[Any, Any, dict[str, str]]") -> dict[str, str]:
    """Run ``action`` to its end, even if another loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, action).result()
