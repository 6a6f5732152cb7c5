"""penstock stop."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock
from tests.support.harness import Service, eventually
from tests.support.membership import register


@pytest.fixture
def services(redis: Redis, redis_url: str, tmp_path: Path) -> Iterator[list[Service]]:
    """Yield two running instances of mpush in the namespace ``demo``."""
    settings = {"redis": redis_url, "redis_namespace": "demo", "in": "in", "pending": "pending", "out": ["out0"]}
    with ExitStack() as stack:
        yield [stack.enter_context(Service("mpush", tmp_path / f"log{place}", **settings)) for place in (0, 1)]


async def registered(redis: Redis, count: int) -> bool:
    return await redis.llen("demo:ids") == count


@pytest.mark.slow
async def test_one_instance_is_stopped_and_the_other_goes_on(
    redis: Redis, redis_url: str, services: list[Service]
) -> None:
    await eventually(lambda: registered(redis, 2))
    pid = await redis.hget("demo:1", "pid")
    result = await penstock("stop", "demo", "1", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert result.text.startswith(f"demo:1 (pid {int(pid or 0)} on ")
    assert "has deregistered after " in result.text
    assert await redis.lrange("demo:ids", 0, -1) == [b"2"]
    stopped = next(service for service in services if service.pid == int(pid or 0))
    assert await asyncio.to_thread(stopped.wait) == 0
    (other,) = [service for service in services if service is not stopped]
    assert other.process is not None
    assert other.process.poll() is None


@pytest.mark.slow
async def test_all_instances_are_stopped(redis: Redis, redis_url: str, services: list[Service]) -> None:
    await eventually(lambda: registered(redis, 2))
    result = await penstock("stop", "demo", "--all", "--json", redis=redis_url)
    assert result.status == 0
    assert {(one["id"], one["outcome"]) for one in result.json["instances"]} == {("1", "stopped"), ("2", "stopped")}
    assert [await asyncio.to_thread(service.wait) for service in services] == [0, 0]
    again = await penstock("stop", "demo", "--all", redis=redis_url)
    assert again.status == 1


async def test_an_instance_that_is_not_there_is_a_failure(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    result = await penstock("stop", "demo", "4", redis=redis_url)
    assert (result.status, result.out) == (1, b"")
    assert result.error == "penstock: demo:4 is not alive: the live instances of demo are 3\n"
    nobody = await penstock("stop", "other", "4", redis=redis_url)
    assert nobody.error == "penstock: other has no live instances\n"
    assert await redis.exists("demo:3") == 1


async def test_an_instance_that_does_not_stop_is_reported_after_the_wait(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    result = await penstock("stop", "demo", "3", "--wait", "0.2", redis=redis_url)
    assert result.status == 1
    assert "demo:3 (pid 77 on oak) was ordered to stop, but is still listed after 0.2 s" in result.text
    assert await redis.exists("demo:3") == 0


async def test_an_instance_that_others_have_taken_off_the_list_is_waited_for(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    await redis.delete("demo:ids")
    result = await penstock("stop", "demo", "3", "--wait", "0.2", "--json", redis=redis_url)
    assert (result.status, result.json["instances"][0]["outcome"]) == (1, "listed")


async def test_without_a_wait_only_the_order_is_given(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    result = await penstock("stop", "demo", "3", "--wait", "0", redis=redis_url)
    assert (result.status, result.text) == (0, "demo:3 (pid 77 on oak) was ordered to stop\n")


async def test_the_registration_may_be_on_another_server(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    with EmbeddedServer(directory=tmp_path) as other:
        async with Redis.from_url(other.url) as registry:
            await register(registry, "demo", "3", data=redis)
            words = ["stop", "demo", "3", "--wait", "0"]
            assert (await penstock(*words, "--service-redis", other.url, redis=redis_url)).status == 0
            assert await registry.exists("demo:3") == 0


@pytest.mark.parametrize("words", [["demo"], ["demo", "3", "--all"], ["demo", "ids"], ["demo", "-1"], ["demo", "²"]])
async def test_a_wrong_call_touches_nothing(redis: Redis, redis_url: str, words: list[str]) -> None:
    await register(redis, "demo", "3")
    result = await penstock("stop", *words, redis=redis_url)
    assert result.status == 2
    assert await redis.lrange("demo:ids", 0, -1) == [b"3"]
    assert await redis.exists("demo:3") == 1
