"""Names and payloads of all bytes and sizes, and keys of another type."""

import random
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import PenstockError, WrongCall, WrongType
from penstock.bus import Bus, Request
from tests.bus.given import attached, heard, keep_alive, take
from tests.support.harness import eventually

ALL_BYTES = bytes(range(256))
NAMES = [
    "",
    " ",
    "with space",
    "a:b:c",
    "{tag}",
    "}{",
    "line\nbreak\r\n\0",
    "Ünïcödé 日本 😀",
    "%s",
    "*?[a]",
    "x" * 5_000,
    ALL_BYTES.decode(errors="surrogateescape"),
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_any_name_names_a_queue(bus: Bus, redis: "Redis", redis_url: str, name: str) -> None:
    async with Bus(redis_url) as second:
        queue, other = await attached(bus, "a", name=name), await attached(second, name=name)
        assert await redis.exists(b"bus:queue:" + name.encode(errors="surrogateescape") + b":metadata")
        events = heard(other)
        await other.consume(reliable=True, exclusive=True)
        await queue.push("b")
        await eventually(lambda: other.consumed == 2)
        await other.ack(2)
        await queue.close()
        await eventually(lambda: ("closed",) in events)
        assert await redis.keys("*") == []


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_any_name_names_a_channel_an_object_a_topic_and_a_service(bus: Bus, redis: "Redis", name: str) -> None:
    here, there = bus.channel(name), bus.channel(name)
    await here.connect()
    await there.listen()
    await here.send("x")
    assert (await anext(aiter(there.messages()))).body == b"x"
    topic, got = bus.pubsub(name), list[bytes]()
    topic.on("message", got.append)
    await topic.subscribe()
    await topic.publish("x")
    await eventually(lambda: got == [b"x"])
    provider, requester = bus.service(name), bus.service(name)
    await provider.serve(lambda request: request.data)
    await requester.connect()
    assert await requester.request("x", timeout=60) == "x"


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
async def test_text_that_stands_for_no_bytes_is_refused(bus: Bus, text: str) -> None:
    queue = await attached(bus)
    calls: list[Any] = [
        lambda: bus.queue(text),
        lambda: queue.push(text),
        lambda: bus.pubsub(text),
        lambda: bus.persistable(text, object(), ["a"]),
        lambda: bus.channel(text),
        lambda: bus.service(text),
    ]
    for call in calls:
        with pytest.raises(WrongCall, match="no character"):
            call()


@pytest.mark.parametrize("mode", [{}, {"reliable": True}, {"remove": False}], ids=["taken", "reliable", "read"])
async def test_all_bytes_arrive_as_they_were_pushed(bus: Bus, mode: dict[str, Any]) -> None:
    bodies = [bytes([each]) for each in ALL_BYTES] + [ALL_BYTES * 40, b"", b"\r\n", b"$5\r\nhello\r\n"]
    queue = await attached(bus, *bodies)
    assert [body for _, body in await take(queue, len(bodies), **mode)] == bodies


async def test_text_arrives_as_text(bus: Bus) -> None:
    texts = ["", "ü", "日本 😀", "\0", "\udcff", '{"a":"\\u0000"}']
    queue = await attached(bus, *texts)
    assert [str(each) async for each in queue.consume(limit=len(texts))] == texts


@pytest.mark.parametrize("value", [5, 1.5, None, True, [1], {"a": 1}, bytearray(b"x"), object()])
async def test_what_is_neither_text_nor_bytes_needs_json(bus: Bus, value: object) -> None:
    queue = await attached(bus)
    with pytest.raises(WrongCall, match="json=True"):
        queue.push(value)  # type: ignore[call-overload]
    with pytest.raises(WrongCall, match="json=True"):
        await queue.push_many(["a", value])  # type: ignore[list-item]  # on purpose
    assert await queue.count() == 0


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", {("a",): 1}])
async def test_what_is_no_json_is_refused(bus: Bus, value: object) -> None:
    queue = await attached(bus)
    with pytest.raises(WrongCall, match="JSON"):
        queue.push(value, json=True)


async def mixed(bus: Bus, sizes: list[int]) -> None:
    bodies = [random.Random(size).randbytes(size % 1_000) + bytes(size - size % 1_000) for size in sizes]
    for mode in ({}, {"reliable": True}, {"remove": False}):
        queue = await attached(bus, *bodies, name=str(mode))
        found = await take(queue, len(bodies), **mode)
        assert [len(body) for _, body in found] == sizes
        assert [body for _, body in found] == bodies
        await queue.close()


async def test_sizes_in_any_mixture(bus: Bus) -> None:
    draw = random.Random(5)
    await mixed(bus, [int(10 ** draw.uniform(0, 6.3)) for _ in range(60)] + [0] * 10 + [2_000_000, 0, 1])


@pytest.mark.slow
async def test_large_sizes_in_any_mixture(bus: Bus) -> None:
    await mixed(bus, [0, 64 << 20, 1, 1, 1_000, 16 << 20, *[10] * 500, 32 << 20, 1 << 20, 64 << 20, 5])


@pytest.mark.parametrize(
    ("key", "calls"),
    [
        ("metadata", ["attach", "count", "push", "put_back", "describe", "read_metadata"]),
        ("messages", ["attach", "push", "pop", "reliable", "read", "count"]),
        ("msgid", ["attach", "push"]),
        ("toack", ["attach", "push", "reliable", "ack"]),
        ("consumer", ["exclusive", "reliable"]),
    ],
)
async def test_a_key_of_another_type_is_named_and_nothing_is_changed(
    bus: Bus, redis: "Redis", key: str, calls: list[str]
) -> None:
    name = f"bus:queue:foo:{key}"
    for call in calls:
        await redis.flushall()
        queue = bus.queue("foo")
        if call != "attach":
            await queue.attach()
            await queue.push_many([*"ab"])
        if call == "put_back":
            consumption = queue.consume()
            assert await consumption.fetch()
        await redis.delete(name)
        await (redis.set if key in ("metadata", "messages", "toack") else redis.rpush)(name, "other")
        before = {each: await redis.dump(each) for each in await redis.keys("*")}
        if call == "put_back":
            await queue.stop()  # it is logged, as the loop has ended
        elif (call, key) != ("count", "metadata"):
            with pytest.raises(WrongType, match=name):
                await _call(queue, call)
        await queue.stop()
        assert {each: await redis.dump(each) for each in await redis.keys("*")} == before
        queue.off("error")
        await queue.detach()


async def _call(queue: Any, call: str) -> object:
    options: dict[str, dict[str, Any]] = {
        "pop": {},
        "reliable": {"reliable": True},
        "exclusive": {"reliable": True, "exclusive": True},
        "read": {"remove": False},
    }
    if call in options:
        return await queue.consume(**options[call]).fetch()
    calls: dict[str, Any] = {
        "attach": queue.attach,
        "count": queue.count,
        "push": lambda: queue.push("x"),
        "describe": lambda: queue.set_metadata({"a": "b"}),
        "read_metadata": queue.metadata,
        "ack": lambda: queue.ack(1),
    }
    return await calls[call]()


async def test_a_handler_hears_of_a_key_of_another_type(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus)
    events = heard(queue)
    await queue.consume()
    await redis.set("bus:queue:foo:messages", "other")
    await redis.publish("bus:queue:foo:available", "5")
    await eventually(lambda: [each[0] for each in events] == ["consuming", "consuming", "error"])
    assert isinstance(events[-1][1], WrongType)
    assert not queue.is_consuming


async def test_an_error_of_one_queue_leaves_the_others_alone(bus: Bus, redis: "Redis") -> None:
    bad, good = await attached(bus, name="bad", ttl=60), await attached(bus, name="good", ttl=60)
    await redis.set("bus:queue:bad:metadata", "other", ex=100)
    await redis.expire("bus:queue:good:metadata", 1_000)
    keep_alive(bus)
    await eventually(lambda: _lives_for(redis, "bus:queue:good:metadata", 60))
    assert good.is_attached
    with pytest.raises(PenstockError):
        await bad.push("x")
    await good.push("x")


async def _lives_for(redis: "Redis", key: str, seconds: int) -> bool:
    return 0 < await redis.ttl(key) <= seconds


async def test_a_request_with_any_text_is_answered(bus: Bus) -> None:
    provider, requester = bus.service("echo"), bus.service("echo")

    async def answer(request: Request) -> Any:
        return request.data

    await provider.serve(answer)
    await requester.connect()
    for data in ("\0", "\ud800", "\udcff", "日本 😀", "x" * 1_000_000):
        assert await requester.request(data, timeout=60) == data
