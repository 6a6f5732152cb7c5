"""Check that a server can be trusted with messages: version, cluster slots, eviction, persistence, logins."""

from contextlib import suppress
from typing import Final

from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from structlog.typing import FilteringBoundLogger

from common.settings.base import ServiceSettings
from penstock.base.errors import Unsuitable
from penstock.base.shape import property_of
from penstock.core.connection import connect
from penstock.core.script import in_one_slot

OLDEST: Final = (6, 2)
LOGIN: Final = 3.0
"""Seconds within which a server must accept a login."""
SCHEMES: Final = ("redis", "unix://")


async def check_server(redis: "Redis", names: list[str], log: FilteringBoundLogger) -> None:
    """Raise ``Unsuitable`` for a server that cannot do the work on the keys ``names``; warn of one that may lose it."""
    info = await redis.info("everything")
    version = str(info["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise Unsuitable(f"the server is Redis {version}; 6.2 or newer is needed (BLMOVE, LMOVE)")
    if info.get("cluster_enabled") and len({key_slot(name.encode()) for name in names}) > 1:
        raise Unsuitable(f"{in_one_slot(names)}: {', '.join(names)}")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        log.warning("messages may be evicted", maxmemory_policy=policy, expected="noeviction")
    if not info.get("aof_enabled") and not await _saves(redis):
        log.warning("the server keeps nothing on disk", expected="appendonly yes")


async def _saves(redis: "Redis") -> bool:
    """Return whether snapshots are on; True if the server does not permit the question."""
    with suppress(ResponseError):
        return bool((await redis.config_get("save")).get("save"))
    return True


async def check_logins(settings: ServiceSettings, before: ServiceSettings) -> None:
    """Raise ``Unsuitable`` if a server of ``settings`` refuses a login that differs from that of ``before``."""
    for name in type(settings).model_fields:
        url = getattr(settings, name)
        if url == getattr(before, name) or not isinstance(url, str) or not url.startswith(SCHEMES):
            continue
        async with connect(url, silence=LOGIN) as redis:
            try:
                await redis.ping()
            except AuthenticationError as error:
                raise Unsuitable(f"{property_of(name)}: the server refuses the new login: {error}") from None
            except (RedisError, OSError):
                continue  # away: the service waits for it with either login
