"""Lists without a worker: they get nothing, and what waits there goes elsewhere, in order, once."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.accounting.audit import audit
from penstock.base.keys import Keys
from penstock.lists import Lists
from services.mbalance.workers import Workers
from tests.support.balancing import KEYS, PENDING, SOURCE, contents, counted, move, push, settings
from tests.support.harness import eventually

ABC = ("a", "b", "c")
REGISTRATIONS = ["a:alive", "b:alive", "c:alive"]
POLICIES = ["expectedWait", "length", "roundRobin", "weighted", "hash"]


async def revive(redis: Redis, *names: str) -> None:
    for name in names:
        await redis.set(f"{name}:alive", 1)


async def balance(redis: Redis, policy: str = "expectedWait", **more: Any) -> tuple[int, int, int, int]:
    weights = [1, 2, 3] if policy == "weighted" else []
    return await move(redis, ABC, policy=policy, registrations=REGISTRATIONS, weights=weights, **more)


@pytest.mark.parametrize("policy", POLICIES)
async def test_what_waits_for_a_dead_worker_goes_elsewhere_in_order_and_before_newer_messages(
    redis: Redis, policy: str
) -> None:
    await push(redis, "b", range(10))
    await push(redis, PENDING, [10])
    await push(redis, SOURCE, range(11, 20))
    await revive(redis, "a")
    assert await balance(redis, policy) == (20, 0, 2, 1)
    assert await contents(redis, ABC) == [[b"%d" % number for number in range(20)], [], []]
    assert await counted(redis, "rebalanced") == {"b": 10, "count": 10}


async def test_a_consumer_that_is_gone_is_no_worker_though_its_next_look_lies_ahead(redis: Redis) -> None:
    """Its place in the zset of leases is when others look at its list again, up to minutes from now."""
    ahead = (await redis.time())[0] * 1_000_000 + 50_000_000
    await redis.zadd("a:alive", {"dead": ahead})
    await redis.hset("a:alive:steps", "dead", "gone:17")
    await revive(redis, "c")
    await push(redis, SOURCE, range(20))
    assert (await balance(redis))[3] == 1
    assert [await redis.llen(name) for name in ABC] == [0, 0, 20]
    await redis.zadd("a:alive", {"living": ahead})
    await redis.hset("a:alive:steps", "living", "7 idle")
    await push(redis, SOURCE, range(20))
    assert (await balance(redis))[3] == 2


async def test_a_dead_list_is_emptied_in_bounded_moves_each_safe_to_repeat(redis: Redis) -> None:
    await push(redis, "b", range(25))
    await push(redis, SOURCE, range(25, 30))
    await revive(redis, "a", "c")
    seen = []
    for _ in range(4):
        seen.append((await balance(redis, batch=10))[:2])
        a, b, c = await contents(redis, ABC)
        everywhere = [*a, *b, *c, *(await contents(redis, [SOURCE]))[0]]
        assert sorted(map(int, everywhere)) == [*range(30)]
        assert [*map(int, a)] == sorted(map(int, a))
    assert seen == [(10, 20), (10, 10), (10, 0), (0, 0)]
    assert await counted(redis, "rebalanced") == {"b": 25, "count": 25}


async def test_what_a_dead_worker_has_in_hand_is_left_to_its_own_kind(redis: Redis) -> None:
    await push(redis, "b:hand", ["half done"])
    await push(redis, "b", ["waits"])
    await revive(redis, "a")
    await balance(redis, in_hand=["a:hand", "b:hand", "c:hand"])
    assert await contents(redis, ["a", "b", "b:hand"]) == [[b"waits"], [], [b"half done"]]


async def test_numbers_add_up_after_messages_were_taken_back(redis: Redis) -> None:
    await revive(redis, *ABC)
    await push(redis, PENDING, [0])
    await push(redis, SOURCE, range(1, 30))
    await balance(redis, "length")
    await redis.delete("b:alive")
    await balance(redis, "length")
    assert await counted(redis, "delivered") == {"a": 15, "b": 10, "c": 15, "count": 40}
    assert await counted(redis, "taken") == {"a": 15, "b": 10, "c": 15, "count": 40}
    await redis.hset(KEYS.lists, mapping=dict.fromkeys(ABC, "out"))
    found = await audit(redis, KEYS)
    assert found
    assert found.holds, found.problems


async def test_a_zset_of_leases_is_a_registration_while_a_lease_lasts(redis: Redis) -> None:
    seconds, _ = await redis.time()
    await redis.zadd("a:alive", {"one": (seconds + 60) * 1e6, "two": (seconds - 60) * 1e6})
    await redis.zadd("b:alive", {"one": (seconds - 1) * 1e6})
    await redis.hset("c:alive", "host", "any")
    await push(redis, SOURCE, range(10))
    assert (await balance(redis, "length"))[3] == 2
    assert [await redis.llen(name) for name in ABC] == [5, 0, 5]


async def test_a_registered_program_is_a_worker_while_it_is_ready(redis: Redis) -> None:
    await redis.hset("a:alive", mapping={"service": "sregister", "ready": "1"})
    await redis.hset("b:alive", mapping={"service": "sregister", "ready": "0", "unready": "sick"})
    await redis.hset("c:alive", mapping={"service": "sregister"})  # it has not said so yet
    await push(redis, SOURCE, range(10))
    assert (await balance(redis, "length"))[3] == 1
    assert [await redis.llen(name) for name in ABC] == [10, 0, 0]


async def test_consumers_of_our_library_register_with_their_list(redis: Redis, redis_url: str) -> None:
    await push(redis, "b", ["first"])

    async def consume() -> None:
        async with Lists(redis_url) as lists:
            async for message in lists["b"].messages():
                with message:
                    if str(message) == "last":
                        return

    consumer = asyncio.create_task(consume())
    await eventually(lambda: redis.exists("b:consumers"))
    await push(redis, SOURCE, ["one", "last"])
    found = await move(redis, ABC, registrations=[f"{name}:consumers" for name in ABC])
    assert (found.messages, found.alive) == (2, 1)
    await asyncio.wait_for(consumer, 30)


async def test_the_instances_of_a_namespace_are_workers_and_have_messages_in_hand(redis: Redis) -> None:
    for space, ids in (("wa", ["1"]), ("wb", ["4", "5"])):
        for id in ids:
            await redis.hset(Keys(space).instance(id), "host", "any")
            await redis.lpush(Keys(space).ids, id)
    await redis.lpush(Keys("wc").ids, "9")  # listed, but dead
    await push(redis, "b:hand:4", [1, 2])
    await push(redis, "b:hand:5", [3, 4])
    await push(redis, SOURCE, range(10))
    names: dict[str, Any] = {"workers": ["wa", "wb", "wc"], "in_hand": ["a:hand", "b:hand", "c:hand"]}
    assert (await move(redis, ABC, policy="length", **names)).alive == 2
    assert [await redis.llen(name) for name in ABC] == [7, 3, 0]
    await redis.delete(Keys("wb").instance("4"))
    workers = Workers(settings(ABC, **names))
    assert await workers.refresh(redis)
    assert not await workers.refresh(redis)
    assert await workers.stranded(redis) == 0
    await redis.delete(Keys("wb").instance("5"))
    assert await workers.stranded(redis) == 3
    await redis.delete(Keys("wa").instance("1"))
    assert await workers.stranded(redis) == 0  # nobody could have it


async def test_more_instances_than_fit_a_script_count_as_far_as_they_are_alive(redis: Redis) -> None:
    await redis.lpush(Keys("wa").ids, *map(str, range(10_000)))
    await redis.lpush(Keys("wb").ids, "1")
    for space, id in (("wa", "9999"), ("wb", "1")):
        await redis.hset(Keys(space).instance(id), "host", "any")
    await push(redis, SOURCE, range(10))
    names: dict[str, Any] = {"workers": ["wa", "wb"], "in_hand": ["a:hand", "b:hand"]}
    assert (await move(redis, ABC[:2], policy="length", **names)).alive == 2
    async with redis.pipeline(transaction=False) as calls:
        for number in range(10_000):
            calls.hset(Keys("wa").instance(str(number)), "host", "any")
        await calls.execute()
    await push(redis, SOURCE, range(10))
    assert (await move(redis, ABC[:2], policy="length", **names)).alive == 2
    assert [await redis.llen(name) for name in ABC] == [10, 10, 0]
