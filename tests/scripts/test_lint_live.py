"""penstock lint --live: checks of a composition against its servers."""

import asyncio
from pathlib import Path

import pytest
import redis as blocking

from penstock.base.ports import free_port
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock
from tests.support.harness import Service, until


async def test_live_is_about_compositions(tmp_path: Path) -> None:
    (tmp_path / "mpush.yaml").touch()
    result = await penstock("lint", tmp_path / "mpush.yaml", "--live")
    assert (result.status, "expected a directory" in result.error) == (2, True)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Write a composition of one fan-out; return its folder."""
    (tmp_path / "Procfile").write_text("fan: python -m services.mpush --props mpush.yaml\n")
    (tmp_path / "mpush.yaml").write_text("redisNamespace: fan\nin: in\npending: pending\nout: [a, b]\n")
    (tmp_path / "composition.yaml").write_text("external: {writes: in, reads: [a, b]}\n")
    return tmp_path


async def live(directory: Path, url: str) -> list[str]:
    result = await penstock("lint", directory, "--live", "--redis", url)
    assert result.error == ""
    return [line.replace(f"{directory}/", "") for line in result.text.splitlines()]


async def test_live_finds_nothing_where_all_is_well(small: Path) -> None:
    with (
        EmbeddedServer(aof=True) as server,
        Service("mpush", small / "log", redis=server.url, redis_namespace="fan", **{"in": "in"}, pending="pending",
                out=["a", "b"]) as service,
    ):  # fmt: skip
        await asyncio.to_thread(until, lambda: "registered" in service.log_text())
        result = await penstock("lint", small, "--live", redis=server.url)
        assert (result.status, result.text.partition(" (")[0]) == (0, f"{small}: OK")


async def test_live_finds_what_is_wrong_on_the_server(small: Path) -> None:
    with EmbeddedServer(maxmemory_policy="allkeys-lru") as server:
        client = blocking.Redis(port=server.port)
        client.set("b", "text")
        client.set("fan:lists", "text")
        here = f"localhost:{server.port}/0"
        redis, namespace = "mpush.yaml: redis: its server", "mpush.yaml:1: redisNamespace:"
        deletes = "deletes messages when its memory is full: maxmemory-policy allkeys-lru"
        assert await live(small, server.url) == [
            f"{redis} {deletes}; expected noeviction [server]",
            f"{redis} keeps nothing on disk: a restart loses all messages; expected appendonly yes [server]",
            f"mpush.yaml:4: out: 'b' is a string on {here}; expected a list [type]",
            f"{namespace} 'fan:lists' is a string on {here}; expected a hash [type]",
            f"{namespace} fan (mpush) has no live instances on {here} [running]",
        ]


async def test_live_finds_lists_for_answers_that_a_service_outside_has_registered(small: Path) -> None:
    for name in ("Procfile", "mpush.yaml"):
        (small / name).unlink()
    (small / "mdispatch.yaml").write_text(
        "redisNamespace: md\nin: in\npending: p\nout: a\nreplyLists: ['md:*', 'next:*', 'other:pend:1', 'next:in']\n"
    )
    (small / "monitor.yaml").write_text("redisNamespace: mon\nwatch: [md]\n")
    declared = "external: {writes: [in, 'md:done'], reads: [a, 'next:in', 'other:pend:1']}\n"
    (small / "composition.yaml").write_text(declared)
    with EmbeddedServer(aof=True) as server:
        client = blocking.Redis(port=server.port)
        client.hset("next:mpush:lists", mapping={"next:in": "in", "next:pending": "pending"})
        client.hset("other:lists", mapping={"other:in": "in", "other:pend": "pending"})
        assert await live(small, server.url) == [
            "mdispatch.yaml:5: replyLists: 'other:pend:1' is what the service that registered as 'other' has in hand; "
            "expected another list [replies]",
            "mdispatch.yaml:5: replyLists: 'next:*' matches 'next:pending', what the service that registered "
            "as 'next:mpush' has in hand: requests that name it are refused; expected a pattern of lists of clients "
            "alone [replies]",
        ]


async def test_live_takes_names_in_different_slots_for_a_mistake_on_a_cluster(small: Path) -> None:
    with EmbeddedServer(cluster_enabled="yes") as server:
        lines = await live(small, server.url)
    assert any(line.startswith("mpush.yaml:1: redisNamespace: a, b, fan:ids, in, pending are in") for line in lines)


async def test_live_names_a_server_that_is_not_there(small: Path) -> None:
    port = free_port()
    (line,) = await live(small, f"redis://user:secret@127.0.0.1:{port}/0")
    assert line.startswith(f"mpush.yaml: redis: cannot reach redis://user:***@127.0.0.1:{port}/0: connection refused")
