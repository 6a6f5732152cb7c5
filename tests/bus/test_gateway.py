"""The gateway against peers that ask for what they may not have, or send nonsense."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from penstock.bus.federation.frames import call_line
from services.gateway.listener import Listener
from tests.bus.gateway import serving, works
from tests.bus.raw import raw


async def test_BQ_D33_every_named_method_is_announced(gateway: Listener) -> None:
    async with raw(gateway) as peer:
        channel = peer.channel()
        names = ["on", "push", "ofAnotherVersion"]
        await channel.send(json.dumps({"type": "queue", "methods": names, "args": ["foo"]}))
        assert await channel.next() == "ready"
        announced = await channel.next()
        assert announced["arguments"] == [dict.fromkeys(names, "[Function]")]
        assert announced["callbacks"] == {"0": ["0", "on"], "1": ["0", "push"], "2": ["0", "ofAnotherVersion"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "message",
    [
        "nonsense",
        "[]",
        "7",
        '{"type":"nosuch","methods":[],"args":["x"]}',
        '{"type":"disconnect","methods":[],"args":[]}',
        '{"type":"__class__","methods":[],"args":["x"]}',
        '{"type":["queue"],"methods":[],"args":["x"]}',
        '{"type":"queue","methods":"on","args":["x"]}',
        '{"type":"queue","methods":[7],"args":["x"]}',
        '{"type":"queue","methods":[],"args":[]}',
        '{"type":"queue","methods":[],"args":[{}]}',
        '{"type":"queue","methods":[],"args":[""]}',
        '{"type":"channel","methods":[],"args":["zoo","a:b","c"]}',
        '{"type":"channel","methods":[],"args":["zoo",7]}',
        '{"type":"queue","methods":[],"args":["' + "x" * 2_000 + '"]}',
        "[" * 100_000,
    ],
)
async def test_BQ_D21_BQ_D32_a_bad_creation_message_ends_its_channel_alone(gateway: Listener, message: str) -> None:
    async with raw(gateway) as peer:
        channel = await peer.channel().send(message)
        assert "error" in await channel.next()
        assert await channel.next() == "closed"
        await works(peer)
    assert gateway.bus.is_online


@pytest.mark.parametrize("line", ["nonsense\n", "[]\n", '{"method":null}\n'])
async def test_BQ_D21_what_is_no_method_ends_the_channel_alone(gateway: Listener, line: str) -> None:
    async with raw(gateway) as peer:
        channel = await peer.create()
        await channel.on("error", 7)
        await channel.send(line)
        assert (await channel.next())["method"] == 7
        assert await channel.next() == "closed"
        await works(peer)


async def test_BQ_D21_a_method_that_is_not_known_is_refused_with_the_version_and_closes_nothing(
    gateway: Listener,
) -> None:
    async with raw(gateway) as peer:
        channel = await peer.create()
        for name in ("_begin", "methods_of_tomorrow", "x" * 1_000):
            [error] = await channel.call(name)
            assert error == f"NoSuchMethod: there is no method {name[:100]!r}: this is version 2 of a gateway"
        assert await channel.call("exists") == [None, False]


async def test_BQ_D32_calls_before_attach_are_answered(gateway: Listener) -> None:
    async with raw(gateway) as peer:
        channel = await peer.create()
        assert await channel.call("count") == [None, 0]
        assert await channel.call("ttl") == [None, None]
        assert await channel.call("metadata", "x") == [None, None]
        assert (await channel.call("close"))[0].startswith("WrongCall: ")
        await channel.send(call_line("ack", ("nonsense",)))  # an error that nobody listens to
        await channel.send(call_line("attach", ({"ttl": "long"},)))
        assert await channel.call("exists") == [None, False]


async def test_BQ_D25_BQ_D26_peers_that_leave_at_once_or_send_nothing_do_no_harm(gateway: Listener) -> None:
    for _ in range(3):
        async with raw(gateway) as peer:
            channel = peer.channel()
            await channel.send("", kind=b"2")
            await channel.send("")
            await peer.connection.send(b"")
            await peer.connection.send(b"short")
            await channel.send("x", kind=b"9")
    async with raw(gateway) as peer:
        await works(peer)


async def test_only_allowed_names_and_methods_can_be_used(redis: "Redis", redis_url: str) -> None:
    allowed: dict[str, Any] = {"queues": ["orders.*"], "objects": [], "methods": ["attach", "queue.push", "channel.*"]}
    async with serving(redis_url, **allowed) as gateway, raw(gateway) as peer:
        for type_, name in (("queue", "secrets"), ("persistify", "cart")):
            channel = await peer.channel().send(json.dumps({"type": type_, "methods": [], "args": [name]}))
            assert (await channel.next())["error"].startswith("Unauthorized: ")
        channel = await peer.create("queue", "orders.1")
        assert await channel.call("attach") == [None, False]
        assert await channel.call("push", "x") == [None, 1]
        for method in ("count", "consume", "flush", "pushAll"):
            assert (await channel.call(method))[0] == f"Unauthorized: queue.{method} is not allowed here"
        assert await redis.llen("bus:queue:orders.1:messages") == 2


async def test_an_object_gives_no_access_to_other_keys(gateway: Listener, redis: "Redis") -> None:
    await redis.hset("secrets", "a", "b")
    async with raw(gateway) as peer:
        channel = await peer.create("persistify", "cart", {}, ["a"])
        assert (await channel.call("pread", "secrets"))[0].startswith("Unauthorized: ")
        assert (await channel.call("pwrite", "secrets", {"a": 1}))[0].startswith("Unauthorized: ")
        assert await channel.call("pwrite", "bus:persisted:cart", {"a": [1]}) == [None, "OK", "bus:persisted:cart"]
        assert (await channel.call("pwrite", "bus:persisted:cart", {}))[0].startswith("WrongCall: ")
    assert await redis.hgetall("secrets") == {b"a": b"b"}


async def test_an_error_names_no_address_behind_the_gateway(redis: "Redis", redis_url: str) -> None:
    async with serving(redis_url) as gateway, raw(gateway) as peer:
        channel = await peer.create()
        await redis.set("bus:queue:foo:metadata", "x")
        answer = await channel.call("attach")
        assert "WrongType" in answer[0]
        assert "localhost" not in json.dumps(answer)
        assert "127.0.0.1" not in json.dumps(answer)


_frames = st.binary(max_size=60) | st.builds(
    lambda kind, body: b"%016x" % 1 + kind + body,
    st.sampled_from([b"1", b"2", b"", b"x"]),
    st.binary(max_size=60)
    | st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=8)
        | st.sampled_from(["queue", "push", "on", "methods"]),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["type", "methods", "args", "method", "arguments", "callbacks", "0"]), inner
            )
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode() + b"\n"),
)


@asynccontextmanager
async def attackable(redis_url: str) -> AsyncIterator[Callable[[list[bytes]], Coroutine[Any, Any, None]]]:
    """Yield a function that sends frames to a gateway, and looks whether another peer is still served."""
    async with serving(redis_url) as gateway, raw(gateway) as healthy:
        good = await healthy.create("queue", "healthy")

        async def attack(frames: list[bytes]) -> None:
            async with raw(gateway) as peer:
                fuzzed = await peer.create("queue", "fuzzed")
                for frame in frames:
                    await peer.connection.send(frame)
                    await peer.connection.send(fuzzed.id.encode() + frame[16:])
            assert await good.call("exists") == [None, False]
            assert gateway.bus.is_online

        yield attack


def test_fuzzed_frames_harm_nobody_else(redis_url: str) -> None:
    attacking = attackable(redis_url)
    with asyncio.Runner() as runner:
        attack = runner.run(attacking.__aenter__())

        @settings(max_examples=50, deadline=None)
        @given(frames=st.lists(_frames, max_size=12))
        def attacked(frames: list[bytes]) -> None:
            runner.run(attack(frames))

        attacked()
        runner.run(attacking.__aexit__(None, None, None))
