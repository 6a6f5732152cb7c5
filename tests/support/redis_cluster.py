"""A Redis Cluster of two servers, for tests."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from redis import Redis

from penstock.testing.server import EmbeddedServer
from tests.support.harness import until


class Node:
    """A server of a cluster with a client."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server, self.client = server, Redis(port=server.port, protocol=2)
        self.id = self.ask("MYID").decode()

    def ask(self, *words: Any) -> Any:
        return self.client.execute_command("CLUSTER", *words)

    def ready(self) -> bool:
        state = self.ask("INFO")
        return b"cluster_state:ok" in state and b"cluster_known_nodes:2" in state


@contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Yield two servers that share the slots; close their clients at the end."""
    with ExitStack() as stack:
        first, second = nodes = [Node(stack.enter_context(EmbeddedServer(cluster_enabled="yes"))) for _ in range(2)]
        for node, slots in zip(nodes, ((0, 8192), (8192, 16384)), strict=True):
            stack.callback(node.client.close)
            node.ask("ADDSLOTS", *range(*slots))
        first.ask("MEET", "127.0.0.1", second.server.port)
        until(lambda: all(node.ready() for node in nodes))
        yield first, second


def move_slot(slot: int, here: Node, there: Node) -> None:
    """Move ``slot`` with its keys from one node to the other."""
    there.ask("SETSLOT", slot, "IMPORTING", here.id)
    here.ask("SETSLOT", slot, "MIGRATING", there.id)
    while keys := here.ask("GETKEYSINSLOT", slot, 1):
        here.client.migrate("127.0.0.1", there.server.port, keys, 0, 5000)
    for node in (there, here):
        node.ask("SETSLOT", slot, "NODE", there.id)
