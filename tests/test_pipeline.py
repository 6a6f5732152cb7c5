"""The pipeline as a service: every event in the archive once, whatever dies, and clear words where it cannot go on."""

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.embedded import EmbeddedServer
from penstock.errors import SettingsError
from penstock.keys import Keys
from tests.harness import Service, until
from tests.spark import SHOP, pytestmark, tell  # noqa: F401

PIPE = Keys("pipe")
Start = Callable[..., Service]


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
    import pyarrow.dataset as ds

    rows: list[dict[str, Any]] = ds.dataset(place / "archive/events", partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["namespace"], row["number"] or 0, row["entry"]))


def test_events_of_all_namespaces_are_archived_counted_and_a_stop_ends_it(
    shop: Any, pipeline: Start, tmp_path: Path
) -> None:
    tell(shop, 300)
    with pipeline(discover=1) as service:
        until(lambda: archived(shop) == 300, 120)
        tell(shop, 50, keys=Keys("shop:new"))
        shop.xadd("shop:events", {"event": "done", "id": "77", "at": 86_400_000})
        shop.xadd("shop:events", {"temperature": 20})
        until(lambda: archived(shop) == 351, 120)
        assert shop.hget(PIPE.metric("pipeline"), "malformed") == b"1"
        assert shop.hget(PIPE.instance("1"), "service") == b"pipeline"
        shop.delete(PIPE.instance("1"))
        assert service.wait(60) == 0
        assert "Traceback" not in service.said()
    rows = events_in(tmp_path)
    assert [(row["namespace"], row["id"]) for row in rows] == [
        ("shop", "77"),
        *(("shop", str(id)) for id in range(1, 301)),
        *(("shop:new", str(id)) for id in range(1, 51)),
    ]
    assert {str(row["date"]) for row in rows} == {"2023-11-14", "1970-01-02"}
    (aside,) = malformed_in(tmp_path)
    assert (aside["namespace"], json.loads(aside["malformed"])) == ("shop", {"temperature": "20"})


def malformed_in(place: Path) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds

    rows: list[dict[str, Any]] = ds.dataset(place / "archive/_malformed", partitioning="hive").to_table().to_pylist()
    return rows


def test_killed_at_any_moment_nothing_is_lost_or_doubled(shop: Any, pipeline: Start, tmp_path: Path) -> None:
    rng, told = random.Random(), 0
    for _ in range(3):
        with pipeline(max_events=1_000) as service:
            before = archived(shop)
            tell(shop, 7_000, start=told + 1, each=rng.choice([10, 100]))
            told += 7_000
            until(lambda before=before: archived(shop) > before, 120, every=0.002)  # type: ignore[misc]
            until(lambda: rng.random() < 0.02, every=0.02)
            service.kill()
    with pipeline() as service:
        until(lambda: archived(shop) == told, 120)
        assert service.stop(60) == 0
    assert Counter(int(row["id"]) for row in events_in(tmp_path)) == Counter(range(1, told + 1))


def test_a_server_that_restarts_is_waited_for(tmp_path: Path, pipeline: Start) -> None:
    with EmbeddedServer(aof=True) as server, Redis.from_url(server.url) as redis:
        tell(redis, 100)
        with pipeline(redis=server.url) as service:
            until(lambda: archived(redis) == 100, 120)
            server.stop()
            until(lambda: '"waiting"' in service.said(), 120)
            server.start()
            tell(redis, 100, start=101)
            until(lambda: archived(redis) == 200, 120)
            assert service.stop(60) == 0
    assert Counter(int(row["id"]) for row in events_in(tmp_path)) == Counter(range(1, 201))


def test_events_that_were_trimmed_before_they_were_read_end_it_unless_told_otherwise(
    shop: Any, pipeline: Start, tmp_path: Path
) -> None:
    tell(shop, 100)
    with pipeline() as service:
        until(lambda: archived(shop) == 100, 120)
        service.signal(signal.SIGSTOP)
        tell(shop, 10_000, start=101, history=1_000)
        first = int(shop.xrange(SHOP.events, count=1)[0][1][b"first"])
        service.signal(signal.SIGCONT)
        assert service.wait(120) == 1
        assert f"DataLost: shop:events: events 101 to {first - 1} after" in service.said()
    with pipeline(fail_on_data_loss="false") as service:
        until(lambda: archived(shop) == 100 + 10_100 - first + 1, 120)
        assert service.stop(60) == 0
    assert f"events 101 to {first - 1} after" in malformed_in(tmp_path)[0]["malformed"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"archive": "/proc/archive"}, "archive"),
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
        assert service.wait(120) == 1
        assert said in service.said()


def test_settings_that_make_no_sense_are_told() -> None:
    from services.pipeline.settings import Settings

    with pytest.raises(SettingsError) as told:
        Settings(redis="redis://h", redis_namespace="p", watch=[], trigger=-1)
    assert {problem.property for problem in told.value.problems} == {"watch", "trigger", "archive"}
    with pytest.raises(SettingsError, match="ordered: false would let two instances write one archive: leave it out"):
        Settings(redis="redis://h", redis_namespace="p", watch=["shop"], archive="a", ordered=False)
    with pytest.raises(SettingsError, match="redisNamespace: missing: expected a name of the pipeline's own"):
        Settings(redis="redis://h", watch=["shop"], archive="a")
