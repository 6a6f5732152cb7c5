"""Persisted objects and topics between Node's busmq and ours, in all four pairings."""

import asyncio
import json
from typing import Any

import pytest

from tests.bus.node import Peer
from tests.bus.pairs import NODE, Pair

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
FIELDS = ["foo", "bar", "zoo"]


async def load(peer: Peer) -> tuple[Any, ...]:
    await peer.send('{"load":1}')
    return await peer.expect("loaded")


async def test_what_one_saves_the_other_loads(pair: Pair) -> None:
    async with (
        pair.first("persist", "obj", attrs=FIELDS) as writer,
        pair.second("persist", "obj", attrs=FIELDS) as reader,
    ):
        assert (await load(reader))[0] is False
        await writer.send(json.dumps({"foo": "hellö", "bar": 1, "zoo": {"k": [True, None]}}))
        await writer.expect("saved", None)
        assert await pair.left() == {"bus:persisted:obj": {"foo": '"hellö"', "bar": "1", "zoo": '{"k":[true,null]}'}}
        await pair.lives_for(60)
        assert await load(reader) == (True, ["hellö", 1, {"k": [True, None]}])
        await pair.redis.hset("bus:persisted:obj", "bar", "2")
        await writer.send(json.dumps({"foo": "world"}))  # which writes this field alone
        await writer.expect("saved", None)
        await reader.send('{"zoo":"😀"}')
        await reader.expect("saved", None)
        assert await pair.left() == {"bus:persisted:obj": {"foo": '"world"', "bar": "2", "zoo": '"😀"'}}


async def test_an_object_that_nobody_saved_does_not_exist(pair: Pair) -> None:
    """With its driver ioredis, Node takes an empty reply for an object."""
    for driver, found in ((None, False), ("ioredis", pair.names[1] == NODE)):
        async with pair.second("persist", "obj", attrs=FIELDS, driver=driver) as reader:
            assert await load(reader) == (found, [None, None, None])


async def test_json_may_be_written_in_any_way(pair: Pair) -> None:
    """Node throws if a field is not JSON, though it writes ``undefined`` itself."""
    fields: dict[Any, Any] = {"foo": ' { "a" : "\\u00fc\\ud83d\\ude00" } ', "bar": "1e2", "more": "[]"}
    if pair.names[1] != NODE:
        fields["zoo"] = "undefined"
    await pair.redis.hset("bus:persisted:obj", mapping=fields)
    async with pair.second("persist", "obj", attrs=FIELDS) as reader:
        assert await load(reader) == (True, [{"a": "ü😀"}, 100, None])


@pytest.mark.slow
async def test_an_object_lives_on_while_it_is_persisted(pair: Pair) -> None:
    async with (
        pair.first("persist", "obj", attrs=FIELDS) as writer,
        pair.second("persist", "obj", attrs=FIELDS) as reader,
    ):
        await writer.send('{"foo":1}')
        await writer.expect("saved")
        await writer.send('{"persist":3}')
        async with asyncio.timeout(30):
            while not await pair.ttls() <= {1, 2, 3}:
                await asyncio.sleep(0.02)
        assert await load(reader) == (True, [1, None, None])


async def test_topics_reach_all_who_listen(pair: Pair) -> None:
    async with (
        pair.first("pubsub", "news") as one,
        pair.second("pubsub", "news") as two,
        pair.second("pubsub", "x") as x,
    ):
        for each in (one, two, x):
            await each.expect("subscribed")
        await one.send("hi ü😀")
        await two.expect("message")
        await two.send('{"a":[1,null]}')
        await one.expect("message", '{"a":[1,null]}')
        await two.expect("message", '{"a":[1,null]}')
        await two.send("/unsubscribe")
        await two.expect("unsubscribed")
        await one.send("last")
        await one.expect("message", "last")
        told = [("message", "hi ü😀"), ("message", '{"a":[1,null]}')]
        assert one.events == [("subscribed",), *told, ("message", "last")]
        assert two.events == [("subscribed",), *told, ("unsubscribed",)]
        assert x.events == [("subscribed",)]
        assert await pair.left() == {}
