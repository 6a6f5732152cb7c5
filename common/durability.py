"""How safe a settled batch must be before the service goes on: in memory, on disk, or on replicas."""

from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.errors import PenstockError, Unsuitable
from penstock.lua import Script
from penstock.wire import Command

_confirm: Final = Script.read(Path(__file__).parent / "lua" / "confirm.lua")


class NotDurable(PenstockError):
    """The batch was settled, but the server did not confirm in time that it is on disk, or on enough replicas."""


class Durability:
    """``memory``, ``aof`` (the server's own disk) or ``replicas:N``; one wait for a batch, on its own connection."""

    def __init__(self, level: str, longest: float) -> None:
        self.level = level
        self._replicas = int(level.partition(":")[2] or 0)
        longest_ms = int(longest * 1000)
        self.commands: list[Command] = []
        """What to send behind a transaction, on its connection, for the server's confirmation."""
        if level == "aof":
            self.commands = [("WAITAOF", 1, 0, longest_ms)]
        elif self._replicas:
            self.commands = [("WAIT", self._replicas, longest_ms)]

    async def check_server(self, redis: "Redis") -> None:
        """Raise ``Unsuitable`` where the server cannot give what is asked."""
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
        """A write that changes nothing, to a list, and the wait behind it: it confirms all that was written before.

        A connection that has written nothing is not waited for: a wait alone would confirm nothing after a reconnect.
        """
        return [_confirm.by_source(pending=key), *self.commands]

    def check(self, confirmations: list[Any]) -> None:
        """Raise ``NotDurable`` where the replies to ``commands`` do not confirm what is asked, or their error."""
        for reply in confirmations:
            if isinstance(reply, ResponseError):
                raise reply
        if self.level == "aof" and confirmations[0][0] < 1:
            raise NotDurable("settled, but not on the server's disk yet (WAITAOF)")
        if self._replicas and confirmations[0] < self._replicas:
            raise NotDurable(f"settled, but on {confirmations[0]} of {self._replicas} replicas (WAIT)")
