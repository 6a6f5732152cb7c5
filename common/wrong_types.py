"""Find the key of the wrong type: the error of a server does not name it."""

from collections.abc import Iterable
from contextlib import suppress

from redis.asyncio import Redis
from redis.exceptions import RedisError

from common.settings.base import ServiceSettings
from penstock.base.encoding import decoded
from penstock.base.errors import WrongType
from penstock.base.keys import Keys, pending_of
from penstock.core.metrics import OF_EVERY_SERVICE

UNNAMED = "Operation against a key holding the wrong kind of value"
"""The words of a server's error, in a script, too."""


async def name_wrong_key(error: Exception, servers: "Iterable[Redis]", settings: ServiceSettings, id: str) -> Exception:
    """Return an error that names the key of the wrong type, or ``error`` if it names one or no such key is found."""
    if UNNAMED in str(error):
        for redis in servers:
            with suppress(RedisError):
                if found := await _wrong_key(redis, _kinds(settings, id)):
                    return found
    return error


def _kinds(settings: ServiceSettings, id: str) -> dict[str, str]:
    """Return the types of all keys of one instance."""
    pending = [pending_of(name, each) for name in settings.pending_lists for each in (id, None)]
    kinds = dict.fromkeys((*settings.lists(), *pending), "list")
    for place, namespace in enumerate(filter(None, (settings.redis_namespace, *settings.shape().watches))):
        keys = Keys(namespace)
        kinds |= keys.kinds
        if place == 0:
            kinds[keys.instance(id)] = "hash"
            kinds |= dict.fromkeys(map(keys.metric, (*OF_EVERY_SERVICE, *settings.metrics())), "hash")
    return kinds


async def _wrong_key(redis: "Redis", kinds: dict[str, str]) -> WrongType | None:
    async with redis.pipeline(transaction=False) as wire:
        for key in kinds:
            wire.type(key)
        found = map(decoded, await wire.execute())
    for (key, expected), kind in zip(kinds.items(), found, strict=True):
        if kind not in (expected, "none"):
            return WrongType(f"{key} holds a {kind}, expected a {expected}")
    return None
