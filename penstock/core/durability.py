"""Levels of durability: in memory, on the server's disk, or on replicas, and the replies that confirm them."""

import re
from typing import Any, Final

from redis.exceptions import ResponseError

from penstock.base.errors import NotDurable
from penstock.core.raw_connection import Command

DURABILITY: Final = r"(memory|aof|replicas:([1-9][0-9]{0,2}|majority))"
"""How levels are written."""
MAJORITY: Final = "replicas:majority"


class Level:
    """``memory``, ``aof`` (the server's own disk), ``replicas:N`` or ``replicas:majority``; one wait for a batch.

    WAIT goes over the connection of the batch, for at most ``longest`` seconds. A majority is every connected replica,
    and more than half of the most that this primary was seen to have: after a failover any of them has what was
    confirmed.
    """

    def __init__(self, level: str, longest: float) -> None:
        self.level = level
        self._longest_ms = int(longest * 1000)
        self._majority = level == MAJORITY
        self._replicas = 1 if self._majority else int(level.partition(":")[2] or 0)
        self._most, self._primary = 0, b""

    @property
    def commands(self) -> list[Command]:
        """The commands that follow a write on its connection to have it confirmed; the same until the next census."""
        if self.level == "aof":
            return [("WAITAOF", 1, 0, self._longest_ms)]
        wait: list[Command] = [("WAIT", self._replicas, self._longest_ms)] if self._replicas else []
        return [*wait, *self.census]

    @property
    def census(self) -> list[Command]:
        """The commands that ask which replicas exist; none if the setting gives their number."""
        return [("INFO", "replication")] if self._majority else []

    def count(self, census: bytes) -> None:
        """Set, from a reply to ``census``, how many replicas are waited for from now on."""
        replicas = _replicas(census)
        primary = next((line for line in census.splitlines() if line.startswith(b"master_replid:")), b"")
        if primary != self._primary:
            self._primary, self._most = primary, 0
        self._most = max(self._most, len(replicas))
        self._replicas = max(sum(replicas), self._most // 2 + 1)

    def check(self, confirmations: list[Any]) -> None:
        """Raise ``NotDurable`` if the replies to ``commands`` do not confirm this level, or the error among them."""
        for reply in confirmations:
            if isinstance(reply, ResponseError):
                raise reply
        if self.level == "aof" and confirmations[0][0] < 1:
            raise NotDurable("what was written last is not on the server's disk yet, as durability: aof asks (WAITAOF)")
        if self._replicas and confirmations[0] < self._replicas:
            raise NotDurable(
                f"what was written last is on {confirmations[0]} of {self._replicas} replicas "
                f"(durability: {self.level}): one is away, slow or hangs"
            )
        if self._majority and sum(_replicas(confirmations[1])) > self._replicas:
            raise NotDurable(f"written to {self._replicas} replicas, and another one has connected: waiting for it")


def _replicas(census: bytes) -> list[bool]:
    """Return for each replica whether it is connected and receives the stream of writes."""
    return [b"state=online" in line for line in census.splitlines() if re.match(rb"slave\d+:", line)]
