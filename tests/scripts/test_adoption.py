"""Messages that a dead instance had taken are adopted by another instance, in order."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from redis.asyncio import Redis

from common.context import Context
from common.membership import Membership
from common.orphans import GRACE_SECONDS, Orphans
from penstock.base.encoding import decoded
from penstock.base.errors import WrongType
from penstock.core.script import Script
from services.mpush.settings import Settings
from tests.support.harness import ROOT
from tests.support.in_process import context_of
from tests.support.membership import KEYS, Instance, oldest_first, registered, settings

ADOPT = Script.read(ROOT / Path("common/lua/adopt.lua"))


async def owners(redis: Redis) -> list[str]:
    return sorted(decoded(id) for id in await redis.zrange(KEYS.owners, 0, -1))


async def test_messages_of_dead_instances_come_first_those_of_the_oldest_instance_before_all(redis: Redis) -> None:
    """Ids are compared as numbers: 9 is older than 10."""
    await redis.set(KEYS.counter, 8)
    nine, ten, eleven, adopter = [await Instance.enter(redis) for _ in range(4)]
    await ten.take("c", "d", "e")
    await nine.take("a", "b")
    await eleven.take("f")
    await adopter.take("g", "h")
    for dead in (nine, ten, eleven):
        await dead.die()
    assert (await adopter.orphans.adopt()).total() == 6
    assert await oldest_first(redis, adopter.pending) == list("abcdefgh")
    assert not await redis.exists(nine.pending, ten.pending, eleven.pending)
    assert (await adopter.orphans.adopt()).total() == 0


async def test_the_shorter_list_goes_to_the_end_of_the_longer_one(redis: Redis) -> None:
    await redis.lpush("orphan", *range(1000))
    await redis.lpush("own", "a", "b")
    await redis.config_resetstat()
    assert await ADOPT(redis, orphan="orphan", own="own", id="1", grace=0) == 1000
    assert await redis.lrange("own", 0, -1) == [b"b", b"a", *(b"%d" % number for number in reversed(range(1000)))]
    assert (await redis.info("commandstats"))["cmdstat_lmove"]["calls"] == 2


async def test_a_list_of_any_length_is_adopted_by_an_instance_without_messages(redis: Redis) -> None:
    dead, adopter = [await Instance.enter(redis) for _ in range(2)]
    messages = [f"message {number}" for number in range(10_000)]
    await dead.take(*messages)
    await dead.die()
    assert (await adopter.orphans.adopt()).total() == 10_000
    assert await oldest_first(redis, adopter.pending) == messages


async def test_what_a_living_instance_has_taken_is_its_own(redis: Redis) -> None:
    living, adopter = [await Instance.enter(redis) for _ in range(2)]
    await living.take("a")
    assert (await adopter.orphans.adopt()).total() == 0
    assert await oldest_first(redis, living.pending) == ["a"]
    assert await owners(redis) == ["1", "2"]


async def test_an_instance_does_not_take_its_own_registration_for_dead(redis: Redis) -> None:
    instance = await Instance.enter(redis)
    await instance.take("a", "b")
    await instance.die()
    assert (await instance.orphans.adopt()).total() == 0
    assert await oldest_first(redis, instance.pending) == ["a", "b"]


async def test_the_pending_list_of_the_original_is_taken_over_first_of_all(redis: Redis) -> None:
    """MP-D01: the original never reads it again."""
    dead, adopter = [await Instance.enter(redis) for _ in range(2)]
    await redis.lpush("pending", "a", "b")
    await dead.take("c")
    await dead.die()
    assert (await adopter.orphans.adopt()).total() == 3
    assert await oldest_first(redis, adopter.pending) == ["a", "b", "c"]


async def test_with_ordered_all_is_adopted_into_the_shared_list(redis: Redis) -> None:
    dead, adopter = [await Instance.enter(redis, ordered=True) for _ in range(2)]
    await dead.take("a", "b")
    await redis.lpush("pending", "c")
    await dead.die()
    assert (await adopter.orphans.adopt()).total() == 2
    assert await oldest_first(redis, "pending") == ["a", "b", "c"]


async def test_the_dead_are_forgotten_once_nothing_can_arrive_in_their_lists(redis: Redis) -> None:
    late, gone, adopter = [await Instance.enter(redis) for _ in range(3)]
    now, _ = await redis.time()
    expire = settings().service_expire
    await redis.zadd(
        KEYS.owners,
        {late.registry.id: now - GRACE_SECONDS - expire + 5, gone.registry.id: now - GRACE_SECONDS - expire - 1},
    )
    for each in (late, gone):
        await each.take(each.registry.id)
        await each.die()
    assert (await adopter.orphans.adopt()).total() == 2
    assert await owners(redis) == ["1", "3"]
    await late.take("came late")
    assert (await adopter.orphans.adopt()).total() == 1
    assert await oldest_first(redis, adopter.pending) == ["came late", "1", "2"]


async def test_the_living_are_never_forgotten_however_late_they_renew(redis: Redis) -> None:
    slow, adopter = [await Instance.enter(redis) for _ in range(2)]
    await redis.zadd(KEYS.owners, {slow.registry.id: 1})
    await adopter.orphans.adopt()
    assert await owners(redis) == ["1", "2"]


async def test_a_key_of_another_type_is_named_and_nothing_is_moved(redis: Redis) -> None:
    first, wrong, adopter = [await Instance.enter(redis) for _ in range(3)]
    await first.take("a")
    await redis.set(wrong.pending, "no list")
    for each in (first, wrong):
        await each.die()
    with pytest.raises(WrongType, match=r"^pending:2 holds a string, expected a list$"):
        await adopter.orphans.adopt()
    assert await oldest_first(redis, first.pending) == ["a"]
    await redis.delete(wrong.pending)
    assert (await adopter.orphans.adopt()).total() == 1


async def test_an_own_key_of_another_type_is_named_and_nothing_is_moved(redis: Redis) -> None:
    await redis.lpush("orphan", "a")
    await redis.hset("own", "field", "value")
    with pytest.raises(WrongType, match=r"^own holds a hash, expected a list$"):
        await ADOPT(redis, orphan="orphan", own="own", owners=KEYS.owners, id="1", grace=120)
    assert await redis.llen("orphan") == 1


async def test_an_instance_that_leaves_nothing_leaves_no_trace(redis: Redis) -> None:
    clean, left = [await Instance.enter(redis) for _ in range(2)]
    await left.take("a")
    for each in (clean, left):
        await each.orphans.forget_ownership()
        await each.registry.deregister()
    assert await owners(redis) == ["2"]
    adopter = await Instance.enter(redis)
    assert (await adopter.orphans.adopt()).total() == 1


async def test_registrations_on_another_server_decide_who_is_dead(redis: Redis, redis_url: str) -> None:
    async with Redis.from_url(redis_url, db=1) as registry_redis:
        await registry_redis.flushdb()
        dead, living, adopter = [await registered(registry_redis) for _ in range(3)]
        all_orphans = [Orphans(redis, KEYS, each, settings()) for each in (dead, living, adopter)]
        for orphans in all_orphans:
            await orphans.record_ownership()
        await redis.lpush("pending:1", "a")
        await redis.lpush("pending:2", "b")
        await registry_redis.delete(dead.key)
        assert (await all_orphans[2].adopt()).total() == 1
        assert await oldest_first(redis, "pending:3") == ["a"]
        assert await oldest_first(redis, "pending:2") == ["b"]


async def test_a_service_that_keeps_no_pending_list_adopts_nothing(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await Instance.enter(redis)
    await redis.lpush("pending", "a")
    monkeypatch.setattr(type(settings()), "pending_lists", ())
    assert (await instance.orphans.adopt()).total() == 0
    assert await oldest_first(redis, "pending") == ["a"]


async def test_an_instance_that_slept_until_it_was_forgotten_adopts_what_it_took_on_waking(redis: Redis) -> None:
    membership = Membership(redis, redis, KEYS, settings(), structlog.get_logger())
    context = context_of(redis, settings(), "")
    await membership.enter(context)
    await redis.delete(KEYS.instance("1"), KEYS.owners)
    membership._registry._renewed = 0
    await redis.lpush("pending:1", "taken on waking")
    await membership.enter(context)
    assert context.id == "2"
    assert await oldest_first(redis, "pending:2") == ["taken on waking"]
    await redis.delete("pending:2")
    await membership.leave()
    assert await owners(redis) == []


@asynccontextmanager
async def idle_replicas(
    redis: "Redis", count: int
) -> AsyncIterator[list[tuple[Membership[Settings], Context[Settings]]]]:
    """Yield ``count`` idle replicas, each with its context."""
    log, mine = structlog.get_logger(), settings()
    found = []
    for _ in range(count):
        membership = Membership(redis, redis, KEYS, mine, log)
        context = context_of(redis, mine, "")
        await membership.enter(context)
        found.append((membership, context))
    yield found


async def renew(membership: Membership[Settings], context: Context[Settings]) -> None:
    context.unregistered.set()
    assert await membership.check(context)


async def test_24_idle_replicas_cost_the_server_few_commands_a_renewal_each(redis: Redis) -> None:
    """Of 30 commands in 15 s, 10 check for orders and 6 are 1.5 waits of 4 each, which leaves 14 for a renewal."""
    rounds = 10
    async with idle_replicas(redis, 24) as replicas:
        for replica in replicas:  # so that each knows the number of replicas
            await renew(*replica)
        await redis.config_resetstat()
        for _ in range(rounds):
            for replica in replicas:
                await renew(*replica)
    stats = await redis.info("commandstats")
    commands = sum(each["calls"] for name, each in stats.items() if "config" not in name)
    assert commands / rounds / len(replicas) < 14.5


async def test_what_one_of_24_left_is_adopted_by_another_soon(redis: Redis) -> None:
    async with idle_replicas(redis, 24) as replicas:
        dead, _ = replicas.pop(10)
        await redis.lpush(f"pending:{dead.id}", "left")
        await redis.delete(KEYS.instance(dead.id))
        for _ in range(50):
            for replica in replicas:
                await renew(*replica)
            if not await redis.exists(f"pending:{dead.id}"):
                break
        assert sum(context.adopted.total() for _, context in replicas) == 1


async def test_a_single_instance_finds_each_newly_dead_one_at_its_next_renewal(redis: Redis) -> None:
    for _ in range(30):
        async with idle_replicas(redis, 1) as [(killed, _)]:
            await redis.delete(KEYS.instance(killed.id))
    async with idle_replicas(redis, 1) as [(membership, context)]:
        await renew(membership, context)
        for number in range(10):
            await redis.zadd(KEYS.owners, {f"late {number}": 1})
            await redis.lpush(f"pending:late {number}", "left")
            await renew(membership, context)
            assert context.adopted.total() == number + 1


async def test_a_key_that_is_no_registration_is_detected_among_many(redis: Redis) -> None:
    """An order to a dead instance creates a key that never expires, and nobody reads it."""
    async with idle_replicas(redis, 10) as replicas:
        dead, _ = replicas.pop()
        await redis.delete(KEYS.instance(dead.id))
        await redis.hset(KEYS.instance(dead.id), "reload", "1")
        for _ in range(50):
            for replica in replicas:
                await renew(*replica)
        assert dead.id.encode() not in await redis.lrange(KEYS.ids, 0, -1)
