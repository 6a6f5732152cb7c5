"""Scrape of an exporter as by Prometheus, parsed by the client library's own parsers."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPConnection
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from redis.asyncio import Redis

from penstock.core.metrics import METRICS
from penstock.inspect.waiting import Waiting
from services.monitor.exporter import Exporter
from services.monitor.state import NamespaceState, read_states
from tests.support.harness import PATIENCE

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        compressed = self.headers.get("content-encoding") == "gzip"
        return (gzip.decompress(self.body) if compressed else self.body).decode()

    @property
    def families(self) -> dict[str, Metric]:
        parser = openmetrics if "openmetrics" in self.headers["content-type"] else plain
        return {family.name: family for family in parser(self.text)}


class Scrape:
    """Samples of one response of ``/metrics``."""

    def __init__(self, answer: Answer) -> None:
        assert answer.status == 200, answer
        self.families = answer.families
        samples = [sample for family in self.families.values() for sample in family.samples]
        self._samples = {(each.name, frozenset(each.labels.items())): each.value for each in samples}
        assert len(self._samples) == len(samples), "a series more than once"

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return the value of a series, by default of namespace ``demo``; None if it does not exist."""
        return self._samples.get((f"penstock_{name}", frozenset(({"namespace": "demo"} | labels).items())))

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(labels)[label] for each, labels in self._samples if each == f"penstock_{name}"}

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self._samples}


@asynccontextmanager
async def exporting(
    redis: "Redis", *namespaces: str, service_redis: "Redis | None" = None, **more: Any
) -> AsyncIterator[Exporter]:
    settings: dict[str, Any] = {"port": 0, "host": "127.0.0.1", "why_not_ready": lambda: None}
    settings |= {"read": partial(read_states, redis, service_redis or redis)} | more
    async with Exporter(namespaces=namespaces or ("demo",), **settings) as exporter:
        yield exporter


async def get(exporter: Exporter, path: str, host: str = "127.0.0.1", **headers: str) -> Answer:
    return await asyncio.to_thread(answer_of, exporter, path, host, **headers)


async def scrape(exporter: Exporter, **headers: str) -> Scrape:
    return Scrape(await get(exporter, "/metrics", **headers))


async def scraped(redis: "Redis", *namespaces: str, **more: Any) -> Scrape:
    """Return the result of one scrape of a new exporter."""
    async with exporting(redis, *namespaces, **more) as exporter:
        return await scrape(exporter)


def answer_of(exporter: Exporter, path: str, host: str = "127.0.0.1", **headers: str) -> Answer:
    """Return what ``get`` does; block meanwhile."""
    connection = HTTPConnection(host, exporter.port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


async def policy(redis: "Redis", namespace: str = "demo", **more: Any) -> None:
    fields: dict[Any, Any] = {"messageTimeout": 10, "out": "out", "source": "in"}
    await redis.hset(f"{namespace}:policy", mapping=fields | more)


async def message(redis: "Redis", id: int, *, age: float, due_in: float = 5, **more: Any) -> None:
    """Write a message in flight, registered ``age`` seconds ago, as the newest of the list."""
    now = time.time()
    record: dict[Any, Any] = {"timestamp": f"{now - age:.3f}", "deadline": f"{now + due_in:.3f}"}
    record |= {"attempt": 1, "message": "hello"} | more
    await redis.hset(f"demo:message:{id}", mapping=record)
    await redis.lpush("demo:message:ids", id)
    await redis.zadd("demo:message:deadlines", {str(id): now + due_in})


async def instance(
    redis: "Redis", id: int, service: str = "mdispatch", *, renewed: float = 3, ns: str = "demo"
) -> None:
    now = int(time.time())
    fields: dict[Any, Any] = {"host": f"host{id}", "pid": 7, "service": service, "version": "1"}
    fields |= {"started": now - 100, "renewed": now - renewed}
    await redis.hset(f"demo:{id}", mapping=fields)
    await redis.lpush("demo:ids", id)


async def series(redis: "Redis") -> dict[str, set[str]]:
    """Return all series that an exporter has, each name with its labels."""
    await policy(redis)
    await message(redis, 1, age=1)
    await instance(redis, 1)
    await redis.hset("demo:1", "waiting", "full: out")
    await redis.hset("demo:lists", "in", "in")
    await redis.hset("demo:link", mapping={"state": "up", "waiting": 0, "oldest": 0, "rtt": 0.1})
    for metric in METRICS:
        if metric.hash:
            await redis.hset(f"demo:metrics:{metric.hash}", mapping=dict.fromkeys(metric.fields.values(), 1))
    row = Waiting("jobs", "resize", "thumbs", 20, 1, 5.0, 2, 0)

    async def read(names: Sequence[str]) -> list[NamespaceState]:
        return [replace(each, queues=[row]) for each in await read_states(redis, redis, names)]

    found = await scraped(redis, read=read)
    samples = [sample for family in found.families.values() for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}
