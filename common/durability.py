"""Durability of a settled batch before the service goes on: in memory, on disk, or on replicas."""

import re
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.errors import NotDurable, Unsuitable
from penstock.raw_connection import Command
from penstock.script import Script

_confirm: Final = Script.read(Path(__file__).parent / "lua" / "confirm.lua")

MAJORITY: Final = "replicas:majority"


class Durability:
    """``memory``, ``aof`` (the server's own disk), ``replicas:N`` or ``replicas:majority``; one wait for a batch.

    WAIT goes over the connection of the batch. A majority is every connected replica, and more than half of the most
    that this primary was seen to have: after a failover any of them has what was confirmed.
    """

    def __init__(self, level: str, longest: float) -> None:
        self.level = level
        self._longest_ms = int(longest * 1000)
        self._majority = level == MAJORITY
        self._replicas = 1 if self._majority else int(level.partition(":")[2] or 0)
        self._most, self._primary = 0, b""

    @property
    def commands(self) -> list[Command]:
        """The commands that follow a transaction on its connection to have it confirmed; the same throughout a run."""
        if self.level == "aof":
            return [("WAITAOF", 1, 0, self._longest_ms)]
        wait: list[Command] = [("WAIT", self._replicas, self._longest_ms)] if self._replicas else []
        return [*wait, *self.census]

    @property
    def census(self) -> list[Command]:
        """The commands that ask which replicas exist; none if the setting gives their number."""
        return [("INFO", "replication")] if self._majority else []

    def count(self, census: bytes) -> None:
        """Set, from a reply to ``census``, for how many replicas the batches of the next run wait."""
        replicas = _replicas(census)
        primary = next((line for line in census.splitlines() if line.startswith(b"master_replid:")), b"")
        if primary != self._primary:
            self._primary, self._most = primary, 0
        self._most = max(self._most, len(replicas))
        self._replicas = max(sum(replicas), self._most // 2 + 1)

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

    def check(self, confirmations: list[Any]) -> None:
        """Raise ``NotDurable`` if the replies to ``commands`` do not confirm this level, or the error among them."""
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
    """Return for each replica whether it is connected and receives the stream of writes."""
    return [b"state=online" in line for line in census.splitlines() if re.match(rb"slave\d+:", line)]
