"""penstock audit --all and of a composition: every hop on every server, with failures named."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from penstock.base.ports import free_port
from penstock.testing.server import EmbeddedServer
from tests.cli.given import settle
from tests.support.commandline import ROOT, penstock, running


async def test_all_namespaces_of_a_server_are_audited(redis: Redis, redis_url: str) -> None:
    await settle(redis, "one", 10, dead=1)
    await settle(redis, "two", 20)
    await redis.rpush("pending", "a")
    result = await penstock("audit", "--all", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in result.text.splitlines() if "│" in line]
    assert rows == [["one", "10", "1", "conserved"], ["two", "20", "1", "conserved"]]


async def test_a_stopped_composition_is_not_reported_as_loss(redis_url: str) -> None:
    result = await penstock("audit", ROOT / "compose" / "demo", redis=redis_url)
    assert result.status == 1
    assert "demo:mpush: no service has registered there" in result.error
    assert "NOT CONSERVED" not in result.text
    assert "not known" in result.text


async def test_a_failing_hop_is_named_and_the_status_is_1(redis: Redis, redis_url: str) -> None:
    await settle(redis, "one")
    await settle(redis, "two")
    await redis.hincrby("two:metrics:delivered", "out1", -1)
    result = await penstock("audit", "--all", redis=redis_url)
    assert result.status == 1
    assert result.error.splitlines()[0].startswith("penstock: two: out1: taken 10 is not delivered 9")
    assert "│ one       │      10 │       0 │ conserved     │" in result.text
    assert "│ two       │      10 │       0 │ NOT CONSERVED │" in result.text
    found = (await penstock("audit", "--all", "--json", redis=redis_url)).json
    assert [(hop["namespace"], hop["holds"]) for hop in found["hops"]] == [("one", True), ("two", False)]
    assert found["holds"] is False


async def test_what_moves_nothing_is_left_out(redis: Redis, redis_url: str) -> None:
    await settle(redis, "one")
    await redis.hset("monitor:lists", "monitor:pending:one", "pending")
    result = await penstock("audit", "--all", "--json", redis=redis_url)
    assert [hop["namespace"] for hop in result.json["hops"]] == ["one"]


async def test_a_server_without_services_is_a_failure(redis: Redis, redis_url: str) -> None:
    result = await penstock("audit", "--all", redis=redis_url)
    assert (result.status, result.out) == (1, b"")
    assert "no service has registered on this server: nothing to audit" in result.error


@pytest.mark.parametrize("words", [[], ["demo", "--all"]])
async def test_either_one_or_all(words: list[str], redis_url: str) -> None:
    result = await penstock("audit", *words, redis=redis_url)
    assert (result.status, "expected a namespace" in result.error) == (2, True)


@pytest.fixture
def sites(tmp_path: Path, redis_url: str) -> Path:
    """Write a composition of a fan-out and a transport that is never started; return its folder."""
    (tmp_path / "Procfile").write_text("fan: python -m services.mpush --props mpush.yaml\n")
    (tmp_path / "mpush.yaml").write_text(
        f"redis: {redis_url}\nredisNamespace: fan\nin: in\npending: pending\nout: [out0, out1]\n"
    )
    (tmp_path / "vpush.yaml").write_text(
        f"redis: {redis_url}\nredisNamespace: send\nin: out1\npending: p\noutRedis: redis://there/0\nout: far\n"
    )
    return tmp_path


async def test_a_composition_is_audited_on_the_servers_of_its_files(redis: Redis, sites: Path) -> None:
    await settle(redis, "fan")
    await settle(redis, "of somebody else")
    result = await penstock("audit", f"{sites}/", "--json")
    assert (result.status, result.error) == (0, "")
    assert [(hop["namespace"], hop["messages"], hop["holds"]) for hop in result.json["hops"]] == [("fan", 10, True)]


async def test_every_hop_is_audited_on_its_own_server(redis: Redis, sites: Path) -> None:
    with EmbeddedServer() as other:
        file = sites / "vpush.yaml"
        text = f"redis: {other.url}\nredisNamespace: send\nin: out1\npending: p\noutRedis: redis://there/0\nout: far\n"
        await asyncio.to_thread(file.write_text, text)
        await settle(redis, "fan")
        async with Redis.from_url(other.url) as there:
            await settle(there, "send")
            await there.hincrby("send:metrics:dropped", "count", 1)
        result = await penstock("audit", sites)
        assert result.status == 1
        assert f"│ localhost:{other.port}/0 │ send      │      10 │       0 │ NOT CONSERVED │" in result.text
        assert result.error == "penstock: send: dropped: count is 1, its lists add up to 0\n"


async def test_a_part_that_never_registered_is_reported(redis: Redis, sites: Path) -> None:
    result = await penstock("audit", sites)
    assert result.status == 1
    assert result.error.startswith("penstock: fan: no service has registered there: start the composition")


async def test_redis_in_the_environment_wins(redis: Redis, redis_url: str, sites: Path) -> None:
    file = sites / "mpush.yaml"
    text = file.read_text().replace(redis_url, f"redis://127.0.0.1:{free_port()}/0")
    await asyncio.to_thread(file.write_text, text)
    await settle(redis, "fan")
    assert (await penstock("audit", sites, redis=redis_url)).status == 0
    result = await penstock("audit", sites)
    assert (result.status, "cannot reach" in result.error) == (1, True)


async def test_a_composition_with_mistakes_is_not_audited(sites: Path) -> None:
    await asyncio.to_thread((sites / "mpush.yaml").write_text, "in: in\n")
    result = await penstock("audit", sites)
    assert (result.status, result.out) == (1, b"")
    assert f"{sites}/mpush.yaml: pending: missing" in result.error


async def test_watching_prints_every_hop_and_ends_with_1_if_one_ever_failed(redis: Redis, redis_url: str) -> None:
    await settle(redis, "one")
    await settle(redis, "two")
    await redis.hincrby("two:metrics:taken", "out0", -1)
    async with running("audit", "--all", "--watch", redis=redis_url) as process:
        assert process.stdout is not None
        lines = [await asyncio.wait_for(process.stdout.readline(), 60) for _ in range(2)]
        assert lines == [
            b"one: 10 settled, 0 pending: conserved\n",
            b"two: 10 settled, 0 pending: NOT CONSERVED, 1 problem\n",
        ]
        await redis.hincrby("two:metrics:taken", "out0", 1)
        while b"NOT" in (await asyncio.wait_for(process.stdout.readline(), 60)):
            pass
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 60) == 1


async def test_watching_in_json_prints_one_line_per_audit(redis: Redis, redis_url: str) -> None:
    await settle(redis, "one")
    async with running("audit", "--all", "--watch", "--json", redis=redis_url) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert json.loads(await asyncio.wait_for(process.stdout.readline(), 60))["holds"] is True
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 60) == 0
