"""Gauges of a scrape of the watched namespaces equal the values of the keys."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from common.http.access import Access, write_access
from penstock.core.connection import connect
from penstock.testing.server import EmbeddedServer
from tests.scripts.scrape import OPENMETRICS, exporting, instance, message, policy, scrape, scraped
from tests.support.clock import Span
from tests.support.harness import PATIENCE

AWKWARD = [
    b"in",
    b"with space",
    b'it\'s "quoted"',
    b"two\nlines\rand\ttabs",
    b"back\\slash\\n",
    "ünï¢ødé ✓ \u2028".encode(),
    b'{tag}:list,a="b"} 5',
    b"# HELP me",
    b"",
]


def aged(seconds: float, began: float) -> Span:
    """Return how old is by now what was that old at ``began``, or somewhat later."""
    return Span(0, time.time() - began) + seconds


async def test_what_is_in_flight_and_delayed_is_shown(redis: Redis) -> None:
    await policy(redis)
    for id in range(3):
        await message(redis, id, age=id)
    await redis.zadd("demo:message:delayed", {"8": 1, "9": 2})
    found = await scraped(redis)
    assert (found("in_flight"), found("delayed")) == (3, 2)


async def test_the_oldest_in_flight_is_the_last_of_the_ids_that_is_not_finished(redis: Redis) -> None:
    began = time.time()
    await policy(redis)
    for id, age in ((1, 400), (2, 300), (3, 200), (4, 100)):
        await message(redis, id, age=age, due_in=-age)
    await redis.zrem("demo:message:deadlines", 1, 2)
    assert (await scraped(redis))("oldest_in_flight_seconds") == aged(200, began)


async def test_the_oldest_in_flight_is_found_where_its_deadline_was_moved(redis: Redis) -> None:
    """After a touch, the message that is due first is not the oldest."""
    began = time.time()
    await policy(redis)
    await message(redis, 1, age=300, due_in=50)
    await message(redis, 2, age=20, due_in=5)
    await redis.lpush("demo:message:ids", *range(3, 500))
    assert (await scraped(redis))("oldest_in_flight_seconds") == aged(300, began)


async def test_behind_any_number_of_finished_ids_the_one_that_is_due_first_counts_as_the_oldest(redis: Redis) -> None:
    began = time.time()
    await policy(redis)
    await redis.lpush("demo:message:ids", *range(1000))
    await message(redis, 1000, age=70, due_in=1)
    await message(redis, 1001, age=60, due_in=2)
    assert (await scraped(redis))("oldest_in_flight_seconds") == aged(70, began)


async def test_without_a_message_in_flight_the_oldest_is_0_and_without_a_record_it_is_not_known(redis: Redis) -> None:
    await policy(redis)
    await redis.lpush("demo:message:ids", 1)
    assert (await scraped(redis))("oldest_in_flight_seconds") == 0
    await redis.zadd("demo:message:deadlines", {"1": 5})
    assert (await scraped(redis))("oldest_in_flight_seconds") is None


async def test_the_age_counts_from_the_first_delivery_not_from_a_retry_or_while_it_was_held(redis: Redis) -> None:
    began = time.time()
    await policy(redis)
    await message(redis, 1, age=90, attempt=2, delivered=time.time() - 4)
    assert (await scraped(redis))("oldest_in_flight_seconds") == aged(90, began)
    await redis.hset("demo:message:1", "attempt", 1)
    assert (await scraped(redis))("oldest_in_flight_seconds") == aged(4, began)


async def test_lists_are_shown_with_their_roles_and_all_pending_lists_of_owners(redis: Redis) -> None:
    await policy(redis)
    await redis.hset("demo:lists", mapping={"in": "in", "out": "out", "pending": "pending", "res": "answers"})
    await redis.zadd("demo:owners", {"1": 5, "2": 6})
    for name, length in {"in": 3, "pending:2": 2, "demo:done": 4, "demo:dead": 5}.items():
        await redis.lpush(name, *range(length))
    found = await scraped(redis)
    assert found("list_length", list="in", role="in") == 3
    assert found("list_length", list="out", role="out") == 0
    assert found("list_length", list="res", role="answers") == 0
    assert [found("list_length", list=f"pending{id}", role="pending") for id in ("", ":1", ":2")] == [0, 0, 2]
    assert found("list_length", list="demo:done", role="done") == 4
    assert found("list_length", list="demo:dead", role="dead") == 5
    await redis.zrem("demo:owners", 1)
    assert (await scraped(redis))("list_length", list="pending:1", role="pending") is None


async def test_replicas_that_take_turns_by_a_lease_have_one_pending_list(redis: Redis) -> None:
    await redis.hset("demo:lists", "pending", "pending")
    await redis.zadd("demo:owners", {"1": 5, "2": 6})
    await redis.hset("demo:lease", mapping={"owner": "1", "token": 4, "expires": 0})
    await redis.rpush("pending:2", "left when it had a list of its own")
    found = await scraped(redis)
    assert [found("list_length", list=f"pending{id}", role="pending") for id in ("", ":1", ":2")] == [0, None, 1]


async def test_a_link_to_another_server_is_shown_with_what_waits_for_it_and_what_crossed_it(redis: Redis) -> None:
    assert (await scraped(redis))("link_up") is None
    now = time.time()
    seen: Any = {"state": "up", "since": 1, "reason": "", "rtt": "0.25", "waiting": 7, "oldest": "1.5", "at": now}
    await redis.hset("demo:link", mapping=seen)
    await redis.hset("demo:lists", mapping={"in": "in", "pending": "pending"})
    await redis.hset("demo:lease", mapping={"owner": "1", "token": 4, "expires": int(now * 1000) + 60_000})
    await redis.lpush("in", *range(4))
    await redis.lpush("pending", *range(3))
    await redis.hset("demo:metrics:batches", mapping={"count": 3, "bytes": 99, "sum": "0.5", "max": "0.25"})
    await redis.hset("demo:metrics:dead", mapping={"count": 2, "out": 2})
    found = await scraped(redis)
    assert [found(f"link_{name}") for name in ("up", "waiting", "round_trip_seconds")] == [1, 7, 0.25]
    assert found("link_oldest_seconds") == aged(1.5, now)
    assert (found("link_batches_total"), found("link_bytes_total")) == (3, 99)
    assert found("dead_total", reason="unfit") == 2
    await redis.hset("demo:link", mapping={"state": "down", "rtt": "much"})
    await redis.delete("demo:lists")
    found = await scraped(redis)
    assert [found(f"link_{name}") for name in ("up", "waiting", "round_trip_seconds")] == [0, None, None]


@pytest.mark.parametrize("lease", [{"owner": "1", "token": 4, "expires": 5}, {}], ids=["run out", "none"])
async def test_a_link_that_no_vpush_uses_is_down_and_what_waits_for_it_is_counted_and_grows_old(
    redis: Redis, lease: dict[Any, Any]
) -> None:
    now = time.time()
    seen: Any = {"state": "up", "since": 1, "waiting": 0, "oldest": 0, "at": now - 100}
    await redis.hset("demo:link", mapping=seen)
    await redis.hset("demo:lists", mapping={"in": "in", "pending": "pending"})
    if lease:
        await redis.hset("demo:lease", mapping=lease)
    found = await scraped(redis)
    assert [found(f"link_{name}") for name in ("up", "waiting", "oldest_seconds")] == [0, 0, 0]
    await redis.lpush("in", 1, 2)
    await redis.lpush("pending", 1)
    found = await scraped(redis)
    assert [found(f"link_{name}") for name in ("up", "waiting")] == [0, 3]
    assert found("link_oldest_seconds") == aged(100, now)


async def test_what_has_just_come_to_an_idle_vpush_is_not_as_old_as_its_last_batch(redis: Redis) -> None:
    now = time.time()
    seen: Any = {"state": "up", "since": 1, "waiting": 0, "oldest": 0, "at": now - 100}
    await redis.hset("demo:link", mapping=seen)
    await redis.hset("demo:lease", mapping={"owner": "1", "token": 4, "expires": int(now * 1000) + 60_000})
    await redis.hset("demo:lists", "in", "in")
    await redis.lpush("in", 1)
    found = await scraped(redis)
    assert [found(f"link_{name}") for name in ("up", "waiting", "oldest_seconds")] == [1, 1, 0]
    await redis.hset("demo:link", mapping={"waiting": 1, "oldest": "7"})
    assert (await scraped(redis))("link_oldest_seconds") == aged(107, now)


async def test_instances_that_wait_are_counted_by_what_they_wait_for(redis: Redis) -> None:
    for id, reason in enumerate(("full: b", "full: b", "b holds a set", "")):
        await instance(redis, id, service="mpush")
        await redis.hset(f"demo:{id}", "waiting", reason)
    found = await scraped(redis)
    reasons = ("full: b", "b holds a set", "")
    assert [found("instances_waiting", service="mpush", reason=each) for each in reasons] == [2, 1, None]


async def test_a_done_list_of_another_name_is_shown_in_place_of_the_usual_one(redis: Redis) -> None:
    await policy(redis, done="ready")
    await redis.lpush("ready", 1, 2)
    found = await scraped(redis)
    assert found("list_length", list="ready", role="done") == 2
    assert found.labels("list_length", "list") == {"ready", "demo:dead"}


@pytest.mark.parametrize("name", AWKWARD)
async def test_any_name_is_exported_unchanged(redis: Redis, name: bytes) -> None:
    await redis.hset("demo:lists", mapping={name: "in"})
    await redis.lpush(name, 1, 2)
    async with exporting(redis) as exporter:
        for accept in ("text/plain", OPENMETRICS):
            found = await scrape(exporter, accept=accept)
            assert found("list_length", list=name.decode(), role="in") == 2, accept


async def test_bytes_that_are_not_utf_8_are_escaped(redis: Redis) -> None:
    namespace, name = b"d\xffmo", b"caf\xe9 \x80\n"
    await redis.hset(namespace + b":lists", mapping={name: "in"})
    await redis.lpush(name, 1)
    found = await scraped(redis, namespace.decode(errors="surrogateescape"))
    assert found("list_length", namespace="d\\xffmo", list="caf\\xe9 \\x80\n", role="in") == 1
    assert found("up", namespace="d\\xffmo") == 1


async def test_series_of_an_instance_that_is_gone_disappear(redis: Redis) -> None:
    began = time.time()
    await policy(redis)
    await instance(redis, 1, renewed=12)
    await instance(redis, 2)
    async with exporting(redis) as exporter:
        found = await scrape(exporter)
        assert found("instances", service="mdispatch") == 2
        labels = {"id": "1", "service": "mdispatch", "host": "host1"}
        assert found("instance_renewed_seconds", **labels) == aged(12, began - 1), "written in whole seconds"
        await redis.delete("demo:1")
        found = await scrape(exporter)
        assert found.labels("instance_renewed_seconds", "id") == {"2"}
        assert found("instances", service="mdispatch") == 1
        await redis.delete("demo:2", "demo:ids")
        found = await scrape(exporter)
        assert "penstock_instance_renewed_seconds" not in found.names
        assert found("instances", service="mdispatch") == 0, "an alarm needs a number"


async def test_an_instance_that_has_missed_a_renewal_is_counted_as_late(redis: Redis) -> None:
    began = time.time()
    await policy(redis)
    await instance(redis, 1, renewed=41)
    await instance(redis, 2)
    for id in ("1", "2"):
        await redis.hset(f"demo:{id}", "renew", "15")
    found = await scraped(redis)
    assert (found("instances", service="mdispatch"), found("instances_late", service="mdispatch")) == (1, 1)
    assert found("instance_renewed_seconds", id="1", service="mdispatch", host="host1") == aged(41, began - 1)


async def test_instances_may_be_registered_on_another_server(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    async with Redis.from_url(redis_url.replace("/0", "/1")) as elsewhere:
        await instance(elsewhere, 4)
        found = await scraped(redis, service_redis=elsewhere)
    assert found.labels("instance_renewed_seconds", "id") == {"4"}


async def test_the_namespace_of_an_mpush_shows_what_it_has(redis: Redis) -> None:
    await redis.hset("demo:lists", mapping={"in": "in", "pending": "pending", "a": "out", "demo:dead": "dead"})
    await redis.hset("demo:metrics:taken", mapping={"count": 7, "a": 7, "b": 7})
    await redis.hset("demo:metrics:delivered", mapping={"count": 9, "a": 7, "b": 2})
    await redis.hset("demo:metrics:dropped", mapping={"count": 2, "b": 2})
    await redis.hset("demo:metrics:dead", mapping={"count": 3, "b": 3})
    await redis.lpush("a", *range(7))
    await instance(redis, 1, "mpush")
    found = await scraped(redis)
    assert [found(f"{name}_total") for name in ("taken", "delivered", "dropped")] == [7, 9, 2]
    assert found("dead_total", reason="maxLength") == 3
    assert found("dead_total", reason="unknown") == 0
    assert found("instances", service="mpush") == 1
    assert found("list_length", list="a", role="out") == 7
    assert {name for name in found.names if name.startswith("penstock_")} == {
        *("penstock_taken_total", "penstock_delivered_total", "penstock_dropped_total", "penstock_dead_total"),
        *(
            "penstock_list_length",
            "penstock_instances",
            "penstock_instances_late",
            "penstock_instance_renewed_seconds",
            "penstock_up",
        ),
        *("penstock_errors_total", "penstock_reloads_total", "penstock_missing_total", "penstock_broken_total"),
        *("penstock_memory_ratio", "penstock_replica", "penstock_disk_failed"),
    }


async def test_dead_letters_of_hrouter_and_mlimit_count_by_in_and_have_no_known_reason(redis: Redis) -> None:
    await redis.hset("demo:lists", mapping={"in": "in", "a": "out", "demo:dead": "dead"})
    await redis.hset("demo:metrics:dead", mapping={"count": 3, "in": 3})
    found = await scraped(redis)
    assert [found("dead_total", reason=each) for each in ("unknown", "maxLength")] == [3, 0]


async def test_requests_over_http_are_shown_by_what_became_of_them_and_by_their_time(redis: Redis) -> None:
    assert (await scraped(redis))("http_total", event="5xx") is None
    access = Access()
    await write_access(redis, "demo:metrics:http", access)
    assert (await scraped(redis))("http_total", event="5xx") == 0
    access.count("answered", 0)
    assert not access.take()[0], "there is nothing to write"
    for status, seconds in ((200, 0.005), (200, 0.02), (504, 30.001)):
        access.answered("GET", status, received=1, sent=2, seconds=seconds)
    access.count("timeouts")
    await write_access(redis, "demo:metrics:http", access)
    found = await scraped(redis)
    events = ("requests", "2xx", "5xx", "sent", "timeouts", "away")
    assert [found("http_total", event=each) for each in events] == [3, 2, 1, 6, 1, 0]
    buckets = ("0.005", "0.01", "0.025", "30.0", "+Inf")
    assert [found("http_seconds_bucket", le=each) for each in buckets] == [1, 1, 2, 2, 3]


async def test_counters_with_alerts_are_0_before_the_first_event(redis: Redis) -> None:
    await redis.hset("demo:lists", "in", "in")
    found = await scraped(redis)
    assert [found(f"{name}_total") for name in ("errors", "missing", "dropped", "broken")] == [0, 0, 0, 0]
    assert found("dead_total", reason="maxLength") == 0


async def test_a_full_server_and_a_replica_are_shown(redis: Redis, server: EmbeddedServer) -> None:
    found, memory = await scraped(redis), await redis.info("memory")
    used = memory["used_memory"]
    of_machine = used / memory["total_system_memory"]
    assert of_machine / 2 < (found("memory_ratio") or 0) < 2 * of_machine, "there is no maxmemory"
    assert found("replica") == 0
    try:
        await redis.config_set("maxmemory", 2 * used)
        assert 0.4 < ((await scraped(redis))("memory_ratio") or 0) < 0.6
        await redis.config_set("maxmemory", used // 2)
        async with connect(server.url) as client:
            known = await client.client_id()
            assert (await scraped(client))("replica") == 0
            assert await client.client_id() == known
            await redis.replicaof("127.0.0.1", 1)
            found = await scraped(client)
            assert await client.client_id() != known, "the address may be another server's by now"
        assert (found("memory_ratio") or 0) > 1
        assert found("replica") == 1
    finally:
        await redis.replicaof("NO", "ONE")
        await redis.config_set("maxmemory", 0)


async def test_a_server_that_cannot_write_to_its_disk_is_shown(tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    with EmbeddedServer(directory=place) as server:
        async with connect(server.url) as redis:
            assert (await scraped(redis))("disk_failed") == 0
            shutil.rmtree(place)
            await redis.bgsave()
            async with asyncio.timeout(PATIENCE):
                while not (await scraped(redis))("disk_failed"):
                    await asyncio.sleep(0.1)


async def test_several_namespaces_are_distinguished(redis: Redis) -> None:
    for namespace, count in (("demo", 1), ("other", 2)):
        await policy(redis, namespace)
        await redis.hset(f"{namespace}:metrics:taken", "count", count)
    found = await scraped(redis, "demo", "other", "nobody's")
    assert (found("taken_total"), found("taken_total", namespace="other")) == (1, 2)
    assert found.labels("up", "namespace") == {"demo", "other", "nobody's"}


async def test_what_is_no_number_or_has_the_wrong_type_hides_nothing_else(redis: Redis) -> None:
    await policy(redis)
    await redis.hset("demo:lists", mapping={"in": "in", "out": "out"})
    await redis.hset("demo:metrics:taken", "count", "many")
    await redis.hset("demo:metrics:retry", "count", "-1")
    await redis.hset("demo:metrics:done", mapping={"count": 1, "sum": "nan", "histo0": 1})
    await redis.hset("demo:metrics:delivered", "count", 5)
    await redis.hset("demo:holdings", "1", "[" * 100_000)
    await redis.rpush("third:ids", 1)
    of_messages = ("in", "demo:metrics:registered", "demo:message:deadlines", "demo:message:ids", "demo:dead")
    for key in (*of_messages, "demo:ids", "other:owners", "third:1"):
        await redis.set(key, "a string")
    async with exporting(redis, "demo", "other", "third") as exporter:
        found = await scrape(exporter, accept=OPENMETRICS)
    assert found("delivered_total") == 5
    assert [found(name) for name in ("taken_total", "retries_total", "response_seconds_sum", "in_flight")] == [0] * 4
    assert found.labels("list_length", "list") == {"out", "demo:done"}
    assert found("up") == 1


async def test_a_scrape_costs_the_same_with_200000_messages_in_flight(redis: Redis) -> None:
    await policy(redis)
    await message(redis, 1, age=5)
    await _commands(redis)  # loads the scripts
    few = await _commands(redis)
    for first in range(2, 200_002, 10_000):
        await redis.eval(FILL, 0, first, first + 9_999, time.time())
    assert await redis.zcard("demo:message:deadlines") == 200_001
    many = await _commands(redis)
    assert many == few
    assert sum(few.values()) < 80
    assert not {"scan", "keys", "sort", "smembers", "zrangebyscore"} & set(few)


FILL = """
for id = ARGV[1], ARGV[2] do
  local deadline = ARGV[3] + id / 1000
  redis.call('HSET', 'demo:message:' .. id, 'timestamp', ARGV[3], 'attempt', 1, 'message', 'hello')
  redis.call('LPUSH', 'demo:message:ids', id)
  redis.call('ZADD', 'demo:message:deadlines', deadline, id)
  redis.call('ZADD', 'demo:message:delayed', deadline, id)
end
"""


async def _commands(redis: "Redis") -> dict[str, int]:
    """Return how often a scrape calls each command."""
    await redis.config_resetstat()
    assert (await scraped(redis))("up") == 1
    stats = await redis.info("commandstats")
    return {
        name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items() if "config" not in name.casefold()
    }


async def test_many_may_scrape_at_once_over_one_connection(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await instance(redis, 1)
    async with connect(redis_url) as single, exporting(single) as exporter:
        found = await asyncio.gather(*(scrape(exporter) for _ in range(20)))
    assert [each("up") for each in found] == [1] * 20


async def test_a_gateway_is_shown_by_what_it_has_done_and_as_missing_once_none_is_alive(redis: Redis) -> None:
    assert (await scraped(redis))("gateway_total", event="unauthorized") is None
    await redis.hset("demo:metrics:gateway", mapping={"connections": 3, "unauthorized": 2})
    found = await scraped(redis)
    assert [found("gateway_total", event=each) for each in ("connections", "unauthorized", "refused")] == [3, 2, 0]
    assert found("instances", service="gateway") == 0
