"""Key space of a composition on a server."""

import re
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from penstock.encoding import decoded, encoded
from penstock.errors import PenstockError
from penstock.keys import Keys

CHUNK: Final = 1000
SIZES: Final = {"list": "LLEN", "zset": "ZCARD"}


@dataclass(frozen=True)
class Keyspace:
    """Keys of a composition, which begin with ``name`` and a colon; keys of others may begin so, too."""

    name: str
    services: tuple[Keys, ...]
    keys: str
    """A regular expression: what follows the colon in the keys that the composition may leave."""
    in_flight: str
    """The same for its lists and sorted sets that are empty once all messages are through."""

    @property
    def marker(self) -> str:
        """Return the key that marks the data as the demo's."""
        return f"{self.name}:demo"

    async def present(self, redis: "Redis") -> list[str]:
        """Return its keys that exist, sorted."""
        found = [decoded(key) async for key in redis.scan_iter(f"{self.name}:*", count=CHUNK)]
        return sorted({key for key in found if key == self.marker or self._matches(self.keys, key)})

    async def prepare(self, redis: "Redis") -> None:
        """Delete all but the marker. Raise ``PenstockError`` and delete nothing if the data is not the demo's."""
        keys = await self.present(redis)
        if keys and self.marker not in keys:
            raise PenstockError(f"the server holds {self.name} data that no demo put there: {', '.join(keys[:5])}")
        if live := self.registered(keys):
            raise PenstockError(f"the composition is running (or was killed under a minute ago): {', '.join(live)}")
        old = [encoded(key) for key in keys if key != self.marker]
        for start in range(0, len(old), CHUNK):
            await redis.delete(*old[start : start + CHUNK])
        note = "what lies beside this key was put here by the demo, which deletes it when it starts again"
        await redis.set(self.marker, note)

    def registered(self, keys: list[str]) -> list[str]:
        """Return those of ``keys`` that are registrations."""
        namespaces = {keys.namespace for keys in self.services}
        pairs = ((key, *key.rpartition(":")) for key in keys)
        return [key for key, namespace, _, id in pairs if namespace in namespaces and id.isdigit()]

    async def expire_registration(self, redis: "Redis", pid: int) -> str | None:
        """Delete the registration of the killed process ``pid``, and return its key; it would last for serviceExpire.

        Others adopt at once then what it had in hand.
        """
        for key in self.registered(await self.present(redis)):
            if decoded(await redis.hget(key, "pid") or b"") == str(pid):
                await redis.delete(key)
                return key
        return None

    async def left(self, redis: "Redis") -> dict[str, int]:
        """Return the length of each list or sorted set with messages in flight; {} once all are through."""
        keys = [key for key in await self.present(redis) if self._matches(self.in_flight, key)]
        lengths: dict[str, Any] = {}
        for key in keys:
            raw = encoded(key)
            if size := SIZES.get(decoded(await redis.type(raw))):
                lengths[key] = await redis.execute_command(size, raw)
        return {key: length for key, length in lengths.items() if length}

    def _matches(self, pattern: str, key: str) -> bool:
        return bool(re.fullmatch(f"{self.name}:({pattern})", key, re.DOTALL))
