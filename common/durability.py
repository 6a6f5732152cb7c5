"""How safe a settled batch must be before the service goes on: in memory, on disk, or on replicas."""

import re
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.errors import PenstockError, Unsuitable
from penstock.raw_connection import Command
from penstock.script import Script

_confirm: Final = Script.read(Path(__file__).parent / "lua" / "confirm.lua")

MAJORITY: Final = "replicas:majority"


class NotDurable(PenstockError):
    """The batch was settled, but the server did not confirm in time that it is on disk, or on enough replicas."""


class Durability:
    """``memory``, ``aof`` (the server's own disk), ``replicas:N`` or ``replicas:majority``; one wait for a batch.

    The wait is on the connection of the batch. A majority is every replica that is connected, and more than half of the
    most that this primary was seen to have: a failover to any of them finds what was confirmed.
    """

    def __init__(self, level: str, longest: float) -> None:
        self.level = level
        self._longest_ms = int(longest * 1000)
        self._majority = level == MAJORITY
        self._replicas = 1 if self._majority else int(level.partition(":")[2] or 0)
        self._most, self._primary = 0, b""

    @property
    def commands(self) -> list[Command]:
        """What to send behind a transaction, on its connection, for the server's confirmation; the same for a run."""
        if self.level == "aof":
            return [("WAITAOF", 1, 0, self._longest_ms)]
        wait: list[Command] = [("WAIT", self._replicas, self._longest_ms)] if self._replicas else []
        return [*wait, *self.census]

    @property
    def census(self) -> list[Command]:
        """What asks which replicas there are; nothing where their number is given."""
        return [("INFO", "replication")] if self._majority else []

    def count(self, census: bytes) -> None:
        """Take from a reply to ``census``, before a run, for how many replicas its batches are to wait."""
        replicas = _replicas(census)
        primary = next((line for line in census.splitlines() if line.startswith(b"master_replid:")), b"")
        if primary != self._primary:
            self._primary, self._most = primary, 0
        self._most = max(self._most, len(replicas))
        self._replicas = max(sum(replicas), self._most // 2 + 1)

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
            raise NotDurable("what was settled last is not on the server's disk yet, as durability: aof asks (WAITAOF)")
        if self._replicas and confirmations[0] < self._replicas:
            raise NotDurable(
                f"what was settled last is on {confirmations[0]} of {self._replicas} replicas "
                f"(durability: {self.level}): nothing more is taken until so many have it; one is away, slow or hangs"
            )
        if self._majority and sum(_replicas(confirmations[1])) > self._replicas:
            raise NotDurable(f"settled on {self._replicas} replicas, and another one has connected: waiting for it")


def _replicas(census: bytes) -> list[bool]:
    """Return for each replica of the server whether it is connected and up to date but for what is on its way."""
    return [b"state=online" in line for line in census.splitlines() if re.match(rb"slave\d+:", line)]
