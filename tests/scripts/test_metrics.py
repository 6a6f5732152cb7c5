"""Metrics: counts, sums, maxima and histograms, with concurrent writers too."""

import asyncio
from fractions import Fraction

import pytest
from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.core.metrics import count, observe, read_metrics
from tests.support.commandline import AWKWARD

KEYS = Keys("demo:mpush")
WAIT = KEYS.metric("wait")


async def observed(redis: "Redis", *values: float, budget: float = 10) -> dict[str, str]:
    async with redis.pipeline() as transaction:
        for value in values:
            observe(transaction, WAIT, value, budget)
        await transaction.execute()
    return (await read_metrics(redis, KEYS))["wait"]


@pytest.mark.parametrize(
    ("percent", "bucket"),
    [
        (0, "histo0"),
        (9.999, "histo0"),
        (10, "histo10"),
        (10.001, "histo10"),
        (25, "histo20"),
        (89.999, "histo80"),
        (90, "histo90"),
        (99.999, "histo90"),
        (100, "histo100"),
        (100.1, "histo100"),
        (1e9, "histo100"),
    ],
)
async def test_a_value_is_counted_in_its_tenth_of_the_budget(redis: Redis, percent: float, bucket: str) -> None:
    fields = await observed(redis, percent / 10)
    assert {field for field in fields if field.startswith("histo")} == {bucket}
    assert (fields["count"], fields[bucket]) == ("1", "1")


@pytest.mark.parametrize("budget", ["0.1", "0.3", "0.7", "1", "3", "7", "10", "60", "3600"])
async def test_each_tenth_begins_exactly_where_it_says(redis: Redis, budget: str) -> None:
    values = [float(Fraction(budget) * tenth / 10) for tenth in range(11)]
    fields = await observed(redis, *values, budget=float(budget))
    assert {field: fields[field] for field in fields if field.startswith("histo")} == {
        f"histo{tenth}0" if tenth else "histo0": "1" for tenth in range(11)
    }


async def test_sum_and_maximum_are_in_seconds_with_decimals(redis: Redis) -> None:
    fields = await observed(redis, 0.25, 0.5, 0.125)
    assert (fields["count"], fields["sum"], fields["max"]) == ("3", "0.875", "0.5")
    assert (await observed(redis, 12))["max"] == "12"


async def test_a_first_value_of_nothing_is_the_maximum(redis: Redis) -> None:
    fields = await observed(redis, 0)
    assert (fields["count"], fields["sum"], fields["max"]) == ("1", "0", "0")


async def test_the_maximum_holds_while_two_write_at_once(redis: Redis, redis_url: str) -> None:
    """MP-D19: the original reads, compares and writes the maximum, so a smaller value can win."""

    async def write(values: range) -> None:
        async with Redis.from_url(redis_url) as client:
            for value in values:
                async with client.pipeline() as transaction:
                    observe(transaction, WAIT, value, 10)
                    await transaction.execute()

    await asyncio.gather(write(range(1, 201)), write(range(200, 0, -1)), write(range(100, 201)))
    fields = (await read_metrics(redis, KEYS))["wait"]
    assert (fields["max"], fields["count"], fields["sum"]) == ("200", "501", "55350")
    assert sum(int(value) for field, value in fields.items() if field.startswith("histo")) == 501


async def test_a_measure_is_taken_in_the_transaction_of_what_it_measures(redis: Redis) -> None:
    async with redis.pipeline(transaction=True) as transaction:
        transaction.lpush("list", "message")
        observe(transaction, WAIT, 1, 10)
        count(transaction, KEYS.metric("done"), 3)
        assert not await redis.exists(WAIT, "list")
        await transaction.execute()
    assert await redis.llen("list") == 1
    assert {name: fields["count"] for name, fields in (await read_metrics(redis, KEYS)).items()} == {
        "done": "3",
        "wait": "1",
    }


async def test_a_transaction_that_is_given_up_measures_nothing(redis: Redis) -> None:
    async with redis.pipeline(transaction=True) as transaction:
        observe(transaction, WAIT, 1, 10)
        count(transaction, KEYS.metric("done"))
        await transaction.reset()
    assert await read_metrics(redis, KEYS) == {}


async def test_metrics_are_read_sorted_and_as_redis_cli_shows_them(redis: Redis) -> None:
    await redis.hset(KEYS.metric("b"), mapping={"count": 1, "last": b"\xc3\xa9"})
    await redis.hset(KEYS.metric("a:c"), mapping={"count": 2})
    await redis.set(KEYS.metric("no hash"), 1)
    await redis.hset(f"x{KEYS.metric('b')}", mapping={"count": 3})
    metrics = await read_metrics(redis, KEYS)
    assert list(metrics.items()) == [("a:c", {"count": "2"}), ("b", {"count": "1", "last": "é"})]


@pytest.mark.parametrize("namespace", [*AWKWARD, "*", "?", "[a-z]", "[^a]", "\\", "\\*", "a*b?[c]"])
async def test_a_namespace_with_the_characters_of_patterns_reads_its_own(redis: Redis, namespace: str) -> None:
    for other in ("a", "ab", "in-", "aXb?c", "aXbXc", "b", f"{namespace}x", f"x{namespace}"):
        await redis.hset(Keys(other).metric("theirs"), "count", 1)
    await redis.hset(Keys(namespace).metric("mine"), "count", 1)
    metrics = await read_metrics(redis, Keys(namespace))
    assert metrics == {"mine": {"count": "1"}}


async def test_metrics_are_found_among_many_other_keys(redis: Redis) -> None:
    async with redis.pipeline(transaction=False) as wire:
        for number in range(5000):
            wire.set(f"other {number}", number)
        await wire.execute()
    await redis.hset(WAIT, "count", 1)
    assert list(await read_metrics(redis, KEYS)) == ["wait"]
