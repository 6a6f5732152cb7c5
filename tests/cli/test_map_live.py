"""penstock map --live: running services, by registrations or files, with the lengths of their lists."""

import asyncio
import json
import os
import pty
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.ports import free_port
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock, running
from tests.support.harness import Service, eventually

pytestmark = pytest.mark.slow

HOP: dict[str, Any] = {"redis_namespace": "demo", "in": "in", "pending": "pending", "out": ["out0", "out1"]}


@pytest.fixture
def hop(redis: Redis, redis_url: str, tmp_path: Path) -> Service:
    return Service("mpush", tmp_path / "log", redis=redis_url, **HOP)


async def registered(redis: Redis, namespace: str = "demo") -> None:
    """Wait until a service has published which lists it reads and writes."""

    async def said() -> bool:
        return bool(await redis.exists(f"{namespace}:shape"))

    await eventually(said)


async def test_registered_services_are_drawn_with_waiting_messages(hop: Service, redis: Redis, redis_url: str) -> None:
    with hop:
        await registered(redis)
        await redis.lpush("in", *map(str, range(100)))
        await eventually(lambda: _is(redis, "out1", 100))
        result = await penstock("map", "--live", "--once", redis=redis_url)
        await redis.hset("demo:1", "renewed", (await redis.time())[0] - 41)
        late = await penstock("map", "--live", "--once", redis=redis_url)
        assert "─▶ demo (mpush)  1 late" in late.text
        assert hop.stop() == 0
    assert (result.status, result.error) == (0, "")
    title, *lines = result.text.splitlines()
    assert title.startswith("What has registered, ")
    assert lines == [
        "└── in  0",
        "    └── ─▶ demo (mpush)  1 alive",
        "        ├── out0  100",
        "        └── out1  100",
    ]
    stopped = await penstock("map", "--live", "--once", redis=redis_url)
    assert "─▶ demo (mpush)  not running" in stopped.text


async def test_a_transport_names_the_server_that_it_sends_to(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    with EmbeddedServer() as there:
        settings: dict[str, Any] = {"redis": redis_url, "out_redis": there.url, "out": "far"}
        with Service("vpush", tmp_path / "log", **HOP | {"redis_namespace": "send"} | settings):
            await registered(redis, "send")
            async with Redis.from_url(there.url) as client:
                await client.lpush("far", "a", "b")
            found = (await penstock("map", "--live", "--once", "--json", redis=redis_url)).json
            far = next(each for each in found["lists"] if each["key"] == "far")
            assert (far["server"], far["length"]) == (f"localhost:{there.port}/0", 2)
            await asyncio.to_thread(there.stop)
            gone = await penstock("map", "--live", "--once", redis=redis_url)
    assert f"far  on localhost:{there.port}/0  out of reach" in gone.text
    assert f"localhost:{there.port}/0 does not answer: " in gone.text


async def test_a_monitor_is_joined_to_what_it_watches(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    tracks: dict[str, Any] = {"redis_namespace": "track", "out": "work"}
    watches: dict[str, Any] = {"redis_namespace": "watch", "watch": ["track"], "metrics_port": 0}
    with (
        Service("mdispatch", tmp_path / "log1", redis=redis_url, **HOP | tracks),
        Service("monitor", tmp_path / "log2", redis=redis_url, **watches),
    ):
        await registered(redis, "track")
        await registered(redis, "watch")
        text = (await penstock("map", "--live", "--once", redis=redis_url)).text
    assert "track:done  0\n    └── ─▶ watch (monitor)  1 alive\n        └── gives back to work, track:dead" in text


async def test_a_password_is_not_registered(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    port = free_port()
    settings: dict[str, Any] = {"out_redis": f"redis://me:secret@127.0.0.1:{port}/3", "out": "far"}
    with Service("vpush", tmp_path / "log", redis=redis_url, **HOP | settings):
        await registered(redis)
        said: Any = await redis.get("demo:shape")
    assert json.loads(said)["ends"][2]["server"] == f"localhost:{port}/3"
    assert b"secret" not in said


async def test_a_composition_is_drawn_with_its_programs(
    hop: Service, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "Procfile").write_text("fan: python -m services.mpush --props mpush.yaml\nworker: python worker.py\n")
    (tmp_path / "mpush.yaml").write_text("redisNamespace: demo\nin: in\npending: pending\nout: [out0, out1]\n")
    (tmp_path / "composition.yaml").write_text("programs: {worker: {reads: out0, writes: end}}\n")
    await redis.lpush("end", "a")
    with hop:
        await registered(redis)
        result = await penstock("map", tmp_path, "--live", "--once", redis=redis_url)
    assert "─▶ fan (mpush)  1 alive" in result.text
    assert "─▶ worker (program)" in result.text
    assert "end  1" in result.text


async def test_a_growing_list_is_marked_until_a_reader_takes(hop: Service, redis: Redis, redis_url: str) -> None:
    with hop:
        await registered(redis)
        async with running("map", "--live", "--json", redis=redis_url) as process:
            assert process.stdout is not None
            grown: dict[str, Any] = {}
            while not grown.get("piles_up"):
                await redis.lpush("in", "x")
                line = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
                grown = next(each for each in line["lists"] if each["key"] == "out0")
            assert grown["length"] >= 4
            assert grown["arriving"] > 0
            assert grown["leaving"] == 0
            await redis.rpop("out0")
            while grown["piles_up"]:
                line = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
                grown = next(each for each in line["lists"] if each["key"] == "out0")
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_on_a_terminal_it_is_refreshed_in_place_and_ctrl_c_ends_it_with_0(
    hop: Service, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    seen = b""

    async def shows(text: bytes) -> bool:
        nonlocal seen
        try:
            seen += os.read(ours, 65_536)
        except BlockingIOError:
            return False
        return text in re.sub(rb"\x1b\[[0-9;]*m", b"", seen)

    try:
        with hop:
            await registered(redis)
            async with running("map", "--live", redis=redis_url, stdout=theirs) as process:
                await eventually(lambda: shows(b"demo (mpush)"))
                await redis.lpush("in", *"abcdefg")
                await eventually(lambda: shows(b"out1  7"))
                assert b"\x1b[1A" in seen, "the cursor goes up: the drawing before is overwritten"
                process.send_signal(signal.SIGINT)
                assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        os.close(ours)
        os.close(theirs)


async def test_it_survives_a_server_that_does_not_answer_for_a_while(tmp_path: Path) -> None:
    with EmbeddedServer() as server, Service("mpush", tmp_path / "log", redis=server.url, **HOP):
        async with Redis.from_url(server.url) as client:
            await registered(client)
        async with running("map", "--live", "--json", redis=server.url) as process:
            stdout = process.stdout
            assert stdout is not None

            async def silent() -> dict[str, str]:
                found: dict[str, str] = json.loads(await asyncio.wait_for(stdout.readline(), 60))["silent"]
                return found

            assert await silent() == {}
            await asyncio.to_thread(server.stop)
            await eventually(lambda: _true(silent()))
            await asyncio.to_thread(server.start)
            await eventually(lambda: _false(silent()))


async def test_a_server_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    result = await penstock("map", "--live", redis=url)
    assert (result.status, result.out) == (1, b"")
    assert f"cannot reach {url}: connection refused" in result.error
    (tmp_path / "mpush.yaml").write_text("redisNamespace: demo\nin: in\npending: pending\nout: [out0]\n")
    result = await penstock("map", tmp_path, "--live", redis=url)
    assert (result.status, "cannot reach localhost" in result.error) == (1, True)


async def test_invalid_shapes_are_left_out(redis: Redis, redis_url: str) -> None:
    wrong = b'{"service": "x", "ends": [1], "watched": [], "watches": []}'
    for number, text in enumerate((b"", b"\xff", b"[]", b"{}", wrong)):
        await redis.set(f"other{number}:shape", text)
        await redis.hset(f"other{number}:lists", "a", "in")
    await redis.lpush("other:shape", "a list")
    result = await penstock("map", "--live", "--once", "--json", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert result.json["parts"] == []


async def _is(redis: Redis, name: str, length: int) -> bool:
    return bool(await redis.llen(name) == length)


async def _true(call: Any) -> bool:
    return bool(await call)


async def _false(call: Any) -> bool:
    return not await call
