"""The script of mbalance: which list each message goes to, by each policy."""

import json
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.base.errors import Fenced
from tests.support.balancing import KEYS, SOURCE, contents, move, push, state, state_of

ABC = ("a", "b", "c")


async def lengths(redis: Redis, lists: tuple[str, ...] = ABC) -> list[int]:
    return [await redis.llen(name) for name in lists]


async def now(redis: Redis) -> float:
    seconds, micros = await redis.time()
    return seconds + micros / 1e6


@pytest.mark.parametrize("policy", ["length", "expectedWait", "roundRobin", "weighted"])
async def test_of_equal_lists_each_gets_a_message_in_turn_also_over_several_moves(redis: Redis, policy: str) -> None:
    given: list[bytes] = []
    for number in range(7):
        await push(redis, SOURCE, [number])
        await move(redis, ABC, policy=policy, weights=[1, 1, 1] if policy == "weighted" else [])
        for name in ABC:
            given += [name.encode()] if await redis.delete(name) else []
    assert given == [b"a", b"b", b"c", b"a", b"b", b"c", b"a"]


async def test_weights_hold_within_a_batch_and_over_small_ones(redis: Redis) -> None:
    await push(redis, SOURCE, range(60))
    await move(redis, ABC, policy="weighted", weights=[3, 2, 1])
    assert await lengths(redis) == [30, 20, 10]
    for number in range(12):
        await push(redis, SOURCE, [number])
        await move(redis, ABC, policy="weighted", weights=[3, 2, 1])
    assert await lengths(redis) == [36, 24, 12]


async def test_what_workers_have_in_hand_counts(redis: Redis) -> None:
    await push(redis, "a:hand", range(4))
    await push(redis, SOURCE, range(10))
    await move(redis, ("a", "b"), policy="length", in_hand=["a:hand", "b:hand"])
    assert await lengths(redis, ("a", "b")) == [3, 7]


async def test_a_list_that_was_not_measured_is_expected_to_be_as_the_others(redis: Redis) -> None:
    at = await now(redis)
    await redis.hset(KEYS.rates, "a", state(0.01, 20, at, at, 0))
    await redis.hset(KEYS.rates, "b", state(0.03, 20, at, at, 0))
    await push(redis, SOURCE, range(110))
    await move(redis, ABC)
    a, b, c = await lengths(redis)
    assert (a, b, c) == (60, 20, 30)


async def test_the_rate_is_busy_time_for_each_message_while_the_list_is_not_empty(redis: Redis) -> None:
    at = await now(redis)
    await redis.hset(KEYS.rates, "a", state(0, 0, at - 6, at - 6, 10))
    await push(redis, "a", range(4))  # of 10, six were served in six seconds
    await push(redis, SOURCE, ["x"])
    await move(redis, ["a"], in_hand=["a:hand"])
    found = state_of(await redis.hget(KEYS.rates, "a"))
    assert found["seconds"] == pytest.approx(1, rel=0.05)
    assert (found["items"], found["length"]) == (6, 5)


async def test_an_empty_list_says_only_between_which_times_its_last_message_was_served(redis: Redis) -> None:
    for seconds, expected in ((10.0, 10 - 0.05 * 6), (3.0, 3.0), (1.0, 1 + 0.05 * 1)):
        at = await now(redis)
        await redis.hset(KEYS.rates, "a", state(seconds, 20, at - 4, at - 2, 1))
        await push(redis, SOURCE, ["x"])
        await move(redis, ["a"], in_hand=["a:hand"])
        assert state_of(await redis.hget(KEYS.rates, "a"))["seconds"] == pytest.approx(expected, rel=0.02)
        await redis.delete("a")


async def test_what_was_measured_of_an_unused_list_fades_so_that_it_gets_a_try(redis: Redis) -> None:
    at = await now(redis)
    await redis.hset(KEYS.rates, "a", state(1, 20, at, at, 0))
    await redis.hset(KEYS.rates, "b", state(100, 20, at - 3600, at - 3600, 0, turn=-9))
    await push(redis, SOURCE, range(20))
    await move(redis, ("a", "b"), rate_expire=60)
    first, other = await lengths(redis, ("a", "b"))
    assert first + other == 20
    assert 8 <= first <= 12  # the rate of "a" fades, too, until the move


async def test_a_list_that_stands_still_costs_more_the_longer_it_does(redis: Redis) -> None:
    at = await now(redis)
    await push(redis, "a", ["stuck"])
    await redis.hset(KEYS.rates, "a", state(1, 20, at - 200, at - 200, 1))
    await redis.hset(KEYS.rates, "b", state(1, 20, at, at, 0))
    await push(redis, SOURCE, range(20))
    await move(redis, ("a", "b"))
    assert await redis.llen("b") >= 18  # after 200 s of 1 s, about 11 s each are expected


async def test_a_state_that_somebody_else_wrote_is_no_state(redis: Redis) -> None:
    await redis.hset(KEYS.rates, mapping={"a": "nonsense", "b": "1 2 x 4 5 6 7"})
    await push(redis, SOURCE, range(9))
    assert (await move(redis, ABC)).messages == 9
    assert sum(await lengths(redis)) == 9


@pytest.mark.parametrize("field", [None, "meta.key"])
async def test_the_same_text_goes_to_the_same_list_and_few_move_if_a_list_goes(redis: Redis, field: str | None) -> None:
    lists = tuple(f"list{number}" for number in range(8))
    messages = [json.dumps({"meta": {"key": number // 2}, "n": number}) for number in range(8_000)]
    keys = {message.encode(): number // 2 if field else number for number, message in enumerate(messages)}

    async def placed(among: tuple[str, ...]) -> dict[int, str]:
        await redis.flushall()
        await push(redis, SOURCE, messages)
        await move(redis, among, policy="hash", field=field, batch=10_000)
        found: dict[int, str] = {}
        for name, held in zip(among, await contents(redis, among), strict=True):
            for message in held:
                assert found.setdefault(keys[message], name) == name
        return found

    before = await placed(lists)
    counts = [list(before.values()).count(name) for name in lists]
    assert min(counts) > 0.8 * len(before) / 8
    after = await placed(lists[:-1])
    assert {key for key in before if before[key] != after[key]} == {key for key in before if before[key] == lists[-1]}


@pytest.mark.parametrize(
    "spellings",
    [
        ["1", "1.0", "1e0", "100E-2"],
        ["0.1", "1e-1", "0.10"],
        ["9007199254740993", "9007199254740993.0"],
        ['{"a":1,"b":[true,null,"x"]}', '{"b": [true, null, "\\u0078"], "a": 1.0}'],
        ["[]", "[ ]"],
        ["0", "-0", "-0.0", "0e5"],
        ["false", " false"],
    ],
)
async def test_equal_values_go_to_the_same_list_however_they_are_written(redis: Redis, spellings: list[str]) -> None:
    lists = tuple(f"list{number}" for number in range(16))
    await push(redis, SOURCE, [f'{{"key": {each}, "n": {place}}}' for place, each in enumerate(spellings * 8)])
    await move(redis, lists, policy="hash", field="key")
    assert sorted(await lengths(redis, lists))[-2:] == [0, 8 * len(spellings)]


async def test_messages_behind_a_byte_order_mark_are_read(redis: Redis) -> None:
    lists = tuple(f"list{number}" for number in range(16))
    await push(redis, SOURCE, [b'%b{"key": "a", "n": %d}' % (b"\xef\xbb\xbf" * (n % 2), n) for n in range(16)])
    await move(redis, lists, policy="hash", field="key")
    assert sorted(await lengths(redis, lists))[-2:] == [0, 16]


async def test_numbers_of_19_digits_are_spread_over_the_lists(redis: Redis) -> None:
    """A step of 4,096, as of ids that are made of a time."""
    await push(redis, SOURCE, [f'{{"key": {1541815603606036480 + 4096 * number}}}' for number in range(400)])
    await move(redis, ABC, policy="hash", field="key")
    assert min(await lengths(redis)) > 80


@pytest.mark.parametrize(
    "message", [b"", b"\xff\x00", b"[1]", b"7", b'{"meta": 1}', b'{"meta": {"key": []}}', b"[" * 2000]
)
async def test_a_message_without_the_field_is_hashed_as_a_whole(redis: Redis, message: bytes) -> None:
    await push(redis, SOURCE, [message, message])
    await move(redis, ABC, policy="hash", field="meta.key")
    assert sorted(await lengths(redis)) == [0, 0, 2]


async def test_another_replica_that_is_the_active_one_moves_alone(redis: Redis) -> None:
    await redis.hset("lease", "token", 7)
    await push(redis, SOURCE, ["x"])
    with pytest.raises(Fenced):
        await move(redis, ABC, lease="lease", token=6)
    assert await redis.llen(SOURCE) == 1
    assert (await move(redis, ABC, lease="lease", token=7)).messages == 1


async def test_a_full_server_moves_on(redis: Redis, fill: Callable[[], Awaitable[object]]) -> None:
    await push(redis, SOURCE, range(3_000))
    await fill()
    with pytest.raises(ResponseError, match="maxmemory"):
        await redis.lpush(SOURCE, "more")
    assert (await move(redis, ABC)).messages == 2_000
    assert (await move(redis, ABC)) == (1_000, 0, 4, 3)
    assert sum(await lengths(redis)) == 3_000


async def test_bounds_of_a_move_are_kept(redis: Redis) -> None:
    await push(redis, SOURCE, [b"x" * 1_000] * 50)
    assert await move(redis, ABC, batch=7) == (7, 43, 1_000, 3)
    assert await move(redis, ABC, batch_bytes=2_500) == (3, 40, 1_000, 3)
    assert await move(redis, ABC, batch_bytes=1) == (1, 39, 1_000, 3)


async def test_nothing_to_move_writes_nothing(redis: Redis) -> None:
    assert await move(redis, ABC) == (0, 0, 0, 3)
    assert await redis.keys() == []


async def test_what_was_measured_outlasts_another_policy(redis: Redis) -> None:
    at = await now(redis)
    await redis.hset(KEYS.rates, "a", state(0.01, 20, at, at, 3))
    await push(redis, SOURCE, range(10))
    await move(redis, ["a"], policy="length")
    found = state_of(await redis.hget(KEYS.rates, "a"))
    assert (found["seconds"], found["items"], found["length"]) == (0.01, 20, 0)
