"""The pipeline as a service: every event in the archive once, whatever dies, and clear words where it cannot go on."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from common.settings.fields import YEAR
from penstock.errors import SettingsError
from penstock.keys import Keys
from penstock.testing.server import EmbeddedServer
from services.pipeline.settings import Settings
from tests.demos import ROOT, environment
from tests.harness import Service, until
from tests.spark import (
    SHOP,
    pytestmark,  # noqa: F401
    tell,
)

KILLS = int(os.environ.get("PENSTOCK_SPARK_ROUNDS", "2"))
"""How often the pipeline is killed: CONTRIBUTING.md."""
PATIENCE = 300
"""Seconds until what is waited for must have happened: a Spark starts, beside others."""
PIPE = Keys("pipe")
Start = Callable[..., Service]
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
"""An event that carries its message."""


@pytest.fixture
def shop(redis_url: str) -> Iterator[Any]:
    with Redis.from_url(redis_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def pipeline(redis_url: str, tmp_path: Path) -> Start:
    """One that is to be started, with the archive in ``tmp_path``."""

    def made(**settings: object) -> Service:
        usual = {"redis": redis_url, "redis_namespace": "pipe", "watch": '["shop", "shop:*"]', "lease_expire": 2}
        return Service("pipeline", tmp_path / "log", **{**usual, "archive": tmp_path / "archive", **settings})

    return made


def archived(redis: Any) -> int:
    return int(redis.hget(PIPE.metric("pipeline"), "count") or 0)


def events_in(place: Path) -> list[dict[str, Any]]:
    """Every row of the archive, by namespace and number."""
    rows = table(place / "archive/events")
    return sorted(rows, key=lambda row: (row["namespace"], row["number"] or 0, row["entry"]))


def as_printed(redis: Any, url: str) -> str:
    """The URL of a user with the rights that ``penstock acl`` prints, and no others."""
    settings = Settings(redis=url, redis_namespace="pipe", watch=["shop", "shop:*"], archive="/nowhere")
    redis.execute_command(*settings.rights()[url].line("pipeline", "pw").split())
    redis.execute_command("ACL", "LOG", "RESET")
    return url.replace("redis://", "redis://pipeline:pw@")


def test_events_of_all_namespaces_are_archived_counted_and_a_stop_ends_it(
    shop: Any, redis_url: str, pipeline: Start, tmp_path: Path
) -> None:
    """As a user with no more rights than it needs."""
    tell(shop, 300)
    shop.xadd("shop:paid:events", PAID)
    url = as_printed(shop, redis_url)
    with pipeline(redis=url, discover=1, payloads="true", mask='["$.card"]') as service:
        until(lambda: archived(shop) == 301, PATIENCE)
        tell(shop, 50, keys=Keys("shop:new"))
        shop.xadd("shop:events", {"event": "done", "id": "77", "at": 86_400_000, "node": "a"})
        shop.xadd("shop:events", {"event": "", "id": "78"})
        shop.xadd("shop:events", {"temperature": 20})
        until(lambda: archived(shop) == 352, PATIENCE)
        until(lambda: shop.hget(PIPE.metric("pipeline"), "malformed") == b"2", PATIENCE)
        assert shop.hget(PIPE.instance("1"), "service") == b"pipeline"
        shop.delete(PIPE.instance("1"))
        assert service.wait(60) == 0
        assert "Traceback" not in service.said()
    refused = [each["object"] for each in shop.acl_log() if "setinfo" not in each["object"]]
    assert refused == []
    rows = events_in(tmp_path)
    assert [(row["namespace"], row["id"]) for row in rows] == [
        ("shop", "77"),
        *(("shop", str(id)) for id in range(1, 301)),
        *(("shop:new", str(id)) for id in range(1, 51)),
        ("shop:paid", "9"),
    ]
    assert {row["message"] for row in rows} == {None, b'{"card":"***","sum":7}'}
    assert {str(row["date"]) for row in rows} == {"2023-11-14", "1970-01-02"}
    assert [row["extra"] for row in rows if row["extra"]] == ['{"node": "a"}']
    aside = sorted((row["namespace"], row["malformed"]) for row in malformed_in(tmp_path))
    assert aside == [("shop", '{"event": "", "id": "78"}'), ("shop", '{"temperature": "20"}')]


def malformed_in(place: Path) -> list[dict[str, Any]]:
    return table(place / "archive/_malformed")


def table(place: Path) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds

    rows: list[dict[str, Any]] = ds.dataset(place, partitioning="hive").to_table().to_pylist()
    return rows


def test_killed_at_any_moment_nothing_is_lost_or_doubled(shop: Any, pipeline: Start, tmp_path: Path) -> None:
    rng, told, runs = random.Random(), 6_000 * (KILLS + 1), [*range(KILLS + 1)]
    usual = dict.fromkeys(["keep_minutes", "keep_hours", "keep_days"], 10 * YEAR)
    usual |= {"merge_every": 1, "trigger": 0, "max_events": 1_000}

    def tell_more() -> None:
        before = archived(shop)
        tell(shop, 6_000, start=6_000 * runs.pop(0) + 1, each=rng.choice([10, 100]))
        until(lambda: archived(shop) > before, PATIENCE, every=0.002)

    for _ in range(KILLS):
        # With no lateness windows are over at once, and made anew for whatever comes next.
        with pipeline(lateness=rng.choice([0, 600]), **usual) as service:
            tell_more()
            for victim in (worker_of(service), service.pid):
                until(lambda: rng.random() < 0.02, every=0.02)
                if victim:
                    os.kill(victim, signal.SIGKILL)
            service.wait()
    with pipeline(lateness=0, **usual) as service:
        tell_more()
        until(lambda: archived(shop) == told, PATIENCE)
        until(lambda: final(tmp_path) == told, PATIENCE)
        until(lambda: '"merged"' in service.said(), PATIENCE)
        assert service.stop(60) == 0
    assert Counter(int(row["id"]) for row in events_in(tmp_path)) == Counter(range(1, told + 1))
    micros = sum(id * 100_000 for id in range(1, told + 1))
    for window, size in (("2023-11-14T22:13", "minute"), ("2023-11-14T22", "hour"), ("2023-11-14", "day")):
        found = shop.hmget(f"shop:rollup:{window}", "count", "done:out:count", "done:out:sum", "done:out:max")
        assert [float(value) for value in found] == [told, told, micros / 1e6, told / 10]
        (row,) = table(tmp_path / f"archive/rollups/size={size}")
        assert (row["count"], row["micros"], row["max"]) == (told, micros, told / 10)


def worker_of(service: Service) -> int | None:
    """One of the processes in which Spark runs Python, if there is one."""
    for child in psutil.Process(service.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "pyspark.daemon" in child.cmdline():
                return child.pid
    return None


def final(place: Path) -> int:
    """How many events the roll-up of the day tells of, once it is there."""
    with suppress(OSError):
        return sum(row["count"] for row in table(place / "archive/rollups/size=day"))
    return 0


def test_a_server_that_restarts_is_waited_for(tmp_path: Path, pipeline: Start) -> None:
    with EmbeddedServer(aof=True) as server, Redis.from_url(server.url) as redis:
        tell(redis, 100)
        redis.xadd("shop:paid:events", PAID)
        with pipeline(redis=server.url) as service:
            until(lambda: archived(redis) == 101, PATIENCE)
            server.stop()
            until(lambda: '"waiting"' in service.said(), PATIENCE)
            server.start()
            tell(redis, 100, start=101)
            until(lambda: archived(redis) == 201, PATIENCE)
            assert service.stop(60) == 0
    rows = events_in(tmp_path)
    assert Counter(int(row["id"]) for row in rows) == Counter([*range(1, 201), 9])
    assert {row["message"] for row in rows} == {None}, "no payload is archived unless that was asked for"


def test_events_that_were_trimmed_before_they_were_read_end_it_unless_told_otherwise(
    shop: Any, pipeline: Start, tmp_path: Path
) -> None:
    tell(shop, 100)
    with pipeline() as service:
        until(lambda: archived(shop) == 100, PATIENCE)
        driver = psutil.Process(service.pid)
        asleep = [driver, *driver.children(recursive=True)]
        for process in asleep:
            process.suspend()
        tell(shop, 10_000, start=101, history=1_000)
        first = int(shop.xrange(SHOP.events, count=1)[0][1][b"first"])
        for process in asleep:
            process.resume()
        assert service.wait(PATIENCE) == 1
        assert f"DataLost: shop:events: events 101 to {first - 1} after" in service.said()
    with pipeline(fail_on_data_loss="false") as service:
        until(lambda: archived(shop) == 100 + 10_100 - first + 1, PATIENCE)
        assert service.stop(60) == 0
    assert f"events 101 to {first - 1} after" in malformed_in(tmp_path)[0]["malformed"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"archive": "/proc/archive"},
            '"reason": "/proc/archive/_checkpoint cannot be written: make it writable for this user, or name another '
            'directory"',
        ),
        (
            {"java_home": "/nowhere"},
            "there is no Java (JAVA_HOME=/nowhere): install Java 17 or newer, or set JAVA_HOME",
        ),
    ],
)
def test_what_it_cannot_do_without_is_told_and_ends_it(
    shop: Any, pipeline: Start, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], said: str
) -> None:
    if home := settings.get("java_home"):
        monkeypatch.setenv("JAVA_HOME", home)
    tell(shop, 1)
    with pipeline(**{name: value for name, value in settings.items() if name != "java_home"}) as service:
        assert service.wait(PATIENCE) == 1
        assert said in service.said()


def test_a_java_that_was_killed_is_named_and_not_taken_for_redis(shop: Any, pipeline: Start) -> None:
    tell(shop, 100)
    with pipeline() as service:
        until(lambda: archived(shop) == 100, PATIENCE)
        (java,) = [each for each in psutil.Process(service.pid).children(recursive=True) if "java" in each.name()]
        java.kill()
        assert service.wait(PATIENCE) == 1
        assert '"reason": "Spark\'s Java process was killed (SIGKILL): see the system\'s log' in service.said()
        assert "refused" not in service.said()
        assert "Exception occurred during processing" not in service.said()


def test_the_demo_archives_reports_and_accounts_for_every_message() -> None:
    sample = "from compose.tracked import demo, pipeline_demo; pipeline_demo.main(rows=demo.ROWS[::25])"
    words = [sys.executable, "-c", sample, "--json"]
    done = subprocess.run(words, env=environment(None), cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert (told["differences"], told["pushed"]) == ([], 351)
    # registered, done on one leg; registered, three time-outs, two retries, dead on the other
    assert told["events"]["told"] == told["events"]["archived"] >= 351 * 9
    assert list(told["commands"].values()) == [0, 0]
    assert "tracked:alert" in Path(told["report"]).read_text()


def test_settings_that_make_no_sense_are_told() -> None:
    from services.pipeline.settings import Settings

    with pytest.raises(SettingsError) as told:
        Settings(redis="redis://h", redis_namespace="p", watch=[], trigger=-1)
    assert {problem.property for problem in told.value.problems} == {"watch", "trigger", "archive"}
    with pytest.raises(SettingsError, match="ordered: false would let two instances write one archive: leave it out"):
        Settings(redis="redis://h", redis_namespace="p", watch=["shop"], archive="a", ordered=False)
    with pytest.raises(SettingsError, match="mask: means nothing without payloads: true"):
        Settings(redis="redis://h", redis_namespace="p", watch=["shop"], archive="a", mask=["$.card"])
    with pytest.raises(SettingsError, match=r"'card' does not begin with \$"):
        Settings(redis="redis://h", redis_namespace="p", watch=["shop"], archive="a", payloads=True, mask=["card"])
    with pytest.raises(SettingsError, match="redisNamespace: missing: expected a name of the pipeline's own"):
        Settings(redis="redis://h", watch=["shop"], archive="a")
