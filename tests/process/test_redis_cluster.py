"""Services on a Redis Cluster: keys share a hash tag, and their slot may be on any node and move."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest
from redis.crc import key_slot

from penstock.base.ports import BUS_OFFSET, free_port
from penstock.lists import Lists
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock
from tests.support.harness import Service, until
from tests.support.redis_cluster import Node, move_slot, two_nodes

SLOT = key_slot(b"demo")
NAMES = {"redis_namespace": "{demo}", "in_": "{demo}:in", "pending": "{demo}:pending", "out": ["{demo}:a", "{demo}:b"]}
TRACKED: dict[str, Any] = {**NAMES, "out": "{demo}:out", "res": "{demo}:res"}
TRACKED |= {"message_timeout": 1, "attempts": 2, "backoff": "0.1"}
WATCHING: dict[str, object] = {"redis_namespace": "{demo}:monitor", "watch": "{demo}", "metrics_port": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Node, Node]]:
    with two_nodes() as nodes:
        yield nodes


@pytest.fixture
def nodes(cluster: tuple[Node, Node]) -> tuple[Node, Node]:
    """Return the node that owns the slot and the other one, both empty."""
    first, second = cluster
    here, there = (first, second) if _has_slot(first) else (second, first)
    for node in cluster:
        node.client.flushall()
    return here, there


def _has_slot(node: Node) -> bool:
    return any(start <= SLOT <= end and servers[0][2].decode() == node.id for start, end, *servers in node.ask("SLOTS"))


def test_a_nodes_port_is_free_for_the_other_nodes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, free = (free_port(bus=True) for _ in range(2))
    asked = iter((busy, free))
    monkeypatch.setattr(SystemRandom, "randrange", lambda *_: next(asked))
    with socket.create_server(("127.0.0.1", busy + BUS_OFFSET)), EmbeddedServer(cluster_enabled="yes") as server:
        assert server.port == free


@contextmanager
def mpush(node: Node, tmp_path: Path, **more: Any) -> Iterator[Service]:
    with Service("mpush", tmp_path / "log", **{**NAMES, "redis": node.server.url, **more}) as service:
        yield service


def delivered(node: Node, *messages: bytes) -> None:
    expected = list(reversed(messages))
    for out in NAMES["out"]:
        until(lambda out=out: node.client.llen(out) >= len(messages))  # type: ignore[misc]
        assert node.client.lrange(out, 0, -1) == expected
    assert not node.client.exists("{demo}:in", "{demo}:pending")


@pytest.mark.parametrize("asked", ["the node that has the slot", "the other node"])
def test_messages_are_delivered_whichever_node_is_named(nodes: tuple[Node, Node], tmp_path: Path, asked: str) -> None:
    here, there = nodes
    here.client.lpush("{demo}:in", "one", "two")
    with mpush(there if "other" in asked else here, tmp_path) as service:
        delivered(here, b"one", b"two")
        assert here.client.lrange("{demo}:ids", 0, -1) == [b"1"]
        assert service.stop() == 0
        assert ("slot" in service.log_text()) == ("other" in asked)
    assert not here.client.exists("{demo}:1", "{demo}:ids")


@pytest.mark.parametrize(
    "names",
    [
        {"redis_namespace": "demo"},
        {"out": ["{demo}:a", "b"]},
    ],
)
def test_names_in_different_slots_are_refused_with_what_to_do(
    nodes: tuple[Node, Node], tmp_path: Path, names: dict[str, Any]
) -> None:
    with mpush(nodes[0], tmp_path, **names) as service:
        assert service.wait() == 1
        assert "all names must lie in one slot: give them a common hash tag, as in {" in service.log_text()
        assert "Traceback" not in service.log_text()
    for node in nodes:
        assert set(node.client.keys()) <= {f"{names.get('redis_namespace', '{demo}')}:metrics:error".encode()}


@pytest.mark.parametrize("asked", ["the node that has the slot", "the other node"])
async def test_a_program_takes_and_pushes_whichever_node_is_named(nodes: tuple[Node, Node], asked: str) -> None:
    here, there = nodes
    async with Lists((there if "other" in asked else here).server.url, patience=10) as lists:
        assert await lists["{demo}:in"].push_many(str(number) for number in range(1_000)) == 1_000
        count = 0
        async for message in lists["{demo}:in"].messages():
            with message:
                message.also_push("{demo}:a", message.body)
            count += 1
            if count == 990:
                break
    assert here.client.llen("{demo}:a") == 990
    assert set(here.client.keys()) == {b"{demo}:in", b"{demo}:a"}


def test_a_slot_that_is_moved_while_messages_flow_takes_the_service_with_it(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    here, there = nodes
    messages = [str(number).encode() for number in range(60)]
    with mpush(here, tmp_path) as service:
        here.client.lpush("{demo}:in", *messages[:20])
        until(lambda: here.client.llen("{demo}:b") == 20)
        move_slot(SLOT, here, there)
        there.client.lpush("{demo}:in", *messages[20:])
        delivered(there, *messages)
        assert there.client.hmget("{demo}:metrics:taken", "count", "{demo}:a", "{demo}:b") == [b"60"] * 3
        assert service.stop() == 0
    assert not there.client.exists("{demo}:1", "{demo}:ids")


def test_a_blocked_service_notices_that_its_slot_is_gone(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    here, there = nodes
    with mpush(here, tmp_path, redis_namespace="", pop_timeout=30) as service:
        until(lambda: here.client.info("clients")["blocked_clients"])
        for node in (there, here):
            node.ask("SETSLOT", SLOT, "NODE", there.id)
        there.client.lpush("{demo}:in", "one")
        delivered(there, b"one")
        assert service.stop() == 0


@contextmanager
def tracked(asked: Node, tmp_path: Path) -> Iterator[Service]:
    """Yield an mdispatch; it and a monitor find the node with the slot by way of ``asked``."""
    monitor = Service("monitor", tmp_path / "monitor", redis=asked.server.url, **WATCHING)
    with monitor, Service("mdispatch", tmp_path / "log", redis=asked.server.url, **TRACKED) as service:
        until(lambda: '"registered"' in monitor.log_text())
        yield service
        assert monitor.stop() == 0


@pytest.mark.parametrize("asked", [0, 1], ids=["the node that has the slot", "the other node"])
def test_messages_are_tracked_whichever_node_is_named(nodes: tuple[Node, Node], tmp_path: Path, asked: int) -> None:
    client = nodes[0].client
    with tracked(nodes[asked], tmp_path) as service:
        request = '{"meta":{"id":"a","replyTo":"{demo}:reply:mine"}}'
        client.lpush("{demo}:in", "hello", "12345", request, '{"meta":{"delay":0.2}}')
        until(lambda: client.llen("{demo}:out") == 4)
        client.delete("{demo}:out")  # workers have taken them
        delayed = int(client.lindex("{demo}:message:ids", 0) or 0)  # delivered last
        client.lpush("{demo}:done", "12345", json.dumps({"id": delayed, "error": "no luck", "retry": False}))
        client.lpush("{demo}:res", '{"meta":{"id":"a"}}')
        until(lambda: client.llen("{demo}:out") == 1)  # the retry
        client.delete("{demo}:out")
        until(lambda: client.llen("{demo}:dead") == 2)
        assert client.lrange("{demo}:reply:mine", 0, -1) == [b'{"meta":{"id":"a"}}']
        letters = {
            letter["message"]: letter["reason"] for letter in map(json.loads, client.lrange("{demo}:dead", 0, -1))
        }
        assert letters == {"hello": "timeout", '{"meta":{"delay":0.2}}': "failed"}
        counts = {"registered": 4, "done": 2, "failed": 1, "timeout": 2, "retry": 1, "dead": 2}
        assert {name: int(client.hget(f"{{demo}}:metrics:{name}", "count") or 0) for name in counts} == counts
        assert service.stop() == 0


def test_a_reply_list_in_another_slot_costs_only_its_own_request(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    client = nodes[0].client
    with tracked(nodes[0], tmp_path) as service:
        client.lpush("{demo}:in", "before", '{"meta":{"id":"a","replyTo":"mine"}}', "after")
        until(lambda: client.llen("{demo}:dead") == 1)
        assert client.lrange("{demo}:out", 0, -1) == [b"after", b"before"]
        letter = json.loads(client.lindex("{demo}:dead", 0) or b"")
        assert letter["reason"] == "badRequest"
        assert letter["error"].endswith("use the same hash tag")
        assert service.stop() == 0


def test_a_monitor_in_another_slot_than_what_it_watches_is_refused(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    names = WATCHING | {"redis_namespace": "watcher"}
    with Service("monitor", tmp_path / "monitor", redis=nodes[0].server.url, **names) as monitor:
        assert monitor.wait() == 1
        assert "all names must lie in one slot" in monitor.log_text()
        assert "Traceback" not in monitor.log_text()


@pytest.mark.parametrize("down", ["the first seed", "the second seed"])
def test_a_service_starts_while_one_of_the_seeds_is_down(nodes: tuple[Node, Node], tmp_path: Path, down: str) -> None:
    """Find the node with the slot by way of any node that answers."""
    here, there = nodes
    gone = f"127.0.0.1:{free_port()}"
    seeds = [gone, f"127.0.0.1:{there.server.port}"]
    here.client.lpush("{demo}:in", "one")
    url = f"redis+cluster://{','.join(seeds if down == 'the first seed' else reversed(seeds))}"
    with mpush(here, tmp_path, redis=url) as service:
        delivered(here, b"one")
        assert service.stop() == 0
    assert not here.client.exists("{demo}:1", "{demo}:ids")


async def test_the_command_line_takes_several_seeds_too(nodes: tuple[Node, Node]) -> None:
    here, _ = nodes
    here.client.lpush("{demo}:in", "one")
    url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{here.server.port}"
    result = await penstock("redis", "llen", "{demo}:in", redis=url)
    assert (result.status, result.text) == (0, "1\n")


def test_a_service_uses_another_seed_when_its_first_one_is_gone(tmp_path: Path) -> None:
    """Kill the first seed, which owns no slot, and cut all connections: the service reconnects by way of the second."""
    with ExitStack() as stack:
        first, second = nodes = [Node(stack.enter_context(EmbeddedServer(cluster_enabled="yes"))) for _ in range(2)]
        for node in nodes:
            stack.callback(node.client.close)
        second.ask("ADDSLOTS", *range(16384))
        first.ask("MEET", "127.0.0.1", second.server.port)
        until(lambda: all(node.ready() for node in nodes))
        url = f"redis+cluster://{','.join(f'127.0.0.1:{node.server.port}' for node in nodes)}"
        with mpush(first, tmp_path, redis=url) as service:
            second.client.lpush("{demo}:in", "one")
            delivered(second, b"one")
            first.server.kill()
            second.client.client_kill_filter(_type="normal", skipme=True)
            until(lambda: "waiting" in service.log_text())
            second.client.lpush("{demo}:in", "two")
            delivered(second, b"one", b"two")
            assert service.stop() == 0
