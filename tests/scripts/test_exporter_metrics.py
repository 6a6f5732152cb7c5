"""Counters and the histogram of a scrape equal the hashes under ``<ns>:metrics``."""

from itertools import pairwise
from typing import Any

import pytest
from prometheus_client.core import Metric
from redis.asyncio import Redis

from penstock.core.metrics import ENDED_REASONS, METRICS, REFUSED_REASONS, observe
from tests.scripts.scrape import OPENMETRICS, exporting, policy, scrape, scraped

COUNTED = [metric for metric in METRICS if metric.hash and metric.kind != "histogram"]
TRACKED = [metric for metric in COUNTED if metric.of == "tracked"]


async def test_every_counter_that_a_service_writes_is_exported(redis: Redis) -> None:
    """Also in a namespace whose service is not known, with other fields beside it."""
    numbers = {
        (metric.hash, field): place for place, metric in enumerate(COUNTED, 1000) for field in metric.fields.values()
    }
    for (name, field), number in numbers.items():
        await redis.hset(f"demo:metrics:{name}", mapping={field: number, "sum": 5, "max": 2, "out": 3})
    await redis.delete("demo:metrics:dead")
    found = await scraped(redis)
    for metric in COUNTED:
        for label, field in metric.fields.items() if metric.hash != "dead" else ():
            labels = {metric.labels[0]: label} if metric.labels else {}
            number = numbers[metric.hash, field]
            assert found(metric.written_as.removeprefix("penstock_"), **labels) == number, (metric.name, label)


async def test_methods_and_refusals_of_http_are_exported_and_its_times_are_no_events(redis: Redis) -> None:
    fields: dict[Any, Any] = {"requests": 3, "GET": 2, "other": 1, "refused:431": 4, "slowest": "0.5", "within:1": 3}
    await redis.hset("demo:metrics:http", mapping=fields)
    found = await scraped(redis)
    assert [found("http_total", event=each) for each in ("GET", "other", "refused:431")] == [2, 1, 4]
    assert {"slowest", "within:1"}.isdisjoint(found.labels("http_total", "event"))


async def test_a_policy_makes_every_counter_begin_at_0_and_without_one_there_is_none(redis: Redis) -> None:
    """A rate includes the first message only if the series existed before it."""
    assert (await scraped(redis)).names.isdisjoint(each.written_as for each in TRACKED if each.name != "dead")
    await policy(redis)
    found = await scraped(redis)
    assert {each.written_as for each in TRACKED} <= found.names
    assert found.labels("dead_total", "reason") == {*ENDED_REASONS, *REFUSED_REASONS, "badAnswer", "badDone"}
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
