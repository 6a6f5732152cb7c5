"""What waits for programs and services is found, and shown by /metrics, ``penstock status`` and ``map --live``."""

import asyncio
import json
import shutil
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from redis.asyncio import Redis
from structlog.testing import capture_logs

from penstock.base.keys import Keys
from penstock.base.ports import free_port
from penstock.bus import Bus
from penstock.inspect.waiting import MAX_READ, Names, Waiting, find, read_waiting, waiting_at
from penstock.jobs import Jobs
from penstock.jobs.keys import JobKeys
from penstock.lists import Lists
from services.monitor import queues as module
from services.monitor.queues import Queues
from services.monitor.settings import Settings
from services.monitor.state import NamespaceState, read_states
from tests.scripts.scrape import Scrape
from tests.scripts.scrape import scraped as of_exporter
from tests.support.clock import Span
from tests.support.commandline import penstock
from tests.support.harness import PATIENCE, ROOT, Service, eventually

WATCHED = ("shop", "shop:thumbs", "queue", "site", "archive")


async def twenty_of_each(redis: "Redis", url: str) -> None:
    """Let 20 wait for a worker of each kind, of which none is there; one more is dead."""
    jobs, now = JobKeys(), time.time()
    async with Lists(url) as lists:
        await lists["shop:orders"].push_many(map(str, range(20)))
        async for _ in lists["shop:orders"].messages(prefetch=1):
            assert await workers(redis, "shop:orders") == 1
            break
    await redis.rpush("shop:rejects:dead", "letter")
    await redis.xgroup_create(jobs.stream("resize"), jobs.group("thumbs"), "0", mkstream=True)
    said = json.dumps({"prefix": jobs.prefix, "group": "thumbs", "streams": ["resize"]})
    await redis.hset("shop:thumbs:policy", mapping={"keeper": "worker", "jobs": said})
    async with Jobs(url) as client:
        for number in range(20):
            await client.producer().send("resize", {"number": number})
    await redis.xadd(jobs.dead("resize"), {"job": "7"})
    async with Bus(url) as bus:
        queue = bus.queue("calls")
        await queue.attach(ttl=300)
        for number in range(20):
            await queue.push(str(number))
    await redis.hset("queue:policy", "keeper", "hqueue")
    keys = Keys("queue")
    for number in range(20):
        await redis.hset(keys.queue("anna/resize", "tasks"), str(number), json.dumps({"added": now - 60 + number}))
        for part in ("ready", "order"):
            await redis.zadd(keys.queue("anna/resize", part), {str(number): number})
    await redis.hset("site:metrics:outbox", mapping={"outgoing": 20, "incoming": 0, "dead": 1})
    end = {"key": "shop:events", "role": "events", "use": "reads", "kind": "stream"}
    shape = {"service": "pipeline", "ends": [end], "watched": [], "watches": []}
    await redis.set("archive:shape", json.dumps(shape))
    await redis.hset("shop:metrics:events", "count", 120)
    await redis.hset("archive:metrics:pipeline", mapping={"count": 100, "at": int(now) - 100})
    await redis.xadd("shop:events", {"first": 1, "count": 100}, id=f"{int(now - 200) * 1000}-0")
    await redis.xadd("shop:events", {"first": 101, "count": 20}, id=f"{int(now - 50) * 1000}-0")


async def workers(redis: "Redis", name: str) -> int | None:
    found = await waiting_at(redis, {})
    return next(each.workers for each in found[""] if each.queue == name)


FOUND = {
    ("lists", "shop:orders", ""): ("shop", 20, None, 0),
    ("lists", "shop:rejects:dead", ""): ("shop", None, 1, None),
    ("jobs", "resize", "thumbs"): ("shop:thumbs", 20, 1, 0),
    ("bus", "calls", ""): ("shop", 20, None, 0),
    ("hqueue", "anna/resize", ""): ("queue", 20, None, 0),
    ("outbox", "outgoing", ""): ("site", 20, 1, 0),
    ("pipeline", "shop:events", ""): ("archive", 20, None, 0),
}
"""Namespace, how many wait, dead ones and workers, by kind, name and group."""


async def queues_of(redis: "Redis", url: str, watch: Sequence[str] = WATCHED) -> Queues:
    """Return what a monitor has that has searched once."""
    queues = Queues(Settings(redis=url, redis_namespace="monitor", watch=[*watch]), redis)
    await queues.look()
    return queues


async def scraped(redis: "Redis", queues: Queues, watch: Sequence[str] = WATCHED) -> Scrape:
    async def read(names: Sequence[str]) -> list[NamespaceState]:
        return await queues.add_to(await read_states(redis, redis, names))

    return await of_exporter(redis, *watch, "monitor", read=read)


async def test_what_waits_for_a_worker_of_each_kind_is_exported(redis: Redis, redis_url: str) -> None:
    await twenty_of_each(redis, redis_url)
    await redis.zadd("monitor:seen", {"shop:orders": time.time()})
    found = await scraped(redis, await queues_of(redis, redis_url))
    for (kind, queue, group), (namespace, waiting, dead, alive) in FOUND.items():
        labels = {"namespace": namespace, "kind": kind, "queue": queue}
        assert found("queue_waiting", **labels, group=group) == waiting, labels
        assert found("queue_workers", **labels, group=group) == alive, labels
        assert found("queue_dead", **labels) == dead, labels
    ages = {
        each: found("queue_oldest_seconds", **each_labels(each)) for each in FOUND if each[0] in ("hqueue", "pipeline")
    }
    assert ages == {each: Span(0, PATIENCE) + age for each, age in zip(ages, (60, 50), strict=True)}


def each_labels(each: tuple[str, str, str]) -> dict[str, str]:
    kind, queue, group = each
    return {"namespace": FOUND[each][0], "kind": kind, "queue": queue, "group": group}


async def test_what_takes_longer_to_read_than_a_scrape_waits_is_shown_by_a_later_one(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await twenty_of_each(redis, redis_url)
    await redis.zadd("monitor:seen", {"shop:orders": time.time()})
    queues, states = await queues_of(redis, redis_url), await read_states(redis, redis, WATCHED)
    monkeypatch.setattr(module, "READ_SECONDS", 0)
    with capture_logs() as logs:
        first = await queues.add_to(states)

        async def is_shown() -> bool:
            return {row.queue for each in await queues.add_to(states) for row in each.queues} > {"resize", "calls"}

        await eventually(is_shown)
        await queues.close()
    assert not any(each.queues for each in first)
    assert logs == []


async def test_a_read_that_is_given_up_is_silent(redis: Redis, redis_url: str) -> None:
    await twenty_of_each(redis, redis_url)
    names = await find(redis, [])
    with capture_logs() as logs:
        for turns in range(200):
            reading = asyncio.create_task(read_waiting(redis, names, {}))
            for _ in range(turns):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await redis.ping()
    assert logs == []


async def test_keys_of_others_are_no_lists(redis: Redis, redis_url: str) -> None:
    for name in ("sidekiq", "shop"):
        await redis.rpush(name, "a")
    await redis.sadd("sidekiq:consumers", "a")
    await redis.hset("shop:consumers", "a", 1)
    assert await waiting_at(redis, {}) == {}


async def test_a_consumer_that_is_gone_is_no_worker_though_others_remember_it(redis: Redis) -> None:
    ahead = (time.time() + 100) * 1e6
    await redis.rpush("orders", "a")
    await redis.zadd("orders:consumers", {"dead": ahead, "living": ahead})
    await redis.hset("orders:consumers:steps", mapping={"dead": "gone:17", "living": "7 idle"})
    [row] = (await waiting_at(redis, {}))[""]
    assert (row.queue, row.waiting, row.workers) == ("orders", 1, 1)


async def test_a_list_is_remembered_while_something_waits_and_forgotten_a_day_after(
    redis: Redis, redis_url: str
) -> None:
    async with Lists(redis_url) as lists:
        await lists["orders"].push_many(["1", "2"])
        async for _ in lists["orders"].messages(prefetch=1):
            await queues_of(redis, redis_url)
            break
    assert not await redis.exists("orders:consumers")
    found = await scraped(redis, await queues_of(redis, redis_url))
    labels = {"namespace": "shop", "kind": "lists", "queue": "orders", "group": ""}
    assert (found("queue_waiting", **labels), found("queue_workers", **labels)) == (2, 0)
    await redis.delete("orders")
    await redis.zadd("monitor:seen", {"orders": time.time() - 86_401})
    await queues_of(redis, redis_url)
    found = await scraped(redis, await queues_of(redis, redis_url))
    assert found("queue_waiting", **labels) is None


async def test_status_and_a_map_show_what_waits_too(redis: Redis, redis_url: str) -> None:
    await twenty_of_each(redis, redis_url)
    for name in WATCHED:
        await redis.hset(f"{name}:lists", "in", "in")
    await redis.zadd("shop:seen", {"shop:orders": time.time()})
    status = (await penstock("status", "--json", redis=redis_url)).json["queues"]
    assert rows(status) >= FOUND_ROWS
    of_one = await penstock("status", "shop:thumbs", redis=redis_url)
    assert re_row(of_one.text, "resize") == ["jobs", "resize", "thumbs", "20", "0"]


@pytest.mark.slow
async def test_a_map_shows_what_waits(redis: Redis, redis_url: str) -> None:
    await twenty_of_each(redis, redis_url)
    for name in ("shop:thumbs", "queue", "site"):
        await redis.hset(f"{name}:lists", "in", "in")
        await redis.set(f"{name}:shape", json.dumps({"service": name, "ends": [], "watched": [], "watches": []}))
    found = (await penstock("map", "--live", "--once", "--json", redis=redis_url)).json["queues"]
    expected = {each for each in FOUND_ROWS if each[0] in ("jobs", "bus", "hqueue", "outbox")}
    assert expected <= rows(found)
    text = (await penstock("map", "--live", "--once", redis=redis_url)).text
    assert "jobs resize (thumbs)  20 waiting, 1 dead, oldest" in text
    assert "hqueue anna/resize  20 waiting, oldest 1 min" in text


FOUND_ROWS = {(kind, queue, group, *rest) for (kind, queue, group), (_, *rest) in FOUND.items()}


def rows(found: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {tuple(each[name] for name in ("kind", "queue", "group", "waiting", "dead", "workers")) for each in found}


def re_row(text: str, word: str) -> list[str]:
    return next(line.replace("│", " ").split() for line in text.splitlines() if word in line)[:5]


async def test_a_monitor_reads_all_of_it_with_the_rights_that_acl_prints(redis: Redis, redis_url: str) -> None:
    await twenty_of_each(redis, redis_url)
    await redis.zadd("monitor:seen", {"shop:orders": time.time()})
    settings = Settings(redis=redis_url, redis_namespace="monitor", watch=[*WATCHED])
    words = settings.rights()[redis_url].line("looks", "pw").split()
    await redis.execute_command(*[word.strip('"').replace("\\\\", "\\") for word in words])
    await redis.execute_command("ACL", "LOG", "RESET")
    try:
        async with Redis.from_url(redis_url.replace("://", "://looks:pw@")) as user:
            found = await scraped(user, await queues_of(user, redis_url))
    finally:
        await redis.execute_command("ACL", "DELUSER", "looks")
    refused = {each[b"object"] for each in await redis.execute_command("ACL", "LOG")}
    assert refused - {b"client|setinfo"} == set()
    for (kind, queue, group), (namespace, waiting, dead, _) in FOUND.items():
        labels = {"namespace": namespace, "kind": kind, "queue": queue}
        assert found("queue_waiting", **labels, group=group) == waiting, labels
        assert found("queue_dead", **labels) == dead, labels


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus (Debian: prometheus)")
async def test_the_alerts_fire_in_prometheus_for_a_stopped_worker_of_each_kind(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    rules = yaml.safe_load((ROOT / "compose" / "monitoring" / "prometheus-rules.yaml").read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["for"] = "2s"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    exports, answers = free_port(), free_port()
    jobs = [{"job_name": "monitor", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{exports}"]}]}]
    settings = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": jobs}
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(settings | {"rule_files": ["rules.yaml"]}))
    monitor = {"redis_namespace": "monitor", "watch": [*WATCHED], "metrics_port": exports, "metrics_host": "127.0.0.1"}
    words = [f"--config.file={tmp_path}/prometheus.yaml", f"--storage.tsdb.path={tmp_path}/data"]
    listen = f"--web.listen-address=127.0.0.1:{answers}"
    with Service("monitor", tmp_path / "log", redis=redis_url, **monitor):
        async with Lists(redis_url) as lists:  # the monitor has to see the consumer before it goes
            await lists["shop:orders"].push("first")
            async for _ in lists["shop:orders"].messages(prefetch=1):
                await eventually(lambda: redis.exists("monitor:seen"))
                break
        await redis.delete("shop:orders")
        await twenty_of_each(redis, redis_url)
        expected = {("PenstockNoWorker", kind, queue) for kind, queue, _ in FOUND if not queue.endswith(":dead")}
        expected |= {("PenstockQueueDead", kind, queue) for (kind, queue, _), (_, _, dead, _) in FOUND.items() if dead}

        async def all_fire() -> bool:
            return await asyncio.to_thread(firing, answers) >= expected

        prometheus = await asyncio.create_subprocess_exec("prometheus", *words, listen, stderr=DEVNULL)
        try:
            await eventually(all_fire)
        finally:
            prometheus.terminate()
            await prometheus.wait()


def firing(port: int) -> set[tuple[str, str, str]]:
    """Return name, kind and queue of the alerts that fire."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/alerts") as answer:
            alerts = json.load(answer)["data"]["alerts"]
    except OSError:
        return set()
    fire = [each["labels"] for each in alerts if each["state"] == "firing"]
    return {(each["alertname"], each.get("kind", ""), each.get("queue", "")) for each in fire}


async def test_queues_of_one_caller_of_the_bus_are_not_shown(redis: Redis) -> None:
    await redis.hset("bus:queue:service:a:replyTo:1:metadata", "ttl", 60)
    assert (await find(redis, [])).queues == []


async def test_no_more_are_read_than_a_bound_and_that_is_said(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(lists=[f"list:{number:04}" for number in range(MAX_READ + 2)])
    found = await read_waiting(redis, names, {})
    *read, rest = found[""]
    assert [each.queue for each in read] == names.lists[:MAX_READ]
    assert (rest.queue, rest.unread, rest.waiting) == ("2 more, not read", 2, None)
    queues = await queues_of(redis, redis_url)
    monkeypatch.setattr(queues, "_names", names)
    exported = await scraped(redis, queues)
    assert exported("queues_unread", namespace="shop", kind="lists") == 2
    assert exported("queue_waiting", namespace="shop", kind="lists", queue=rest.queue, group="") is None


async def test_what_a_user_may_not_read_is_left_out(redis: Redis, redis_url: str) -> None:
    await twenty_of_each(redis, redis_url)
    await redis.execute_command("ACL", "SETUSER", "looks", "reset", "on", ">pw", "~shop*", "+@all", "-pubsub|numsub")
    try:
        async with Redis.from_url(redis_url.replace("://", "://looks:pw@")) as user:
            await redis.zadd("shop:seen", {"shop:orders": 1, "elsewhere": 1})
            found = await waiting_at(user, dict.fromkeys(("shop", "shop:thumbs"), 0))
    finally:
        await redis.execute_command("ACL", "DELUSER", "looks")
    kinds = {(each.kind, each.queue): each.waiting for some in found.values() for each in some}
    assert kinds["lists", "shop:orders"] == 20
    assert {*kinds} >= {("lists", "shop:orders"), ("lists", "shop:rejects:dead")}
    assert not any("elsewhere" in queue or kind != "lists" for kind, queue in kinds)


@pytest.mark.parametrize(
    ("counts", "is_used", "is_left"),
    [((0, 0, 0), False, False), ((0, 0, 1), True, False), ((0, 1, 0), True, True), ((1, 0, None), True, False)],
)
def test_what_is_in_hand_of_nobody_is_left(counts: tuple[int, int, int | None], is_used: bool, is_left: bool) -> None:
    waiting, in_hand, workers = counts
    row = Waiting("bus", "a", waiting=waiting, in_hand=in_hand, workers=workers)
    assert (row.is_used, row.is_left) == (is_used, is_left)
