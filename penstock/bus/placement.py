"""Which of several servers a new object is created on."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from penstock.base.encoding import encoded
from penstock.base.urls import server_of


class Placement(StrEnum):
    """How a name chooses its server among several."""

    BUSMQ = "busmq"
    """As busmq 3.1.0 does: by the sum of the key's UTF-16 code units. The order of the servers matters, and if one is
    added, most names change their place."""
    RENDEZVOUS = "rendezvous"
    """By the largest hash of server and key. If a server is added, one in n names changes its place; the order of the
    servers does not matter."""


def busmq_index(key: str, servers: Sequence[str]) -> int:
    """Return the place of ``key`` among ``servers`` as busmq 3.1.0 computes it."""
    units = key.encode("utf-16-le", "surrogatepass")
    return sum(units[at] | units[at + 1] << 8 for at in range(0, len(units), 2)) % len(servers)


def rendezvous_index(key: str, servers: Sequence[str]) -> int:
    """Return the place of ``key`` among the URLs ``servers``; user and password do not matter."""

    def weight(place: int) -> bytes:
        return blake2b(encoded(f"{server_of(servers[place])}\n{key}"), digest_size=16).digest()

    return max(range(len(servers)), key=weight)


INDEX: Final[dict[Placement, Callable[[str, Sequence[str]], int]]] = {
    Placement.BUSMQ: busmq_index,
    Placement.RENDEZVOUS: rendezvous_index,
}
