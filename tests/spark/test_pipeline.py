"""The pipeline as a service in this process: every event is archived once, and failures say what to do."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from redis import Redis
from structlog.testing import capture_logs

from common.process import Process
from penstock.base.errors import SettingsError, Unsuitable
from penstock.base.keys import Keys
from penstock.spark.reasons import SLOW_PYTHON
from penstock.testing.server import EmbeddedServer
from services.pipeline.service import Pipeline
from services.pipeline.settings import Settings
from tests.spark import SHOP, SparkSession, add_events
from tests.spark.pipelines import PIPE, TIMEOUT_SECONDS, archived, events_in, malformed_in
from tests.support.harness import until

Serve = Callable[..., AbstractAsyncContextManager[Any]]
PAID: Any = {
    "first": 1,
    "count": 1,
    "event": "registered",
    "id": 9,
    "xid": "order-9",
    "at": 86_400_000,
    "queue": "out",
    "service": 1,
    "attempt": 1,
    "seconds": "",
    "message": b'{"card": "4111", "sum": 7}',
}
"""An event with its message."""


async def met(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(until, condition, TIMEOUT_SECONDS)


async def stopped(service: "asyncio.Task[int]") -> int:
    """Order it to stop, as the system would, and return its exit status."""
    assert not service.done()
    signal.raise_signal(signal.SIGTERM)
    return await service


def reason_of(log: list[Any]) -> str:
    """Return the reason of the failure."""
    return str(next(line["reason"] for line in log if line["event"] == "failed"))


@pytest.fixture
def serve(spark: "SparkSession", redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Return what runs the service in this process, with the session of all tests, and keeps its log."""
    monkeypatch.setattr("services.pipeline.service.session", lambda *_, **__: spark)
    monkeypatch.setattr("services.pipeline.service.stop", lambda _: None)

    @asynccontextmanager
    async def serving(**settings: Any) -> AsyncIterator[Any]:
        usual = {"redis": redis_url, "redis_namespace": "pipe", "watch": ["shop", "shop:*"], "lease_expire": 2}
        made = Settings(**{**usual, "archive": str(tmp_path / "archive"), **settings})
        pipeline = Pipeline()
        with capture_logs() as log:
            service = asyncio.create_task(Process(made, pipeline.run, pipeline.lifespan).serve())
            try:
                yield service, log
            finally:
                service.cancel()
                await asyncio.wait({service})

    return serving


def as_printed(redis: Any, url: str) -> str:
    """Create a user with the rights that ``penstock acl`` prints, and no others. Return its URL."""
    settings = Settings(redis=url, redis_namespace="pipe", watch=["shop", "shop:*"], archive="/nowhere")
    redis.execute_command(*settings.rights()[url].line("pipeline", "pw").split())
    redis.execute_command("ACL", "LOG", "RESET")
    return url.replace("redis://", "redis://pipeline:pw@")


@pytest.mark.parametrize("scheme", ["file", "viewfs"])
async def test_events_of_all_namespaces_are_archived_counted_and_a_stop_ends_it(
    spark: "SparkSession", shop: Any, redis_url: str, serve: Serve, tmp_path: Path, scheme: str
) -> None:
    """Run as a user with no more rights than it needs; with a file system that only Java knows, Java writes."""
    (tmp_path / "archive").mkdir()
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(f"fs.viewfs.mounttable.default.link.{tmp_path}", f"file://{tmp_path}")
    add_events(shop, 300)
    shop.xadd("shop:paid:events", PAID)
    shop.hset("shop:a:policy", "messageTimeout", "0")
    shop.xadd("shop:a:events", {"event": "note", "id": "y", "at": 86_400_000, "seconds": "1e300"})
    url, place = as_printed(shop, redis_url), f"{scheme}://{tmp_path}/archive"
    async with serve(redis=url, archive=place, discover=1, payloads=True, mask=["$.card"]) as (service, log):
        await met(lambda: archived(shop) == 302)
        add_events(shop, 50, keys=Keys("shop:new"))
        shop.xadd("shop:events", {"event": "done", "id": "77", "at": 86_400_000, "node": "a"})
        shop.xadd("shop:events", {"event": "", "id": "78"})
        shop.xadd("shop:events", {"temperature": 20})
        for at in (253_402_300_800_000, -99_999_999_999_999, 2**63 - 1):
            shop.xadd("shop:a:events", {"event": "note", "id": "z", "at": at})
        await met(lambda: archived(shop) == 353)
        await met(lambda: shop.hget(PIPE.metric("pipeline"), "malformed") == b"5")
        assert shop.hget(PIPE.instance("1"), "service") == b"pipeline"
        shop.delete(PIPE.instance("1"))
        assert await service == 0
    assert not [line for line in log if line["log_level"] not in ("info", "warning")]
    refused = [each["object"] for each in shop.acl_log() if "setinfo" not in each["object"]]
    assert refused == []
    rows = events_in(tmp_path)
    assert [(row["namespace"], row["id"]) for row in rows] == [
        ("shop", "77"),
        *(("shop", str(id)) for id in range(1, 301)),
        ("shop:a", "y"),
        *(("shop:new", str(id)) for id in range(1, 51)),
        ("shop:paid", "9"),
    ]
    assert {row["message"] for row in rows} == {None, b'{"card":"***","sum":7}'}
    assert {str(row["date"]) for row in rows} == {"2023-11-14", "1970-01-02"}
    assert [row["extra"] for row in rows if row["extra"]] == ['{"node": "a"}']
    aside = sorted((row["namespace"], row["malformed"]) for row in malformed_in(tmp_path))
    assert [namespace for namespace, _ in aside] == ["shop", "shop", *["shop:a"] * 3]
    assert aside[:2] == [("shop", '{"event": "", "id": "78"}'), ("shop", '{"temperature": "20"}')]


async def test_the_last_events_are_published_though_no_more_come(shop: Any, serve: Serve, tmp_path: Path) -> None:
    add_events(shop, 300)
    async with serve(merge_every=1) as (service, _):
        await met(lambda: archived(shop) == 300)
        events = tmp_path / "archive/events"
        await met(lambda: sum(pq.read_metadata(file).num_rows for file in events.rglob("*.parquet")) == 300)
        assert await stopped(service) == 0


async def test_a_server_that_restarts_is_waited_for(tmp_path: Path, serve: Serve) -> None:
    with EmbeddedServer(aof=True) as server, Redis.from_url(server.url) as redis:
        add_events(redis, 100)
        redis.xadd("shop:paid:events", PAID)
        async with serve(redis=server.url) as (service, log):
            await met(lambda: archived(redis) == 101)
            await asyncio.to_thread(server.stop)
            await met(lambda: [line for line in log if line["event"] == "waiting"])
            await asyncio.to_thread(server.start)
            add_events(redis, 100, start=101)
            await met(lambda: archived(redis) == 201)
            assert await stopped(service) == 0
    rows = events_in(tmp_path)
    assert Counter(int(row["id"]) for row in rows) == Counter([*range(1, 201), 9])
    assert {row["message"] for row in rows} == {None}, "no payload is archived unless that was asked for"


async def test_a_python_that_starts_too_slowly_for_spark_is_waited_for(
    spark: "SparkSession", shop: Any, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark gives a Python of its own 10 s to start, less than it takes on an overloaded machine."""
    add_events(shop, 10)
    slow, late = tmp_path / "python", tmp_path / "was-late"
    be_late = f'case "$*" in *source_runner*) [ -e {late} ] || {{ touch {late}; sleep 12; }};; esac'
    slow.write_text(f'#!/bin/sh\n{be_late}\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(spark.sparkContext, "pythonExec", str(slow))
        async with serve() as (service, log):
            await met(lambda: any(line["event"] == "resumed" for line in log))
            await met(lambda: archived(shop) == 10)
            assert await stopped(service) == 0
    assert late.exists()
    assert [line["reason"] for line in log if line["event"] == "waiting"] == [SLOW_PYTHON]
    assert not any(line["event"] == "failed" for line in log)
    assert len(events_in(tmp_path)) == 10


async def test_events_trimmed_before_they_were_read_end_it_unless_allowed(
    shop: Any, serve: Serve, tmp_path: Path
) -> None:
    add_events(shop, 100)
    async with serve() as (service, _):
        await met(lambda: archived(shop) == 100)
        assert await stopped(service) == 0
    add_events(shop, 10_000, start=101, history=1_000)
    first = int(shop.xrange(SHOP.events, count=1)[0][1][b"first"])
    async with serve() as (service, log):
        assert await service == 1
    assert f"DataLost: shop:events: events 101 to {first - 1} after" in reason_of(log)
    async with serve(fail_on_data_loss=False) as (service, _):
        await met(lambda: archived(shop) == 100 + 10_100 - first + 1)
        assert await stopped(service) == 0
    assert f"events 101 to {first - 1} after" in malformed_in(tmp_path)[0]["malformed"]


async def test_an_archive_that_cannot_be_written_is_named_and_ends_it(shop: Any, serve: Serve) -> None:
    add_events(shop, 1)
    async with serve(archive="/proc/archive") as (service, log):
        assert await service == 1
    remedy = "make it writable for this user, or name another directory"
    assert reason_of(log) == f"/proc/archive cannot be written: {remedy}"


@pytest.mark.parametrize("payloads", [True, False])
async def test_messages_are_not_read_by_thousands(monkeypatch: pytest.MonkeyPatch, payloads: bool) -> None:
    """A merge of 72 messages of 10 MB, in a row group that is small when it is compressed, ran out of Java's memory."""
    tuned: dict[str, str] = {}

    def session(*_: str, **settings: str) -> None:
        tuned.update(settings)
        raise Unsuitable("enough")

    monkeypatch.setattr("services.pipeline.service.session", session)
    settings = Settings(redis="redis://h", redis_namespace="p", watch=["shop"], archive="a", payloads=payloads)
    with pytest.raises(Unsuitable, match="enough"):
        async with Pipeline().lifespan(settings):
            raise AssertionError
    assert tuned.get("spark_sql_parquet_enableVectorizedReader") == ("false" if payloads else None)


def test_invalid_settings_are_reported() -> None:
    with pytest.raises(SettingsError) as raised:
        Settings(redis="redis://h", redis_namespace="p", watch=[], trigger=-1)
    assert {problem.property for problem in raised.value.problems} == {"watch", "trigger", "archive"}
    with pytest.raises(SettingsError, match="ordered: false would let two instances write one archive: leave it out"):
        Settings(redis="redis://h", redis_namespace="p", watch=["shop"], archive="a", ordered=False)
    with pytest.raises(SettingsError, match="mask: means nothing without payloads: true"):
        Settings(redis="redis://h", redis_namespace="p", watch=["shop"], archive="a", mask=["$.card"])
    with pytest.raises(SettingsError, match=r"'card' does not begin with \$"):
        Settings(redis="redis://h", redis_namespace="p", watch=["shop"], archive="a", payloads=True, mask=["card"])
    with pytest.raises(SettingsError, match="redisNamespace: missing: expected a name of the pipeline's own"):
        Settings(redis="redis://h", watch=["shop"], archive="a")
