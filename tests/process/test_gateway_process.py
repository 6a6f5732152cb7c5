"""The gateway as a process: registration, metrics, reload, stop, kills, and the rights that it needs."""

import asyncio
import shlex
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Unauthorized
from penstock.bus import Bus
from services.gateway.settings import Settings
from tests.support.federated import SECRET, far
from tests.support.harness import Service, eventually


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def gateway(redis: "Redis", redis_url: str, port: int, tmp_path: Path) -> Iterator[Service]:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    settings = {"redis_namespace": "site:gateway", "listen_host": "127.0.0.1", "listen_port": port}
    with Service("gateway", tmp_path / "log", redis=redis_url, secret_file=secret, **settings) as service:
        yield service


async def test_it_registers_counts_reloads_and_stops(
    gateway: Service, redis: "Redis", port: int, tmp_path: Path
) -> None:
    async with Bus(patience=30) as bus:
        queue = far(bus, port)
        await queue.attach()
        assert await queue.push_many([*"abc"]) == [1, 2, 3]
        await eventually(lambda: redis.hexists("site:gateway:1", "host"))
        await eventually(lambda: _counts(redis, "pushed", b"3"))
        (tmp_path / "secret").write_text(f"another secret\n{SECRET}\n")
        gateway.signal(signal.SIGHUP)
        await eventually(lambda: _reloaded(redis, b"1"))
        assert await queue.count() == 3
        await eventually(lambda: _counts(redis, "former_secret", b"1"))
        (tmp_path / "secret").write_text("another secret\n")
        gateway.signal(signal.SIGHUP)
        refused = far(bus, port, "bar")
        await eventually(lambda: _reloaded(redis, b"2"))
        await eventually(lambda: refused.is_refused or queue.is_refused)
        with pytest.raises(Unauthorized):
            await queue.count()
        again = far(bus, port, "foo", "another secret")
        assert await again.exists() is True
    gateway.stop()
    assert not await redis.exists("site:gateway:1")
    assert "correct horse" not in gateway.log_text()
    assert "another secret" not in gateway.log_text()


async def _counts(redis: "Redis", name: str, value: bytes) -> bool:
    return bool(await redis.hget("site:gateway:metrics:gateway", name) == value)


async def _reloaded(redis: "Redis", times: bytes) -> bool:
    return bool(await redis.hget("site:gateway:metrics:reload", "count") == times)


async def test_a_stop_gives_back_what_peers_have_not_handled(gateway: Service, redis: "Redis", port: int) -> None:
    async with Bus(patience=30) as bus:
        queue = far(bus, port)
        await queue.attach(ttl=60)
        await queue.push_many([b"%d" % number for number in range(3_000)])
        taken = list[int]()
        async for message in queue.consume():
            taken.append(message.id)
            if len(taken) == 10:
                break
        await eventually(lambda: _fewer(redis, 3_000 - 10))
        await asyncio.to_thread(gateway.stop)
    left = [int(each) for each in (await redis.lrange("bus:queue:foo:messages", 0, -1))[::2]]
    assert {*taken, *left} == {*range(1, 3_001)}
    assert left == sorted(left)


async def _fewer(redis: "Redis", many: int) -> bool:
    return bool(await redis.llen("bus:queue:foo:messages") / 2 <= many)


async def test_it_works_with_the_rights_that_it_names_and_no_others(
    redis: "Redis", redis_url: str, port: int, tmp_path: Path
) -> None:
    url = redis_url.replace("redis://", "redis://gate:pw@")
    given: dict[str, Any] = {
        "redis_namespace": "site:gateway",
        "listen_port": port,
        "listen_host": "127.0.0.1",
        "queues": ["orders.*"],
        "channels": ["talk"],
        "topics": ["news"],
        "objects": ["cart"],
    }
    (rights,) = Settings(redis=url, secret=SECRET, **given).rights().values()
    await redis.execute_command(*shlex.split(rights.line("gate", "pw")))
    await redis.execute_command("ACL", "LOG", "RESET")
    try:
        with Service("gateway", tmp_path / "log", redis=url, secret=SECRET, **given) as service:
            async with Bus(patience=30) as bus:
                where: dict[str, Any] = {"url": f"ws://127.0.0.1:{port}/bus", "secret": SECRET}
                queue = bus.federate(bus.queue("orders.1"), **where)
                await queue.attach(discoverable=True)
                await queue.push_many([*"abc"])
                assert [each.body async for each in queue.consume(reliable=True, limit=3)] == [b"a", b"b", b"c"]
                await queue.ack(3)
                await queue.set_metadata({"x": "y"})
                assert await queue.count() == 0
                await queue.flush()
                await queue.close()
                here, there = (bus.federate(bus.channel("talk"), **where) for _ in range(2))
                await here.connect()
                await there.listen()
                await here.send("x")
                topic = bus.federate(bus.pubsub("news"), **where)
                await topic.subscribe()
                assert await topic.publish("x") == 1
                kept = bus.federate(bus.persistable("cart", {}, ["a"]), **where)
                assert await kept.load() is False
            service.stop()
            log: Any = await redis.execute_command("ACL", "LOG")
            assert [each for each in log if b"setinfo" not in each[b"object"]] == []
    finally:
        await redis.execute_command("ACL", "DELUSER", "gate")
