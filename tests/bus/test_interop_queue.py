"""Queues between Node's busmq and ours: the same events, and the same keys left behind, in all four pairings."""

import json

import pytest

from penstock.bus import Bus
from tests.bus.pairs import NODE, PAIRS, PYTHON, Pair, ids, metadata, pairs_of, pushed

pytestmark = pytest.mark.asyncio(loop_scope="session")
TEXTS = ("hello", '{"a":1}', "ü😀日本", "", "a\x00b", "x" * 100_000)


@pytest.mark.parametrize(
    ("pair", "driver"),
    [*((each, None) for each in PAIRS), *((each, "ioredis") for each in PAIRS[:3])],
    indirect=["pair"],
)
async def test_what_one_pushes_the_other_consumes(pair: Pair, driver: str | None) -> None:
    async with pair.first("push", "foo", driver=driver, ttl=60) as producer:
        await pushed(producer, *TEXTS)
        assert await pair.left() == {
            "bus:queue:foo:messages": [*enumerate(TEXTS, 1)],
            "bus:queue:foo:metadata": metadata(ttl=60),
            "bus:queue:foo:msgid": "6",
        }
        await pair.lives_for(60)
        async with pair.second("consume", "foo", driver=driver, ttl=500) as consumer:
            await consumer.expect("message", TEXTS[-1])
            await producer.send("waits for nothing")
            await consumer.expect("message", "waits for nothing", 7)
            await producer.expect("pushed", 7)
            assert await pair.left() == {"bus:queue:foo:metadata": metadata(ttl=60), "bus:queue:foo:msgid": "7"}
            await pair.lives_for(60)
            assert producer.events == [("attached", False), *(("pushed", number) for number in range(1, 8))]
            assert consumer.events == [
                ("consuming", True),
                ("attached", True),
                *(("message", text, number) for number, text in enumerate([*TEXTS, "waits for nothing"], 1)),
            ]


async def test_what_is_pushed_before_attach_waits_for_it(pair: Pair) -> None:
    async with pair.first("queue", "foo", attach=False) as producer, pair.second("consume", "foo") as consumer:
        await consumer.expect("attached", False)
        for text in "abc":
            await producer.call("push", text)
        await producer.call("attach", {"ttl": 5})
        await consumer.expect("message", "c", 3)
        await producer.expect("returned", "push", None, 3)
        assert producer.events == [("attached", True), *(("returned", "push", None, number) for number in (1, 2, 3))]
        assert ids(consumer) == [1, 2, 3]


async def test_values_that_are_no_text_are_pushed_as_json(pair: Pair) -> None:
    values = [{"a": [True, None, 1.5], "ü": "😀"}, [1, "x"], 5, True, None]
    async with pair.first("queue", "foo") as producer, pair.second("consume", "foo") as consumer:
        for value in values:
            await producer.call("push", value)
        await producer.expect("returned", "push", None, 5)
        await consumer.expect("message", "null", 5)
        texts = [event[1] for event in consumer.events if event[0] == "message"]
        assert texts == [json.dumps(value, separators=(",", ":"), ensure_ascii=False) for value in values]


@pytest.mark.parametrize("pair", pairs_of(first=PYTHON, second=NODE), indirect=True, ids="-".join)
async def test_node_gets_bytes_that_are_not_text_with_replacements(pair: Pair) -> None:
    async with Bus(*pair.urls) as bus, pair.second("consume", "foo") as consumer:
        queue = bus.queue("foo")
        await queue.attach()
        await queue.push_many([b"A\xff\x00\xc3\xa9", b"\xff".hex()])
        await consumer.expect("message", "A\ufffd\x00é", 1)
        await consumer.expect("message", "ff", 2)


async def test_a_queue_with_a_maxsize_refuses_what_exceeds_it(pair: Pair) -> None:
    async with pair.first("push", "foo", maxsize=5) as producer:
        await pushed(producer, *"abcdef")
        assert producer.events[-2:] == [("pushed", 5), ("pushed", None)]
        left = await pair.left()
        assert left["bus:queue:foo:metadata"] == metadata(maxsize=5)
        assert (left["bus:queue:foo:messages"], left["bus:queue:foo:msgid"]) == ([*enumerate("abcde", 1)], "5")


async def test_maxsize_is_that_of_the_queue(pair: Pair) -> None:
    """Node's producers take their own one (BQ-D11), so only the metadata of the queue are the same."""
    async with pair.first("push", "foo", maxsize=2) as creator:
        await creator.expect("attached", False)
        async with pair.second("push", "foo") as producer:
            await pushed(producer, *"abc")
            assert producer.events[-1] == ("pushed", 3 if pair.names[1] == NODE else None)
            await pushed(creator, "d")
            assert creator.events[-1] == ("pushed", None)


async def test_messages_are_read_from_an_index_and_stay(pair: Pair) -> None:
    async with pair.first("push", "foo") as producer:
        await pushed(producer, *"abcde")
        async with (
            pair.second("consume", "foo", remove=False, index=2) as late,
            pair.first("consume", "foo", remove=False) as early,
        ):
            await late.expect("message", "e", 5)
            await early.expect("message", "e", 5)
            await producer.send("f")
            await late.expect("message", "f", 6)
            await early.expect("message", "f", 6)
            assert (ids(late), ids(early)) == ([3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
        assert (await pair.left())["bus:queue:foo:messages"] == [*enumerate("abcdef", 1)]


async def test_at_most_max_messages_are_consumed_and_again(pair: Pair) -> None:
    async with pair.first("push", "foo") as producer, pair.second("queue", "foo", consume={"max": 2}) as consumer:
        await pushed(producer, *"abcde")
        await consumer.expect("consuming", False)
        assert (await pair.left())["bus:queue:foo:messages"] == [(3, "c"), (4, "d"), (5, "e")]
        await consumer.call("consume", {"max": 0})
        await consumer.expect("consuming", False)
        await consumer.call("consume", {"max": -1})
        await consumer.expect("message", "e")
        await consumer.call("stop")
        await consumer.expect("consuming", False)
        assert [event for event in consumer.events if event[0] != "attached"] == [
            ("consuming", True),
            ("message", "a", 1),
            ("message", "b", 2),
            ("consuming", False),
            ("consuming", True),
            ("consuming", False),
            ("consuming", True),
            ("message", "c", 3),
            ("message", "d", 4),
            ("message", "e", 5),
            ("consuming", False),
        ]


async def test_nothing_comes_between_stop_and_consume(pair: Pair) -> None:
    async with pair.first("push", "foo") as producer, pair.second("queue", "foo", consume={}) as consumer:
        await pushed(producer, "a")
        await consumer.expect("message", "a")
        await consumer.call("stop")
        await consumer.expect("consuming", False)
        await pushed(producer, "b", "c")
        assert (await pair.left())["bus:queue:foo:messages"] == [(2, "b"), (3, "c")]
        await consumer.call("consume", {})
        await consumer.expect("message", "c", 3)
        assert ids(consumer) == [1, 2, 3]


async def test_what_was_not_acknowledged_comes_again_first(pair: Pair) -> None:
    async with pair.first("push", "foo", ttl=20) as producer:
        await pushed(producer, "m1", "m2", "m3")
        async with pair.second("queue", "foo", consume={"reliable": True}) as consumer:
            await consumer.expect("message", "m3", 3)
            assert await pair.left() == {
                "bus:queue:foo:metadata": metadata(ttl=20),
                "bus:queue:foo:msgid": "3",
                "bus:queue:foo:toack": [(1, "m1"), (2, "m2"), (3, "m3")],
            }
            await consumer.call("ack", 1)
            await consumer.call("stop")
            await consumer.expect("consuming", False)
            await pushed(producer, "m4")
        async with pair.first("consume", "foo", reliable=True, last=2) as successor:
            await successor.expect("message", "m4", 4)
            assert ids(successor) == [3, 4]
            await successor.send("4")
            await producer.send("m5")
            await successor.expect("message", "m5", 5)
            await pair.becomes("bus:queue:foo:toack", [(5, "m5")])
            await pair.lives_for(20)


@pytest.mark.parametrize("reliable", [False, True])
@pytest.mark.parametrize("pair", pairs_of(first=NODE, second=NODE), indirect=True, ids="-".join)
async def test_node_gets_what_we_took_ahead_and_did_not_handle(pair: Pair, reliable: bool) -> None:
    async with pair.first("push", "foo") as producer, Bus(*pair.urls) as bus:
        await pushed(producer, *(f"m{number}" for number in range(1, 101)))
        queue = bus.queue("foo")
        await queue.attach()
        async for message in queue.consume(reliable=reliable):
            if message.id == 10:
                break
        await queue.stop()
        left = await pair.left()
        assert len(left["bus:queue:foo:messages"]) == 90
        assert left.get("bus:queue:foo:toack", []) == [(number, f"m{number}") for number in range(1, 11) if reliable]
        async with pair.second("consume", "foo", reliable=reliable, last=4) as successor:
            await successor.expect("message", "m100", 100)
            assert ids(successor) == [*range(5 if reliable else 11, 101)]
