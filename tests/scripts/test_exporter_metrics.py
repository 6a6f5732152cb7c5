"""Counters and the histogram of a scrape equal the hashes under ``<ns>:metrics``."""

from itertools import pairwise
from typing import Any

import pytest
from prometheus_client.core import Metric
from redis.asyncio import Redis

from penstock.core.metrics import observe
from tests.scripts.scrape import OPENMETRICS, exporting, policy, scrape, scraped

COUNTERS = {
    "taken": "taken",
    "registered": "registered",
    "delivered": "delivered",
    "untracked": "untracked",
    "done": "done",
    "done_late": "done:late",
    "done_unknown": "done:unknown",
    "timeouts": "timeout",
    "failed_attempts": "failed",
    "retries": "retry",
    "expired": "expired",
    "touched": "touched",
}
"""Metric by series, with the documented names."""


async def test_every_counter_has_the_count_of_its_metric(redis: Redis) -> None:
    await policy(redis)
    for place, metric in enumerate(COUNTERS.values()):
        await redis.hset(f"demo:metrics:{metric}", mapping={"count": 1000 + place, "sum": 5, "max": 2, "out": 3})
    found = await scraped(redis)
    assert {name: found(f"{name}_total") for name in COUNTERS} == {
        name: 1000 + place for place, name in enumerate(COUNTERS)
    }


async def test_a_policy_makes_every_counter_begin_at_0_and_without_one_there_is_none(redis: Redis) -> None:
    """A rate includes the first message only if the series existed before it."""
    assert (await scraped(redis)).names.isdisjoint(f"penstock_{name}_total" for name in COUNTERS)
    await policy(redis)
    found = await scraped(redis)
    assert {found(f"{name}_total") for name in COUNTERS} == {0}
    assert found.labels("dead_total", "reason") == {
        *("timeout", "failed", "retryBudget", "queueTimeout", "poison", "badRequest", "badAnswer", "badDone"),
    }
    assert found("dead_total", reason="poison") == 0
    assert found("response_seconds_count") == 0


async def test_outcomes_of_hqueue_are_counted_from_0(redis: Redis) -> None:
    await policy(redis)
    assert "penstock_outcomes_total" not in (await scraped(redis)).names
    await redis.hset("demo:metrics:http", "requests", 1)
    found = await scraped(redis)
    assert (found("outcomes_total", result="undelivered"), found("outcomes_waiting")) == (0, 0)
    await redis.zadd("demo:message:outbox", {"work:/q 1": 5, "work:/q 2": 1e12})
    await redis.hset("demo:metrics:outcomes", mapping={"replied": 3, "undelivered": 2})
    found = await scraped(redis)
    assert found("outcomes_waiting") == 2
    assert found("outcomes_total", result="replied") == 3
    assert found("outcomes_total", result="undelivered") == 2
    assert found.labels("outcomes_total", "result") == {"replied", "sent", "failed", "undelivered"}


async def test_dead_letters_are_counted_by_reason(redis: Redis) -> None:
    await policy(redis)
    await redis.hset("demo:metrics:dead", mapping={"count": 9, "timeout": 4, "poison": 2, "of our own": 3})
    found = await scraped(redis)
    assert found("dead_total", reason="timeout") == 4
    assert found("dead_total", reason="poison") == 2
    assert found("dead_total", reason="of our own") == 3
    assert found("dead_total", reason="failed") == 0
    assert "count" not in found.labels("dead_total", "reason")


@pytest.mark.parametrize("allowed", ["10", "3", "7", "1", "60", "3600", "0.3"])
async def test_the_histogram_is_cumulative_and_exact(redis: Redis, allowed: str) -> None:
    await policy(redis, messageTimeout=allowed)
    counts = [3, 0, 5, 1, 0, 0, 2, 9, 0, 4, 6]
    fields: dict[Any, Any] = {f"histo{10 * place}": count for place, count in enumerate(counts) if count}
    fields |= {"count": sum(counts), "sum": "12.345678"}
    await redis.hset("demo:metrics:done", mapping=fields)
    async with exporting(redis) as exporter:
        for accept in ("text/plain", OPENMETRICS):
            found = await scrape(exporter, accept=accept)
            buckets = {float(le): value for le, value in _buckets(found.families["penstock_response_seconds"])}
            limits = [float(allowed) * tenth / 10 for tenth in range(1, 11)]
            assert list(buckets) == [pytest.approx(each, rel=1e-9) for each in limits] + [float("inf")]
            assert list(buckets.values()) == [sum(counts[: place + 1]) for place in range(11)]
            assert found("response_seconds_count") == sum(counts)
            assert found("response_seconds_sum") == 12.345678
            assert all(len(le) <= 7 for le, _ in _buckets(found.families["penstock_response_seconds"]))


async def test_what_is_observed_is_in_the_bucket_of_its_time(redis: Redis) -> None:
    await policy(redis)
    async with redis.pipeline() as transaction:
        for seconds in (0, 0.9999, 1, 9.9999, 10, 10.01):
            observe(transaction, "demo:metrics:done", seconds, 10)
        await transaction.execute()
    found = (await scraped(redis)).families["penstock_response_seconds"]
    cumulative = dict(_buckets(found))
    assert (cumulative["1.0"], cumulative["2.0"], cumulative["10.0"], cumulative["+Inf"]) == (2, 3, 4, 6)


def _buckets(family: Metric) -> list[tuple[str, float]]:
    found = [(each.labels["le"], each.value) for each in family.samples if each.name.endswith("_bucket")]
    assert all(float(low[0]) < float(high[0]) for low, high in pairwise(found))
    return found
