"""A blocking client of a Redis Cluster: each command goes to the node that has its key, to all nodes at once."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.core.raw_connection import Command

SLOTS: Final = 16_384
RETRIES: Final = 6
"""Retries of a command whose slot moves or has no node: about 3 s."""
ELSEWHERE: Final = (MovedError, AskError, ClusterDownError, TryAgainError)
Exchange = Callable[["Redis", Sequence[Command]], list[Any]]


class Cluster(Redis):
    """Commands have one key, or keys of one slot. ``MULTI ... EXEC`` of ``exchange`` has one key, too."""

    def __init__(self, seeds: Sequence[tuple[str, int]], client: Callable[[str, int, int], "Redis"]) -> None:
        """Create a client of each node by ``client``, with host, port and the number of retries.

        Connect on first use, by the first of ``seeds`` that answers.
        """
        super().__init__(connection_pool=client(*seeds[0], 0).connection_pool)
        self._seeds, self._client = seeds, client
        self._nodes: dict[tuple[str, int], Redis] = {}
        self._slots: list[tuple[str, int] | None] = []

    def node(self, key: bytes | str) -> "Redis":
        """Return the client of the node that has ``key``. Raise ``ConnectionError`` if none has."""
        if not self._slots:
            self.refresh()
        place = self._slots[key_slot(encoded(key) if isinstance(key, str) else key)]
        if place is None:
            self._slots = []
            raise ConnectionError(f"no node of the cluster has the slot of {key!r}")
        return self._nodes[place]

    def refresh(self) -> None:
        """Ask the nodes in turn, until one answers, which node has which slot."""
        for turn in range(RETRIES + 1):
            for place in dict.fromkeys([*self._nodes, *self._seeds]):
                try:
                    with self._client(*place, 0) as asked:
                        ranges: Any = asked.execute_command("CLUSTER SLOTS")
                except (ConnectionError, TimeoutError):
                    if turn == RETRIES and place == self._seeds[-1]:
                        raise
                    continue
                self._slots = [None] * SLOTS
                for first, last, primary, *_ in ranges:
                    node = (primary[0].decode() or place[0], primary[1])
                    self._open(*node)
                    self._slots[first : last + 1] = [node] * (last + 1 - first)
                return
            time.sleep(0.05 * 2**turn)

    def execute_command(self, *words: Any, **options: Any) -> Any:
        for turn in range(RETRIES + 1):
            try:
                return self.node(key_of(words)).execute_command(*words, **options)
            except AskError as error:
                if not isinstance(error, MovedError):
                    return self._asking(error, words)
                self._later(turn, error)
            except (ClusterDownError, TryAgainError) as error:
                self._later(turn, error)

    def exchange(self, commands: Sequence[Command], ask: Exchange) -> list[Any]:
        """Send ``commands`` to their nodes at once, by ``ask``, and return the replies in order."""
        replies: list[Any] = [None] * len(commands)
        left = _units(commands)
        for turn in range(RETRIES + 1):
            shares: dict[Redis, list[int]] = {}
            for unit in left:
                keyed = commands[unit[min(1, len(unit) - 1)]]
                shares.setdefault(self.node(key_of(keyed)), []).extend(unit)
            for places, found in zip(shares.values(), _at_once(shares, commands, ask), strict=True):
                for place, reply in zip(places, found, strict=True):
                    replies[place] = reply
            left = [unit for unit in left if any(isinstance(replies[place], ELSEWHERE) for place in unit)]
            if not left or turn == RETRIES:
                break
            self._later(turn, None)
            for unit in left:
                reply = replies[unit[0]]
                if len(unit) == 1 and isinstance(reply, AskError) and not isinstance(reply, MovedError):
                    replies[unit[0]] = self._asking(reply, commands[unit[0]])
        return replies

    def scan_iter(self, *args: Any, **options: Any) -> Iterator[Any]:
        """Yield the keys of all nodes."""
        self.refresh()
        for place in sorted({place for place in self._slots if place}):
            yield from self._nodes[place].scan_iter(*args, **options)

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
        super().close()

    def _open(self, host: str, port: int) -> "Redis":
        if (host, port) not in self._nodes:
            self._nodes[host, port] = self._client(host, port, RETRIES)
        return self._nodes[host, port]

    def _later(self, turn: int, error: RedisError | None) -> None:
        if error and turn == RETRIES:
            raise error
        time.sleep(0.05 * 2**turn if turn else 0)
        self.refresh()

    def _asking(self, error: AskError, words: Sequence[Any]) -> Any:
        """Send a command to the node that gets the key at the moment."""
        with self._open(error.host, error.port).pipeline(transaction=False) as wire:
            wire.execute_command("ASKING")
            wire.execute_command(*words)
            return wire.execute()[1]


def node_of(redis: "Redis", key: bytes | str) -> "Redis":
    """Return the client of the node that has ``key``: ``redis`` itself unless it is a cluster."""
    return redis.node(key) if isinstance(redis, Cluster) else redis


def beside(redis: "Redis", key: bytes) -> bytes:
    """Return the beginning of names that are in the slot of ``key``: itself, in a cluster with a hash tag."""
    if not isinstance(redis, Cluster) or key_slot(key) == key_slot(b"%b:x" % key):
        return key
    if b"}" in key:
        raise PenstockError(f"{key!r} on a Redis Cluster: a name with a brace needs a hash tag, as in {{name}}")
    return b"{%b}" % key


def key_of(words: Sequence[Any]) -> bytes:
    """Return the first key of a command."""
    name = str(words[0]).upper()
    place = 3 if name in ("EVAL", "EVALSHA") else 2 if name in ("XINFO", "XINFO STREAM") and len(words) > 2 else 1
    key = words[place]
    return key if isinstance(key, bytes) else encoded(str(key))


def _units(commands: Sequence[Command]) -> list[list[int]]:
    """Return the places of commands that stay together: single ones, and each ``MULTI ... EXEC``."""
    units: list[list[int]] = []
    inside = False
    for place, command in enumerate(commands):
        if inside:
            units[-1].append(place)
        else:
            units.append([place])
        inside = (inside or command[0] == "MULTI") and command[0] != "EXEC"
    return units


def _at_once(shares: dict["Redis", list[int]], commands: Sequence[Command], ask: Exchange) -> list[list[Any]]:
    work = [(node, [commands[place] for place in places]) for node, places in shares.items()]
    if len(work) == 1:
        return [ask(*work[0])]
    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(lambda each: ask(*each), work))
