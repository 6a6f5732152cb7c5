"""What hqueue, jobs, the library and the web's services tell in their events, and what outbox counts, is reconciled."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.base.ports import free_port
from penstock.jobs import Jobs
from penstock.lists import Lists
from penstock.spark.reconciliation import reconcile
from tests.http.queue_service import NAMESPACE as WORK
from tests.http.queue_service import Queue, QueueService
from tests.spark import SparkSession
from tests.spark.archives import keep
from tests.support.harness import Service, eventually
from tests.support.importers import importer, write_rules
from tests.support.importers import is_ready as listens
from tests.support.shop import GROUP, STREAM, Worker, write_app
from tests.support.shop import KEYS as CLERKS

REQUESTS, JOBS, ORDERS = 20, 6, 30
ANSWER = {"status": 200, "headers": [["content-type", "text/plain"]], "body": "yes"}
DISPATCH = Keys("web:dispatch")
FAR = Keys("far:dispatch")


class Web:
    """himporter, hrouter and mdispatch; a consumer of the library answers."""

    def __init__(self, url: str, place: Path) -> None:
        self.port = free_port()
        write_rules(place / "rules.yaml", {"prefix": "/", "to": "web:api"})
        replies = {"reply_lists": '["web:importer:res:*"]'}
        lists = {"in": "web:in", "pending": "web:router:pending", "rules": place / "rules.yaml", **replies}
        tracked: dict[str, Any] = {role.strip("_"): f"web:{role.strip('_')}" for role in ("pending", "out", "res")}
        tracked |= {"in": "web:api", "redis": url, "redis_namespace": DISPATCH.namespace, **replies}
        self.importer = importer(
            url, self.port, place / "importer", redis_namespace="web:importer", out="web:in", timeout=600
        )
        self.router = Service("hrouter", place / "router", redis=url, redis_namespace="web:router", **lists)
        self.dispatch = Service("mdispatch", place / "dispatch", **tracked)
        self.url = url

    async def ask(self, *numbers: int) -> None:
        """Ask once for each of ``numbers`` and get the answers."""
        async with Lists(self.url) as lists, httpx.AsyncClient(timeout=None) as client:
            answering = asyncio.create_task(self._answer(lists, len(numbers)))
            asked = [client.get(f"http://127.0.0.1:{self.port}/{number}") for number in numbers]
            assert [reply.text for reply in await asyncio.gather(*asked)] == ["yes"] * len(numbers)
            await answering

    async def _answer(self, lists: Lists, many: int) -> None:
        async for request in lists.work(DISPATCH.namespace).requests():
            with request:
                request.answer(ANSWER)
            many -= 1
            if not many:
                return


class Sites:
    """Two outboxes. What comes to the far one is tracked by an mdispatch and a monitor; a consumer does it."""

    def __init__(self, url: str, place: Path) -> None:
        near, far = (f"127.0.0.1:{free_port()}" for _ in range(2))
        sending = {"in": "near:in", "pending": "near:pending", "publish": "orders"}
        receiving = {"out": "far:in", "subscribe": f"orders@{near}"}
        self.near = _outbox("near", url, place, bind=near, **sending)
        self.far = _outbox("far", url, place, bind=far, **receiving)
        lists: dict[str, Any] = {"in": "far:in", "pending": "far:pending", "out": "far:work", "done": "far:done"}
        self.dispatch = Service("mdispatch", place / "far-log", redis=url, redis_namespace=FAR.namespace, **lists)
        watching: dict[str, Any] = {"redis_namespace": "far:monitor", "watch": [FAR.namespace], "metrics_port": 0}
        self.monitor = Service("monitor", place / "monitor", redis=url, **watching)
        self.url = url

    async def order(self, redis: Redis, *numbers: int) -> None:
        """Send ``numbers`` to the far site, and let them be done there."""
        await redis.lpush("near:in", *numbers)
        many = len(numbers)
        async with Lists(self.url) as lists:
            async for request in lists.work(FAR.namespace).requests():
                with request:
                    many -= 1
                if not many:
                    return


def _outbox(name: str, url: str, place: Path, **settings: Any) -> Service:
    base: dict[str, Any] = {"redis": url, "redis_namespace": f"{name}:outbox", "datadir": place / name}
    return Service("outbox", place / f"{name}-log", **base, **settings)


async def do_jobs(redis: Redis, url: str) -> None:
    """Let clerks do ``JOBS`` jobs, of which one fails at both attempts."""
    async with Jobs(url) as jobs:
        producer = jobs.producer()
        for verb in ("fail", *[""] * (JOBS - 1)):
            await producer.send(STREAM, {"in": verb.encode()}, wait_for=[GROUP])
    await eventually(lambda: are_counted(redis, CLERKS, done=JOBS - 1, dead=1))


async def are_counted(redis: Redis, keys: Keys, **counts: int) -> bool:
    return all([int(await redis.hget(keys.metric(name), "count") or 0) == many for name, many in counts.items()])


@pytest.fixture
async def services(redis: Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[tuple[Web, Queue, Sites]]:
    """Start all services and wait until they serve."""
    write_app(tmp_path, "one")
    web, tasks, sites = (
        Web(redis_url, tmp_path),
        QueueService(redis_url, tmp_path / "tasks"),
        Sites(redis_url, tmp_path),
    )
    async with AsyncExitStack() as stack:
        there = sites.near, sites.far, sites.dispatch, sites.monitor
        for each in (web.importer, web.router, web.dispatch, Worker(tmp_path, redis_url), tasks.process, *there):
            stack.enter_context(each)
        await eventually(lambda: listens(web.port))
        await eventually(tasks.is_ready)
        await eventually(lambda: have_policies(redis))
        yield web, Queue(tasks), sites


async def have_policies(redis: Redis) -> bool:
    found: int = await redis.exists(DISPATCH.policy, CLERKS.policy, Keys(WORK).policy, FAR.policy)
    return found == 4


async def test_all_services_reconcile_and_what_is_taken_away_is_missing(
    spark: "SparkSession", redis: Redis, redis_url: str, services: tuple[Web, Queue, Sites], tmp_path: Path
) -> None:
    web, tasks, sites = services
    await asyncio.to_thread(give_tasks, tasks)
    await asyncio.gather(web.ask(*range(REQUESTS)), do_jobs(redis, redis_url), sites.order(redis, *range(ORDERS)))
    await eventually(lambda: are_counted(redis, DISPATCH, done=REQUESTS))
    await eventually(lambda: are_counted(redis, FAR, done=ORDERS))
    for each in (web.dispatch, sites.dispatch):
        each.stop()
    await redis.lpush("near:in", ORDERS)
    await eventually(lambda: redis.llen("far:in"))
    await redis.lpush("web:in", json.dumps({"id": "1", "method": "GET", "path": "/", "replyTo": "web:importer:res:1"}))
    await eventually(lambda: redis.llen("web:api"))
    keep(redis_url, tmp_path)
    found = await reconcile(redis, spark, str(tmp_path), patience=0)
    assert found.findings == []
    rows = {leg.name: row for leg, row in zip(found.legs, found.rows(), strict=True)}
    assert {name: {end: many for end, many in row.items() if many} for name, row in rows.items()} == {
        CLERKS.namespace: {"accepted": JOBS, "done": JOBS - 1, "dead": 1},
        DISPATCH.namespace: {"accepted": REQUESTS + 1, "done": REQUESTS, "waiting": 1},
        FAR.namespace: {"accepted": ORDERS + 1, "done": ORDERS, "waiting": 1},
        WORK: {"accepted": 4, "done": 1, "in flight": 3},
    }
    await redis.rpop("web:api")
    await redis.rpop("far:in")
    member: Any
    (member,) = await redis.zrange(Keys(WORK).delayed, 0, -1)
    await redis.zrem(Keys(WORK).delayed, member)
    found = await reconcile(redis, spark, str(tmp_path), live=True, patience=0)
    assert {(each.where, each.id, each.words) for each in found.findings} == {
        (WORK, member.decode().partition(" ")[0], "missing: it has not ended, and is neither in flight nor delayed"),
        (
            "web:router -> web:api -> web:dispatch",
            "",
            f"1 missing of {REQUESTS + 1} that were given, and no other leg tells which",
        ),
        (
            "far:outbox -> far:in -> far:dispatch",
            "",
            f"1 missing of {ORDERS + 1} that were given, and no other leg tells which",
        ),
    }


def give_tasks(tasks: Queue) -> None:
    """Let one task be done; one is held, one waits and one is delayed."""
    tasks.add("done")
    assert tasks.ack(taskToken=tasks.fetched("anna")["taskToken"], result=1) == 200
    tasks.add("held")
    tasks.fetched("anna", timeToRecover=3_600)
    tasks.add("waits")
    tasks.add("later", delay=600)
