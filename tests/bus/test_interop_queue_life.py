"""Queues between Node's busmq and ours, in all four pairings: described, found, closed and created again."""

import pytest

from tests.bus.pairs import NODE, PYTHON, Pair, metadata, pairs_of, pushed
from tests.support.harness import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_metadata_are_set_and_read(pair: Pair) -> None:
    """Node takes an empty value for a question (BQ-D14), so it cannot set one."""
    async with pair.first("queue", "foo", ttl=70) as writer:
        await writer.expect("attached")
        await writer.call("metadata", "k", "vü")
        await writer.expect("returned", "metadata")
        await writer.call("metadata", {"n": 5, "m": "x"})
        await writer.expect("returned", "metadata")
        await writer.call("metadata", "n", "")
        await writer.expect("returned", "metadata", None, "5" if pair.names[0] == NODE else None)
        await pair.lives_for(70)
        async with pair.second("queue", "foo") as reader:
            await reader.expect("attached", True)
            for name, value in (("k", "vü"), ("none", None), ("n", "5" if pair.names[0] == NODE else "")):
                await reader.call("metadata", name)
                await reader.expect("returned", "metadata", None, value)


async def test_a_queue_says_what_it_is(pair: Pair) -> None:
    async with pair.first("queue", "foo", ttl=70, maxsize=3) as creator:
        await creator.call("push", "a")
        await creator.expect("returned", "push", None, 1)
        async with pair.second("queue", "foo") as other:
            await other.expect("attached", True)
            for method, value in (("count", 1), ("exists", True), ("ttl", 70), ("maxsize", 3), ("find", "local")):
                await other.call(method)
                await other.expect("returned", method, None, value)


async def test_ids_go_on_after_a_flush(pair: Pair) -> None:
    """Node keeps what is not acknowledged when it flushes; we do not (BQ-33)."""
    async with (
        pair.first("push", "foo") as producer,
        pair.second("queue", "foo", consume={"reliable": True, "max": 1}) as other,
    ):
        await pushed(producer, *"abc")
        await other.expect("consuming", False)
        await other.call("flush")
        await other.expect("returned", "flush")
        kept = {"bus:queue:foo:toack": [(1, "a")]} if pair.names[1] == NODE else {}
        assert await pair.left() == {"bus:queue:foo:metadata": metadata(), "bus:queue:foo:msgid": "3", **kept}
        await pushed(producer, "d")
        assert producer.events[-1] == ("pushed", 4)


async def test_nothing_is_left_of_a_closed_queue(pair: Pair) -> None:
    async with pair.first("push", "foo") as producer, pair.second("consume", "foo", reliable=True, max=2) as consumer:
        await pushed(producer, *"abc")
        await consumer.expect("message", "b")
        await consumer.expect("consuming", False)
        await consumer.send("close")
        await consumer.expect("closed")
        assert await pair.left() == {}
        assert consumer.events[-1] == ("closed",)
        await producer.send("d")
        if pair.names[0] == NODE:  # which does not notice, and begins a queue without metadata (BQ-D12)
            await producer.expect("pushed", 1)
            assert await pair.left() == {"bus:queue:foo:messages": [(1, "d")], "bus:queue:foo:msgid": "1"}
            async with pair.second("consume", "foo") as successor:
                await successor.expect("attached", False)
                await successor.expect("message", "d", 1)
        else:
            await producer.expect("raised", "Gone")
            assert await pair.left() == {}


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("pair", pairs_of(first=NODE), indirect=True, ids="-".join)
async def test_a_queue_that_node_closes_and_creates_again_is_consumed_on(pair: Pair, remove: bool) -> None:
    """Node tells nobody that it closes a queue, and ids begin again (BQ-D12); its readers stay where they were."""
    async with pair.first("queue", "foo") as owner, pair.second("consume", "foo", remove=remove) as consumer:
        await owner.expect("attached")
        for text in "abc":
            await owner.call("push", text)
        await consumer.expect("message", "c", 3)
        await owner.call("close")
        await owner.expect("closed")
        await owner.call("attach")
        for number, text in enumerate("defgh", 1):
            await owner.call("push", text)
            if pair.names[1] == PYTHON or remove:
                await consumer.expect("message", text, number)
            else:
                await owner.expect("returned", "push", None, number)


async def test_a_queue_of_another_site_is_told_from_one_of_ours(pair: Pair) -> None:
    """What federation notes of it has no ttl, and is no queue to attach to."""
    await pair.redis.hset("bus:queue:foo:metadata", "source", "http://there:1")
    async with pair.first("queue", "foo", attach=False) as one, pair.second("queue", "foo", attach=False) as two:
        for peer in (one, two):
            await peer.call("find")
            await peer.expect("returned", "find", None, "http://there:1")
        await one.call("attach", {"ttl": 5})
        await one.expect("attached", False)
        await two.call("find")
        await two.expect("returned", "find", None, "local")
        assert await pair.left() == {"bus:queue:foo:metadata": metadata(ttl=5)}


async def test_other_sites_hear_of_a_discoverable_queue(pair: Pair) -> None:
    async with pair.redis.pubsub() as notices:
        await notices.subscribe("bus:pubsub:bus:notifications")
        assert await notices.get_message(timeout=PATIENCE)
        async with pair.first("queue", "foo", ttl=60, discoverable=True) as creator:
            await creator.expect("attached")
            notice = await notices.get_message(timeout=PATIENCE)
            assert notice
            assert notice["data"] == '{"event":"queue","key":"bus:queue:foo:metadata","ttl":60}'
            assert (await pair.left())["bus:queue:foo:metadata"] == metadata(ttl=60, discover="true")
            async with pair.second("queue", "foo") as other:
                await other.expect("attached")
                await other.call("find")
                await other.expect("returned", "find", None, "local")
