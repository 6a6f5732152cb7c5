"""Durability of a settled batch before the service goes on: in memory, on disk, or on replicas."""

from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.base.errors import Unsuitable
from penstock.core.durability import Level
from penstock.core.raw_connection import Command
from penstock.core.script import Script

_confirm: Final = Script.read(Path(__file__).parent / "lua" / "confirm.lua")


class Durability(Level):
    """The level of a service: nothing more is taken until the last batch has it."""

    async def check_server(self, redis: "Redis") -> None:
        """Raise ``Unsuitable`` if the server cannot confirm at this level."""
        if self.level != "aof":
            return
        try:
            await redis.execute_command("WAITAOF", 0, 0, 0)
        except ResponseError as error:
            if str(error).startswith("unknown command"):
                raise Unsuitable("durability aof needs WAITAOF: Redis 7.2, Valkey 7.2 or newer") from None
            raise
        if not (await redis.info("persistence")).get("aof_enabled"):
            raise Unsuitable("durability aof needs a server that writes a log: set `appendonly yes`")

    def confirmation(self, key: str) -> list[Command]:
        """Return a write to the list ``key`` that changes nothing, and a wait, to confirm all that was written before.

        WAIT covers only writes of its own connection, so after a reconnect a bare WAIT confirms nothing.
        """
        return [_confirm.by_source(pending=key), *self.commands]
