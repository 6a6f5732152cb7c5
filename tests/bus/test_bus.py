"""A bus: its servers, when it is there, and how it ends (BQ-01 to BQ-05, BQ-37)."""

import asyncio
import gc
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Unavailable, WrongCall
from penstock.bus import Bus, Request
from tests.bus.given import attached, heard, keep_alive, take
from tests.support.harness import eventually


async def connections(redis: "Redis") -> int:
    return sum(each["name"] == "penstock-bus" for each in await redis.client_list())


@pytest.mark.parametrize(
    "urls", [["redis+cluster://localhost:1"], ["htp://localhost"], ["redis://localhost", "nonsense"]]
)
def test_BQ_01_urls_that_are_none_are_refused_at_once(urls: list[str]) -> None:
    with pytest.raises(WrongCall):
        Bus(*urls)


def test_BQ_01_a_placement_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(WrongCall, match="placement=nearest: expected busmq or rendezvous"):
        Bus(placement="nearest")


@pytest.mark.parametrize("patience", [-1, "3", float("nan")])
def test_a_patience_that_is_no_duration_is_refused_at_once(patience: Any) -> None:
    with pytest.raises(WrongCall, match=r"^patience="):
        Bus("redis://localhost", patience=patience)


@pytest.mark.parametrize("name", [None, 5, b"orders"])
def test_a_name_that_is_no_text_is_refused_at_once(name: Any) -> None:
    bus = Bus("redis://localhost")
    calls: list[Callable[[Any], Any]] = [
        bus.queue,
        bus.channel,
        lambda name: bus.channel("chat", name),
        lambda name: bus.persistable(name, {}),
        bus.pubsub,
        bus.service,
    ]
    for call in calls:
        with pytest.raises(WrongCall, match="expected text, found"):
            call(name)


async def test_BQ_01_database_and_login_of_a_url_are_used(redis_url: str) -> None:
    async with Bus(redis_url.replace("/0", "/3")) as bus, Redis.from_url(redis_url.replace("/0", "/3")) as third:
        await attached(bus)
        assert await third.exists("bus:queue:foo:metadata")
        await third.flushdb()


async def test_BQ_02_a_second_connect_and_calls_before_the_first_are_refused(redis: "Redis", redis_url: str) -> None:
    bus = Bus(redis_url)
    for call in (bus.queue("foo").attach, bus.queue("foo").count, bus.pubsub("p").subscribe, bus.channel("c").connect):
        with pytest.raises(WrongCall, match="not connected"):
            await call()
    with pytest.raises(WrongCall, match="not connected"):
        bus.queue("foo").push("x")
    with pytest.raises(WrongCall, match="not connected"):
        bus.queue("foo").consume()
    async with bus:
        with pytest.raises(WrongCall, match="connected already"):
            await bus.connect()


async def test_BQ_04_nothing_is_left_of_a_bus_that_disconnects_and_it_can_connect_again(
    redis: "Redis", redis_url: str
) -> None:
    bus = Bus(redis_url)
    events = heard(bus, "instance:up", "instance:down")
    for round_ in range(1, 4):
        assert not bus.is_online
        async with bus:
            assert bus.is_online
            assert await connections(redis) == 2
            queue = await attached(bus, "x")
            await queue.consume(reliable=True)
        assert not bus.is_online
        assert not queue.is_attached
        await eventually(lambda: _none_of(redis))
        assert events == [("online",), ("offline",)] * round_
    await bus.disconnect()
    assert len(events) == 6


async def test_BQ_04_a_bus_ends_in_order_while_all_of_it_runs(redis: "Redis", redis_url: str) -> None:
    never = asyncio.Event()

    async def answer(_: Request) -> None:
        await never.wait()

    async with Bus(redis_url, patience=None) as bus:
        consumers = [await attached(bus, *map(str, range(50)), name=f"q{number}") for number in range(4)]
        modes: list[dict[str, Any]] = [{}, {"reliable": True}, {"reliable": True, "exclusive": True}, {"remove": False}]
        for queue, mode in zip(consumers, modes, strict=True):

            async def handle(_: object) -> None:
                await never.wait()

            queue.on("message", handle)
            await queue.consume(**mode)
        here, there = bus.channel("zoo"), bus.channel("zoo")
        await asyncio.gather(here.connect(), there.listen(reliable=True))
        provider, requester = bus.service("echo"), bus.service("echo")
        await provider.serve(answer)
        await requester.connect()
        asking = asyncio.ensure_future(requester.request("x", timeout=30))
        kept = bus.persistable("obj", {}, fields=["a"])
        await kept.persist(5)
        topic = bus.pubsub("news")
        await topic.subscribe()
        waiting = bus.queue("never").push("x")
        idle = await attached(bus, name="idle")
        looping = [asyncio.ensure_future(take(each, 1)) for each in (idle, bus.queue("never"))]
        pushing = asyncio.ensure_future(bus.queue("never").push_many([*"ab"]))
        await eventually(lambda: idle.is_consuming)
        await eventually(lambda: all(each.consumed for each in consumers))
        await eventually(lambda: here.is_remote_connected and there.is_remote_connected)
    assert await asyncio.gather(*looping) == [[], []]
    with pytest.raises(Unavailable, match="disconnected"):
        await pushing
    with pytest.raises(Unavailable, match="disconnected"):
        await take(idle, 1)
    with pytest.raises(Unavailable, match="disconnected"):
        await waiting
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await eventually(lambda: _none_of(redis))
    assert await redis.llen("bus:queue:q0:messages") == 2 * 49  # one was handed out
    assert await redis.llen("bus:queue:q1:messages") == 2 * 49
    assert await redis.lrange("bus:queue:q1:toack", 0, -1) == [b"1", b"0"]
    assert await redis.llen("bus:queue:q3:messages") == 2 * 50
    assert not await redis.exists("bus:queue:q2:consumer")
    assert not here.is_attached
    assert not there.is_attached
    assert await redis.pubsub_channels() == []
    gc.collect()
    assert [each for each in asyncio.all_tasks() if each is not asyncio.current_task()] == []


async def test_BQ_04_a_handler_may_disconnect_the_bus(redis: "Redis", redis_url: str) -> None:
    bus, done = Bus(redis_url), asyncio.Event()
    await bus.connect()
    queue = await attached(bus, "x", "y")

    async def handle(_: object) -> None:
        await bus.disconnect()
        done.set()

    queue.on("message", handle)
    await queue.consume()
    async with asyncio.timeout(30):
        await done.wait()
    await eventually(lambda: _none_of(redis))
    assert await redis.lrange("bus:queue:foo:messages", 0, -1) == [b"2", b"y"]


async def test_BQ_37_a_discoverable_queue_is_announced_and_says_where_it_is(bus: Bus) -> None:
    notices, topic = list[dict[str, Any]](), bus.pubsub("bus:notifications")
    topic.on("message", lambda body: notices.append(json.loads(body)))
    await topic.subscribe()
    await attached(bus, name="hidden")
    queue = await attached(bus, ttl=60, discoverable=True)
    for many in range(1, 4):
        await eventually(lambda many=many: len(notices) >= many)  # type: ignore[misc]
        keep_alive(bus)
    assert all(each == {"event": "queue", "key": "bus:queue:foo:metadata", "ttl": 60} for each in notices)
    assert await queue.find() == "local"
    assert await bus.queue("foo").find() == "local"
    assert await bus.queue("none").find() is None


PROGRAM = """
    import asyncio, sys
    from penstock.bus import Bus

    async def main():
        how = sys.argv[2]
        async with Bus(sys.argv[1], patience=60) as bus:
            queue = bus.queue("foo")
            await queue.attach()
            await queue.push_many(["a", "b", "c"])
            if how == "broken":
                async for message in queue.consume():
                    break
            elif how == "cancelled":
                async def loop():
                    async for message in queue.consume(reliable=True):
                        await asyncio.sleep(60)
                task = asyncio.create_task(loop())
                await asyncio.sleep(0.1)
                task.cancel()
            elif how == "raised":
                async for message in queue.consume():
                    raise SystemExit(0)
            elif how == "handled":
                queue.on("message", lambda message: 1 / 0)
                await queue.consume()
                await asyncio.sleep(0.1)
            elif how == "pushed":
                queue.push("d")
                bus.queue("never").push("x").add_done_callback(lambda future: future.exception())

    asyncio.run(main(), debug=True)
    if sys.argv[2] == "broken":
        asyncio.run(main(), debug=True)
"""


@pytest.mark.parametrize("how", ["broken", "cancelled", "raised", "handled", "pushed"])
def test_a_program_ends_without_a_warning(redis_url: str, how: str) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(PROGRAM), redis_url, how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    for word in ("Task was destroyed", "unclosed", "never retrieved", "never awaited"):
        assert word not in ended.stderr


async def _none_of(redis: "Redis") -> bool:
    return await connections(redis) == 0
