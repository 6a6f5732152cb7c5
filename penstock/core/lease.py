"""A lease that makes one replica the active one, with a fencing token that only grows."""

from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from penstock.core.script import Script

_lease: Final = Script.read(Path(__file__).parent / "lua" / "lease.lua")


class Lease:
    """Held by one owner at a time, by the server's clock. ``key`` is a ``Keys.lease``; ``life`` is in seconds."""

    def __init__(self, redis: "Redis", key: str, owner: str, life: float) -> None:
        self._redis, self._key, self._owner, self._life = redis, key, owner, life

    async def hold(self) -> int | None:
        """Take or renew the lease; return its fencing token, or None while another instance holds it."""
        return await self._ask(int(self._life * 1000)) or None

    async def release(self) -> None:
        """Release the lease, so that a standby takes over at once; do nothing if another instance holds it."""
        await self._ask(0)

    async def _ask(self, life_ms: int) -> int:
        token: int = await _lease(self._redis, lease=self._key, owner=self._owner, life=life_ms)
        return token
