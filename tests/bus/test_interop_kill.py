"""Crashes and crowds at the keys that Node's busmq and ours share, in all four pairings."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from tests.bus.pairs import NODE, PYTHON, STARTS, Pair, ids, metadata, pairs_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def test_who_follows_a_killed_consumer_gets_what_it_had_not_acknowledged(pair: Pair) -> None:
    """The second one is killed among its messages, the first one follows."""
    many, handled = 300, 100
    async with STARTS[pair.names[1]]() as doomed, pair.first("push", "foo", ttl=20) as producer:
        async with doomed.peer("consume", "foo", pair.urls, ttl=20, reliable=True) as consumer:
            await consumer.expect("attached")
            for number in range(1, many + 1):
                await producer.send(f"m{number}")
            for number in range(1, handled + 1):
                await consumer.expect("message", f"m{number}", number)
                await consumer.send(str(number))
            await doomed.kill()
        await producer.expect("pushed", many)
        left = await pair.left()
        kept = [*left["bus:queue:foo:toack"], *left.get("bus:queue:foo:messages", [])]
        first = kept[0][0]
        assert kept == [(number, f"m{number}") for number in range(first, many + 1)]
        assert first <= handled + 1
        async with pair.first("consume", "foo", reliable=True) as successor:
            await successor.expect("message", f"m{many}", many)
            assert ids(successor) == [*range(first, many + 1)]
            await successor.send(str(many))
            await producer.send("last")
            await successor.expect("message", "last", many + 1)
            await pair.becomes("bus:queue:foo:toack", [(many + 1, "last")])


async def test_a_killed_provider_costs_the_request_in_hand_alone(pair: Pair) -> None:
    async with STARTS[pair.names[1]]() as doomed, pair.first("request", "echo", reqTimeout=1000) as requester:
        async with doomed.peer("serve", "echo", pair.urls) as provider:
            await provider.expect("serving")
            await requester.send('{"silent":true}')
            await provider.expect("request")
            await doomed.kill()
        async with pair.second("serve", "echo"), pair.first("request", "echo", reqTimeout=10_000) as other:
            await other.send('{"x":1}')
            await other.expect("reply", None, {"echo": {"x": 1}})
        await requester.expect("reply", "timeout")


async def test_of_many_producers_and_consumers_each_message_arrives_once(pair: Pair) -> None:
    """Neither sees half a pair of the other: a torn one gives Node a message without id."""
    many = 300
    async with AsyncExitStack() as stack:
        consumers = [await stack.enter_async_context(end("consume", "foo")) for end in (pair.first, pair.second) * 2]
        for each in consumers:
            await each.expect("attached")
        producers = [await stack.enter_async_context(end("push", "foo")) for end in (pair.first, pair.second) * 2]
        for number in range(many):
            for place, each in enumerate(producers):
                await each.send(f"{place}-{number}")
        for each in producers:
            async with asyncio.timeout(30):
                while len([event for event in each.events if event[0] == "pushed"]) < many:
                    await asyncio.sleep(0.02)
        async with asyncio.timeout(30):
            while sum(len(ids(each)) for each in consumers) < 4 * many:
                await asyncio.sleep(0.02)
        assert Counter(number for each in consumers for number in ids(each)) == Counter(range(1, 4 * many + 1))
        texts = Counter(event[1] for each in consumers for event in each.events if event[0] == "message")
        assert texts == Counter(f"{place}-{number}" for place in range(4) for number in range(many))
        given = [event[1] for each in producers for event in each.events if event[0] == "pushed"]
        assert sorted(given) == [*range(1, 4 * many + 1)]
        assert await pair.left() == {"bus:queue:foo:metadata": metadata(), "bus:queue:foo:msgid": str(4 * many)}


async def test_a_queue_is_kept_alive_by_whoever_is_attached(pair: Pair) -> None:
    key = "bus:queue:foo:messages"

    async def kept_alive() -> None:
        """Wait until the queue is given its ttl again."""
        before = await pair.redis.pttl(key)
        async with asyncio.timeout(30):
            while (now := await pair.redis.pttl(key)) <= before:
                assert now > 0
                before = now
                await asyncio.sleep(0.02)

    async with pair.first("push", "foo", ttl=3) as producer:
        await producer.send("x")
        await producer.expect("pushed", 1)
        await kept_alive()
        async with pair.second("queue", "foo") as other:
            await other.expect("attached", True)
            await producer.close()
            await kept_alive()
    await pair.lives_for(3)
    assert (await pair.left())[key] == [(1, "x")]


@pytest.mark.parametrize("pair", pairs_of(first=NODE, second=PYTHON), indirect=True, ids="-".join)
async def test_a_queue_that_node_closes_is_closed_for_us(pair: Pair) -> None:
    """Node tells nobody (BQ-D12), so it takes us a third of the ttl."""
    async with pair.first("consume", "foo", ttl=3) as owner:
        await owner.expect("attached", False)
        async with pair.second("consume", "foo") as consumer:
            await consumer.expect("attached", True)
            await owner.send("close")
            await owner.expect("closed")
            await consumer.expect("closed")
            await consumer.send("close")
            await consumer.expect("raised", "WrongCall")
            assert await pair.left() == {}


@pytest.mark.parametrize("pair", pairs_of(first=NODE, second=PYTHON), indirect=True, ids="-".join)
async def test_we_leave_the_scripts_of_node_alone(pair: Pair) -> None:
    """Node does not load its scripts again while its connection lasts (BQ-D04)."""
    async with pair.first("push", "foo") as producer:
        await producer.expect("attached")
        await pair.redis.config_resetstat()
        async with pair.second("consume", "foo", reliable=True) as consumer:
            await producer.send("x")
            await consumer.expect("message", "x")
            await consumer.send("1")
            await consumer.send("close")
            await consumer.expect("closed")
        used = {str(name).removeprefix("cmdstat_") for name in await pair.redis.info("commandstats")}
        assert "evalsha" in used
        assert used.isdisjoint({"script|flush", "function|flush", "flushall", "flushdb", "keys", "scan", "persist"})
        await producer.send("y")
        await producer.expect("pushed", 1)
