"""``penstock.lists``: the server counts deliveries that failed, and buries a message that fails too often."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from hashlib import sha1
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock import sync
from penstock.base.errors import WrongCall
from penstock.lists import List, Lists
from tests.support.commandline import penstock
from tests.support.consumers import in_hand, sources
from tests.support.harness import PATIENCE, eventually
from tests.support.tracked import now

DEAD: dict[str, Any] = {"attempts": 3, "dead": "shop:dead"}


@pytest.fixture
async def orders(redis: "Redis", redis_url: str) -> AsyncIterator[List]:
    async with Lists(redis_url, patience=PATIENCE, lease=PATIENCE) as lists:
        yield lists["shop:orders"]


async def handled(orders: List, until: bytes, *bad: bytes, **options: Any) -> list[tuple[bytes, int]]:
    """Return what was taken up to the message ``until``, with the attempts; fail for those that are ``bad``."""
    taken = list[tuple[bytes, int]]()
    async for message in orders.messages(**options):
        with suppress(LookupError), message:
            taken.append((message.body, message.attempt))
            if message.body in bad:
                raise LookupError("no such tea")
        if message.body == until:
            return taken
    raise AssertionError("stopped")


async def letters(redis: "Redis") -> list[dict[str, Any]]:
    return [json.loads(each) for each in reversed(await redis.lrange("shop:dead", 0, -1))]


async def die(redis: "Redis", redis_url: str, many: int, **options: Any) -> None:
    """Have a consumer handle ``many`` messages, take one more and die with it in hand, its lease ended."""
    lists = await Lists(redis_url).__aenter__()
    loop = lists["shop:orders"].messages(**options)
    for _ in range(many):
        with await anext(loop):
            pass
    await anext(loop)
    await vanish(lists)
    await end_leases(redis)


async def vanish(lists: Lists) -> None:
    """End the only consumer of ``lists`` without a word to the server."""
    [consumer] = lists.consumers.running
    await consumer._keeping.cancel()
    [source] = sources(lists)
    await source.holding.raw.close()
    lists.consumers.running.clear()
    await lists.__aexit__(None, None, None)


async def end_leases(redis: "Redis") -> None:
    ended: Any = dict.fromkeys(await redis.zrange("shop:orders:consumers", 0, -1), 1)
    await redis.zadd("shop:orders:consumers", ended)


async def test_a_message_that_fails_is_counted_and_buried_and_holds_up_no_other(redis: "Redis", orders: List) -> None:
    await orders.push_many([b"bad", b"1", b"2"])
    before = await now(redis)
    taken = await handled(orders, b"2", b"bad", **DEAD)
    await orders.push("last")
    taken += await handled(orders, b"last", b"bad", **DEAD)
    assert [attempt for body, attempt in taken if body == b"bad"] == [1, 2, 3]
    assert [attempt for body, attempt in taken if body != b"bad"] == [1, 1, 1]
    (letter,) = await letters(redis)
    assert before - 1 <= letter.pop("at") / 1000 <= await now(redis) + 1
    assert letter == {
        "message": "bad",
        "reason": "failed",
        "error": "LookupError: no such tea",
        "source": "shop:orders",
        "attempts": 3,
    }
    assert await redis.exists("shop:orders", "shop:orders:failures") == 0


async def test_without_a_bound_a_message_comes_again_and_is_forgotten_once_it_was_handled(
    redis: "Redis", orders: List
) -> None:
    await orders.push("tea")
    for attempt in (1, 2, 3, 4):
        assert await handled(orders, b"tea", b"tea") == [(b"tea", attempt)]
    assert 0 < await redis.ttl("shop:orders:failures") <= 7 * 86_400
    assert await handled(orders, b"tea") == [(b"tea", 5)]
    await orders.push("tea")
    assert await handled(orders, b"tea") == [(b"tea", 1)]
    assert await redis.exists("shop:orders:failures") == 0


async def test_an_error_that_ends_the_loop_counts_and_keeps_the_order(redis: "Redis", orders: List) -> None:
    await orders.push_many([b"bad", b"1", b"2"])
    taken = list[tuple[bytes, int]]()

    async def work() -> None:
        async with aclosing(orders.messages(**DEAD)) as messages:  # type: ignore[type-var]
            async for message in messages:
                with message:
                    taken.append((message.body, message.attempt))
                    raise LookupError

    for _ in range(3):
        assert await redis.lrange("shop:orders", 0, -1) == [b"2", b"1", b"bad"]
        with pytest.raises(LookupError):
            await work()
    assert taken == [(b"bad", 1), (b"bad", 2), (b"bad", 3)]
    assert [letter["message"] for letter in await letters(redis)] == ["bad"]
    assert await redis.lrange("shop:orders", 0, -1) == [b"2", b"1"]


async def test_after_a_death_the_next_one_counts_for_what_was_in_hand(
    redis: "Redis", redis_url: str, orders: List
) -> None:
    """What the dead one had is settled one by one, though batches grow: here 4 and 5 were taken with the deadly one."""
    await redis.zadd("shop:orders:consumers", {"dead": 1})
    await redis.hset("shop:orders:consumers:steps", "dead", "3")
    await redis.lpush("shop:orders:consumer:dead", "1", "2", "3", "4", "5", "deadly", "7", "8")
    await die(redis, redis_url, 5)
    consumer = orders.consumer(10, 1_000)
    (first,) = await consumer.batch()
    assert (first.body, first.attempt) == (b"deadly", 2)
    assert await redis.hgetall("shop:orders:failures") == {sha1(b"deadly").hexdigest().encode(): b"1"}
    await consumer.leave()


async def test_a_death_while_only_its_settlement_was_open_is_no_failure(
    redis: "Redis", redis_url: str, orders: List
) -> None:
    await orders.push("innocent")
    for _ in range(4):
        lists = await Lists(redis_url).__aenter__()
        loop = lists["shop:orders"].messages(**DEAD)
        with await anext(loop) as message:
            assert message.attempt == 1
            message.also_push("bills", "1")
        await redis.config_set("maxmemory", 1)
        try:
            settling = asyncio.ensure_future(anext(loop))
            async with asyncio.timeout(30):
                while not any(b"idle" in step for step in await redis.hvals("shop:orders:consumers:steps")):
                    await asyncio.sleep(0.01)
            await vanish(lists)
            settling.cancel()
            await asyncio.wait({settling})
        finally:
            await redis.config_set("maxmemory", 0)
        await end_leases(redis)
    assert await handled(orders, b"innocent") == [(b"innocent", 1)]
    assert await redis.exists("bills", "shop:dead", "shop:orders:failures") == 0


async def test_a_consumer_that_waits_is_told_of_failures(redis: "Redis", orders: List) -> None:
    await orders.push("tea")
    assert await handled(orders, b"tea", b"tea") == [(b"tea", 1)]
    await eventually(lambda: not orders._lists.consumers.running)
    await redis.delete("shop:orders")
    waits = asyncio.create_task(handled(orders, b"tea"))
    await eventually(lambda: any(each.waits for each in sources(orders._lists)))
    await orders.push("tea")
    assert await asyncio.wait_for(waits, PATIENCE) == [(b"tea", 2)]


async def test_a_settlement_that_is_repeated_counts_once(redis: "Redis", orders: List) -> None:
    await orders.push("bad")
    consumer = orders.consumer(10, 1_000)
    (bad,) = await consumer.batch()
    with suppress(LookupError), in_hand(consumer, bad):
        raise LookupError
    source: Any = consumer.source
    holding = source.holding
    for _ in range(2):  # the reply to the first is lost
        await holding._run(0, holding.settlement.number)
    await consumer.leave()
    assert [int(count) for count in await redis.hvals("shop:orders:failures")] == [1]


@pytest.mark.parametrize(("before", "behind"), [(50_000, 50_000), (1_000, 3_000_000)])
async def test_large_messages_that_differ_are_told_apart(orders: List, before: int, behind: int) -> None:
    first, second = (b"a" * before + letter + b"z" * behind for letter in (b"1", b"2"))
    await orders.push_many([first, second])
    taken = await handled(orders, second, first, second, **DEAD)
    assert [attempt for body, attempt in taken if body == first][:2] == [1, 2]
    assert [attempt for body, attempt in taken if body == second] == [1]


async def test_letters_are_shown_and_revived(redis: "Redis", redis_url: str, orders: List) -> None:
    await orders.push("bad")
    for _ in range(3):
        await handled(orders, b"bad", b"bad", **DEAD)
    shown = await penstock("dead", "shop", redis=redis_url)
    assert "no such tea" in shown.text
    revived = await penstock("revive", "shop", "--all", redis=redis_url)
    assert (revived.status, revived.error) == (0, "")
    assert await handled(orders, b"bad", **DEAD) == [(b"bad", 1)]


async def test_json_is_pushed(orders: List) -> None:
    await orders.push_json({"item": "thé", "price": 3})
    assert await handled(orders, '{"item":"thé","price":3}'.encode())
    with pytest.raises(WrongCall, match="JSON"):
        await orders.push_json({"item": object()})


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 3},
        {"dead": "shop:dead"},
        {"attempts": 0, "dead": "shop:dead"},
        {"attempts": 3, "dead": "shop:orders"},
        {"attempts": 3, "dead": "shop:orders:failures"},
        {"attempts": 2.5, "dead": "shop:dead"},
        {"attempts": "3", "dead": "shop:dead"},
        {"attempts": True, "dead": "shop:dead"},
    ],
)
async def test_a_bound_without_a_list_for_letters_is_refused(orders: List, options: dict[str, Any]) -> None:
    with pytest.raises(WrongCall, match="another list"):
        orders.messages(**options)


async def test_blocking_loops_bury_too(redis: "Redis", redis_url: str) -> None:
    def work() -> list[int]:
        found = list[int]()
        with sync.Lists(redis_url) as lists:
            lists["shop:orders"].push_json({"n": 1})
            lists["shop:orders"].push("end")
            for message in lists["shop:orders"].messages(**DEAD, prefetch=1):
                with suppress(LookupError), message:
                    if message.body == b"end":
                        lists.stop()
                        continue
                    found.append(message.attempt)
                    raise LookupError("blocking")
        return found

    assert await asyncio.to_thread(work) == [1, 2, 3]
    assert [letter["error"] for letter in await letters(redis)] == ["LookupError: blocking"]


async def test_many_messages_that_fail_are_buried_in_batches_with_one_wait_each(
    redis: "Redis", orders: List, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes in these waits only, a second each: if they counted as handling, messages would come one by one."""
    waits = list[int]()

    class Waits:
        def delay_after(self, failures: int) -> float:
            waits.append(failures)
            return 0

    monkeypatch.setattr("penstock.core.consumer.BACKOFF", Waits())
    monkeypatch.setattr("penstock.core.pace.time", SimpleNamespace(monotonic=lambda: float(len(waits))))
    expected = [f"bad {number}".encode() for number in range(60)]
    await orders.push_many(expected)
    await handled(orders, expected[-1], *expected, attempts=1, dead="shop:dead")
    await eventually(lambda: not orders._lists.consumers.running)
    assert [letter["message"].encode() for letter in await letters(redis)] == expected
    assert len(waits) < 20


@pytest.mark.parametrize("name", ["failures", "consumers", "consumers:steps"])
async def test_results_go_to_no_key_of_the_consumers_and_what_fails_beside_them_stays(
    redis: "Redis", orders: List, name: str
) -> None:
    await orders.push_many(["before", "result", "fails", "end"])
    taken = list[bytes]()
    async for message in orders.messages():
        taken.append(message.body)
        with suppress(LookupError), message:
            if message.body == b"result":
                with pytest.raises(WrongCall, match=f"shop:orders:{name} belongs to the consumers"):
                    message.also_push(f"shop:orders:{name}", "note")
            if message.body == b"fails" and message.attempt == 1:
                raise LookupError
        if len(taken) == 5:
            break
    assert sorted(taken) == [b"before", b"end", b"fails", b"fails", b"result"]
    await eventually(lambda: not orders._lists.consumers.running)
    assert await redis.keys("shop:orders*") == []


async def test_with_one_attempt_a_death_buries_what_was_in_hand_and_nothing_before(
    redis: "Redis", redis_url: str, orders: List
) -> None:
    one: dict[str, Any] = {"attempts": 1, "dead": "shop:dead"}
    await orders.push_many([f"{number}" for number in range(8)])
    await die(redis, redis_url, 5, **one)
    taken = await handled(orders, b"7", **one)
    assert taken == [(b"6", 1), (b"7", 1)]
    [letter] = await letters(redis)
    assert (letter["message"], letter["reason"]) == ("5", "poison")
    assert letter["error"] == "a consumer died with it in hand, or one without a limit failed"
