"""The moves of ``penstock apply``, and which instances have not been ordered to reload yet."""

from dataclasses import replace

import pytest
from redis.asyncio import Redis

from penstock.composition.model import Part
from penstock.composition.rollout import LUA
from penstock.composition.rollout.apply import in_hand
from penstock.composition.rollout.current import CurrentState, ReloadState
from penstock.core.script import Script


@pytest.mark.parametrize(
    ("instances", "reload_unfinished"),
    [
        ([(10, "", "")], False),
        ([(10, "ours 20", "ours 20")], False),
        ([(10, "ours 20", "ours 20"), (10, "", "")], True),
        ([(10, "ours 20", "ours 20"), (30, "", "")], False),
        ([(10, "ours 20", "ours 20"), (10, "ours 21", "")], True),
        ([(10, "ours 20", "ours 20"), (10, "ours 21", "ours 21")], False),
        ([(10, "7", "7"), (10, "", "")], False),
    ],
)
def test_instances_without_the_order_are_found(
    redis: Redis, instances: list[tuple[float, str, str]], reload_unfinished: bool
) -> None:
    """``instances``: seconds since the start, last order received, last order obeyed."""
    nothing = CurrentState(Part("fan", namespace="fan"), redis, redis, {}, {}, (), {}, {})
    states = [
        ReloadState(
            str(id),
            started,
            ordered.replace("ours", nothing.reload_order),
            obeyed.replace("ours", nothing.reload_order),
        )
        for id, (started, ordered, obeyed) in enumerate(instances)
    ]
    assert replace(nothing, instances=tuple(states)).reload_unfinished is reload_unfinished


async def test_a_late_order_does_not_create_a_registration(redis: Redis) -> None:
    order = Script.read(LUA / "order.lua")
    assert await order(redis, instance="fan:1", order="x") == 0
    assert not await redis.exists("fan:1")


@pytest.mark.parametrize("newer", [1, 7, 30])
@pytest.mark.parametrize("most", [4, 100])
@pytest.mark.parametrize("noted", ["renamed b", "moved b"])
async def test_messages_of_an_old_name_go_to_the_end_that_keeps_their_order(
    redis: Redis, newer: int, noted: str, most: int
) -> None:
    """Messages of the first move are older than those under the new name, later ones newer than those moved before."""
    await redis.lpush("a", *range(10))
    await redis.lpush("b", *range(10, 10 + newer))
    await redis.hset("notes", "a", noted)
    rehome = Script.read(LUA / "rehome.lua")
    older = int(noted == "renamed b")
    words = {"former": "a", "present": "b", "notes": "notes", "counters": [], "older": older, "most": most}
    assert await rehome(redis, **words, noted="renamed c", settled="moved c", bytes=1_000_000) is None
    total, left = 0, 1
    while left:
        assert await redis.hget("notes", "a") == noted.encode()
        count, left = await rehome(redis, **words, noted=noted, settled="moved b", bytes=1_000_000)
        total += count
    assert total == 10
    old, new = [*range(10)], [*range(10, 10 + newer)]
    found = [int(number) for number in reversed(await redis.lrange("b", 0, -1))]
    assert found == (old + new if older else new + old)
    assert not await redis.exists("a")
    assert await redis.hget("notes", "a") == b"moved b"


async def test_counts_of_two_names_that_were_outputs_at_once_are_not_added(redis: Redis) -> None:
    """A list cannot be owed more messages than the service took."""
    counters = {name: f"fan:metrics:{name}" for name in ("taken", "delivered", "dead", "dropped")}
    await redis.hset(counters["taken"], mapping={"count": 10, "a": 10, "b": 4})
    await redis.hset("notes", "a", "renamed b")
    rehome = Script.read(LUA / "rehome.lua")
    words = {"former": "a", "present": "b", "notes": "notes", "noted": "renamed b", "settled": "moved b", "older": 1}
    assert await rehome(redis, **words, counters=[*counters.values()], most=1, bytes=1_000_000) == [0, 0]
    assert await redis.hgetall(counters["taken"]) == {b"count": b"10", b"a": b"10", b"b": b"4"}


async def test_what_consumers_of_lists_have_in_hand_is_counted(redis: Redis) -> None:
    assert await in_hand(redis, "work") == (0, 0)
    await redis.zadd("work:consumers", {"a": 1, "b": 2, "c": 4e15})
    await redis.lpush("work:consumer:a", "x", "y")
    await redis.lpush("work:consumer:c", "z")
    await redis.set("work:consumer:b", "somebody's")
    assert await in_hand(redis, "work") == (1, 2), "of live consumers, and of dead ones"
    await redis.set("other:consumers", "no zset")
    assert await in_hand(redis, "other") == (0, 0)
