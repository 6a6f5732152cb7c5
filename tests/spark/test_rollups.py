"""Roll-ups that are added up from parts equal those by plain Python and NumPy, and nothing counts twice."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from redis import Redis

from penstock.base.errors import Unsuitable, WrongType
from tests.spark import DataFrame, SparkSession
from tests.spark.micro_batches import KEPT, Event, counted, frame, now_and_before, table

DAY: Final = datetime(2025, 11, 20, tzinfo=UTC)


def events(number: int, rng: random.Random) -> list[Event]:
    """Return random events of two days and two namespaces, with times from 0 to far more than allowed."""
    kinds = ["registered", "done", "timeout", "dead"]
    return [
        {
            "namespace": rng.choice(["shop", "shop:café"]),
            "queue": rng.choice(["out", "a:b"]),
            "event": (kind := rng.choice(kinds)),
            "at": DAY + timedelta(seconds=rng.choice([1, 4_000, 90_000]) + rng.random() * 120),
            "attempt": rng.choice([None, 1, 2]),
            "seconds": None
            if kind == "registered"
            else round(rng.choice([0.0, rng.random(), rng.expovariate(0.3)]), 6),
            "timeout": rng.choice([None, 2.0]),
        }
        for _ in range(number)
    ]


def plainly(rows: list[Event], seconds: int) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Compute the rows of windows of ``seconds``, one event at a time."""
    import numpy as np

    several = defaultdict(list)
    for row in rows:
        start = datetime.fromtimestamp(row["at"].timestamp() // seconds * seconds, UTC)
        several[start, row["namespace"], row["queue"], row["event"]].append(row)
    found = {}
    for key, some in several.items():
        times = [row["seconds"] for row in some if row["seconds"] is not None]
        shares = [row["seconds"] / row["timeout"] for row in some if None not in (row["seconds"], row["timeout"])]
        found[key] = {
            "count": len(some),
            "micros": sum(round(time * 1_000_000) for time in times),
            "max": max(times, default=None),
            "histogram": [
                sum(min(math.floor(share * 10 + 1e-9), 10) == place for share in shares) for place in range(11)
            ],
            "attempts": sum(row["attempt"] or 0 for row in some),
            "timeouts": len(some) * (key[3] == "timeout"),
            "dead": len(some) * (key[3] == "dead"),
            "percentiles": [
                float(np.quantile(times, share, method="inverted_cdf")) if times else None
                for share in (0.5, 0.95, 0.99)
            ],
        }
    return found


def check(rows: "DataFrame", expected: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    found = {(row["start"], row["namespace"], row["queue"], row["event"]): row for row in rows.toArrow().to_pylist()}
    assert found.keys() == expected.keys()
    for key, wanted in expected.items():
        row = found[key]
        assert {name: row[name] for name in wanted if name != "percentiles"} | {
            "percentiles": wanted["percentiles"]
        } == wanted
        assert row["sum"] == row["micros"] / 1_000_000
        for name, percentile in zip(("p50", "p95", "p99"), wanted["percentiles"], strict=True):
            assert row[name] == (percentile if percentile is None else pytest.approx(percentile, rel=0.05, abs=1e-6))


@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_parts_however_they_are_cut_add_up_to_what_plain_python_finds(
    spark: "SparkSession", seed: int, cuts: list[float]
) -> None:
    import pyarrow as pa

    from penstock.spark.rollups import SIZES, added_up, cells, minutes, windows

    rows = events(300, random.Random(seed))
    bounds = [0, *sorted(int(cut * len(rows)) for cut in cuts), len(rows)]
    parts = [rows[first:last] for first, last in pairwise(bounds)]
    by_arrow = added_up(pa.concat_tables(cells(table(part)) for part in parts[1:]))
    together = minutes(frame(spark, parts[0])).union(spark.createDataFrame(by_arrow)).cache()
    for size, seconds in SIZES.items():
        check(windows(together, size), plainly(rows, seconds))
    together.unpersist()


def test_any_time_is_counted_and_with_arrow_as_with_spark(spark: "SparkSession") -> None:
    """A time of 1e300 s, or 0 s allowed, had stopped the pipeline."""
    from penstock.spark.rollups import MAX_LONG, added_up, cells, minutes, windows

    numbers = [None, 0.0, -0.0, -1.0, 1e-300, 1e-6, 1.0, 1.1, 1e9, 9e12, 1e300, math.inf, -1e300]
    same: Event = {"namespace": "shop", "event": "done", "at": DAY}
    rows = [
        same | {"queue": f"{seconds} of {timeout}", "seconds": seconds, "timeout": timeout, "attempt": 2**31 - 1}
        for seconds in numbers
        if seconds != math.inf
        for timeout in [*numbers, math.nan]
    ]
    for queue, seconds in (("many", 1e9), ("negative", -1e9)):
        rows += [same | {"queue": queue, "seconds": seconds, "timeout": None, "attempt": None}] * 10_000
    by_arrow, by_spark = added_up(cells(table(rows))), minutes(frame(spark, rows)).toArrow()
    assert by_arrow.num_rows == len({row["queue"] for row in rows})
    found, expected = ({row["queue"]: row for row in each.to_pylist()} for each in (by_arrow, by_spark))
    assert found == expected
    assert (found["many"]["micros"], found["negative"]["micros"]) == (MAX_LONG, -MAX_LONG)
    twice = windows(minutes(frame(spark, rows)).union(minutes(frame(spark, rows))), "day").collect()
    sums = {row["queue"]: row["micros"] for row in twice}
    assert (len(sums), sums["many"], sums["negative"]) == (len(found), MAX_LONG, -MAX_LONG)


@pytest.fixture
def shop(redis_url: str) -> Iterator[Any]:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.mark.parametrize("mounted", [True, False])
def test_what_batches_say_is_in_hashes_and_parquet_once_whatever_is_done_twice(
    spark: "SparkSession", shop: Any, redis_url: str, tmp_path: Path, mounted: bool
) -> None:
    from penstock.spark.archive import Mounted, rolled_up
    from services.pipeline.rollups import Rollups

    def begun() -> Mounted | None:
        place = Mounted.at(tmp_path) if mounted else None
        if place:
            place.begin()
        return place

    rows = events(400, random.Random(7))
    with Redis.from_url(redis_url) as redis:
        one = Rollups(spark, str(tmp_path), redis, KEPT, 0, begun())
        assert one.add(counted(rows[:150]), "q", 0, "q-0") == 0
        shop.set("shop:rollup:2025-11-20T01:06", "somebody else's")
        with pytest.raises(WrongType, match="shop:rollup:2025-11-20T01:06 holds a string, expected a hash"):
            one.add(counted(rows[150:300]), "q", 1, "q-1")
        shop.delete("shop:rollup:2025-11-20T01:06")
        again = Rollups(spark, str(tmp_path), redis, KEPT, 0, begun())
        for _ in range(2):
            assert again.add(counted(rows[150:300]), "q", 1, "q-1") == 0
        again.close()
        assert again.add(counted(rows[300:]), "q", 2, "q-2") == 100, "late"
        # Another roll-up, as after a crash: a late micro-batch is repeated, and its hours are computed again.
        last = Rollups(spark, str(tmp_path), redis, KEPT, 0, begun())
        assert last.add(counted(rows[300:]), "q", 2, "q-2") == 100
        Rollups(spark, str(tmp_path), redis, KEPT, 0, begun()).close()
        assert not [*(tmp_path / "rollups/_again").iterdir()]
    for size, seconds in (("minute", 60), ("hour", 3_600), ("day", 86_400)):
        expected = plainly(rows, seconds)
        check(spark.read.parquet(str(tmp_path / "rollups")).where(f"size = '{size}'"), expected)
        check(rolled_up(spark, str(tmp_path), size), expected)
        check_hashes(shop, expected, size, without="2025-11-20T01:06")


@pytest.mark.parametrize("step", ["overwrite", "Mounted.replace"])
def test_a_process_that_was_stopped_while_it_closed_a_window_replaces_no_rows_after_a_takeover(
    spark: "SparkSession", redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    settings, rows = settings_of(tmp_path), events(400, random.Random(7))
    name = f"services.pipeline.rollups.{step}"
    usual = resolve_name(name)

    def late(first: Any, *words: Any) -> None:
        monkeypatch.setattr(name, usual)
        if step == "overwrite":
            first = spark.createDataFrame(first.toArrow(), first.schema)  # read before the takeover
        another = begun(spark, settings, redis)
        another.add(counted(rows[150:]), "q", 1, "q-1")
        another.close()
        usual(first, *words)

    with Redis.from_url(redis_url) as redis:
        one = begun(spark, settings, redis)
        one.add(counted(rows[:150]), "q", 0, "q-0")
        monkeypatch.setattr(name, late)
        with pytest.raises(Unsuitable, match="another pipeline has taken over"):
            one.close()
    for size, seconds in (("minute", 60), ("hour", 3_600), ("day", 86_400)):
        expected = plainly(rows, seconds)
        check(spark.read.parquet(str(tmp_path / "rollups")).where(f"size = '{size}'"), expected)


@pytest.mark.parametrize("size", ["minute", "hour", "day"])
def test_a_process_that_is_killed_between_the_two_renames_of_a_window_leaves_it_to_the_next(
    spark: "SparkSession", redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    settings, rows, usual = settings_of(tmp_path), events(400, random.Random(7)), Path.rename

    def rename(source: Path, target: Path) -> Path:
        if source.name == "window" and f"size={size}" in target.parts:
            assert not target.exists()
            raise KeyboardInterrupt
        return usual(source, target)

    with Redis.from_url(redis_url) as redis:
        one = begun(spark, settings, redis)
        one.add(counted(rows[:200]), "q", 0, "q-0")
        one.close()
        one.add(counted(rows[200:]), "q", 1, "q-1")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", rename)
            with pytest.raises(KeyboardInterrupt):
                one.close()
        begun(spark, settings, redis).close()
    for each, seconds in (("minute", 60), ("hour", 3_600), ("day", 86_400)):
        check(spark.read.parquet(str(tmp_path / "rollups")).where(f"size = '{each}'"), plainly(rows, seconds))


def test_a_process_that_was_stopped_keeps_the_mark_of_a_window_that_its_successor_has_open(
    spark: "SparkSession", redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.pipeline.rollups import Rollups

    settings, rows, usual = settings_of(tmp_path), events(400, random.Random(7)), Rollups._mark

    def late(one: Rollups, *words: Any, **named: Any) -> None:
        if not named["reopened"]:
            monkeypatch.setattr(Rollups, "_mark", usual)
            begun(spark, settings, redis).add(counted(rows[200:]), "q", 2, "q-2")  # and it is killed
        usual(one, *words, **named)

    with Redis.from_url(redis_url) as redis:
        one = begun(spark, settings, redis)
        one.add(counted(rows[:100]), "q", 0, "q-0")
        one.close()
        one.add(counted(rows[100:200]), "q", 1, "q-1")
        monkeypatch.setattr(Rollups, "_mark", late)
        with pytest.raises(Unsuitable, match="another pipeline has taken over"):
            one.close()
        begun(spark, settings, redis).close()
    check(spark.read.parquet(str(tmp_path / "rollups")).where("size = 'day'"), plainly(rows, 86_400))


def test_what_a_process_writes_while_another_takes_over_is_refused_or_closed_by_that_one(
    spark: "SparkSession", redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.pipeline.rollups import Rollups

    settings, rows, usual = settings_of(tmp_path), events(200, random.Random(7)), Rollups.__init__

    def late(*words: Any) -> None:
        monkeypatch.setattr(Rollups, "__init__", usual)
        usual(*words)
        with suppress(FileNotFoundError):
            one.add(counted(rows), "q", 0, "q-0")
            refused.clear()

    with Redis.from_url(redis_url) as redis:
        one, refused = begun(spark, settings, redis), [True]
        monkeypatch.setattr(Rollups, "__init__", late)
        another = begun(spark, settings, redis)
        if refused:
            another.add(counted(rows), "q", 0, "q-0")  # Spark repeats the micro-batch
        another.close()
    check(spark.read.parquet(str(tmp_path / "rollups")).where("size = 'day'"), plainly(rows, 86_400))


def test_a_merge_of_a_process_that_was_stopped_leaves_windows_that_its_successor_closes(
    spark: "SparkSession", redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.archive import overwrite
    from services.pipeline.merging import Merger

    rows, stopped = events(200, random.Random(7)), Merger(spark, str(tmp_path))

    def late(*words: Any) -> None:
        overwrite(*words)
        stopped.merge("q", 0)

    with Redis.from_url(redis_url) as redis:
        another = begun(spark, settings_of(tmp_path), redis)
        another.add(counted(rows), "q", 0, "q-0")
        monkeypatch.setattr("services.pipeline.rollups.overwrite", late)
        another.close()
    check(spark.read.parquet(str(tmp_path / "rollups")).where("size = 'day'"), plainly(rows, 86_400))


def settings_of(place: Path) -> Any:
    from services.pipeline.settings import Settings

    return Settings(redis="redis://h", redis_namespace="pipe", watch=["shop"], archive=str(place), lateness=0)


def begun(spark: "SparkSession", settings: Any, redis: Redis) -> Any:
    """Return the roll-ups of a process that takes over."""
    from penstock.spark.archive import mounted
    from services.pipeline.service import take_over

    return take_over(spark, settings, redis, mounted(spark, settings.archive))[1]


def check_hashes(shop: Any, expected: dict[tuple[Any, ...], dict[str, Any]], size: str, without: str) -> None:
    name_of = {"minute": "%Y-%m-%dT%H:%M", "hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d"}[size]
    for (start, namespace, queue, event), wanted in expected.items():
        if start.strftime(name_of) == without:
            continue
        key, prefix = f"{namespace}:rollup:{start.strftime(name_of)}", f"{event}:{queue}"
        found = {
            field.removeprefix(prefix + ":"): value
            for field, value in shop.hgetall(key).items()
            if field.startswith(prefix + ":")
        }
        assert int(found["count"]) == wanted["count"]
        assert int(found.get("attempts", 0)) == wanted["attempts"]
        assert [int(found.get(f"histo{place}", 0)) for place in range(0, 101, 10)] == wanted["histogram"]
        if wanted["max"] is None:
            assert "sum" not in found
            continue
        assert (float(found["sum"]), float(found["max"])) == (wanted["micros"] / 1e6, wanted["max"])
        for name, percentile in zip(("p50", "p95", "p99"), wanted["percentiles"], strict=True):
            assert float(found[name]) == pytest.approx(percentile, rel=0.05, abs=2e-6)
    for key in shop.keys("*:rollup:*"):
        assert shop.ttl(key) > 10**8
    if size == "day":
        whole = shop.hgetall(f"shop:rollup:{DAY:%Y-%m-%d}")
        of_day = {key: value for key, value in expected.items() if key[0] == DAY and key[1] == "shop"}
        for total in ("count", "timeouts", "dead", "attempts"):
            assert int(whole[total]) == sum(value[total] for value in of_day.values())


def test_no_hash_is_kept_for_windows_that_are_long_over(
    spark: "SparkSession", shop: Any, redis_url: str, tmp_path: Path
) -> None:
    from services.pipeline.rollups import Rollups

    now, before, rows = now_and_before()
    with Redis.from_url(redis_url) as redis:
        kept = {"minute": 60, "hour": 7 * 86_400, "day": 0}
        Rollups(spark, str(tmp_path), redis, kept, 0).add(counted(rows), "q", 0, "q-0")
    names = {f"shop:rollup:{now:%Y-%m-%dT%H:%M}", f"shop:rollup:{now:%Y-%m-%dT%H}"}
    assert set(shop.keys("shop:rollup:*")) == names | {f"shop:rollup:{before:%Y-%m-%dT%H}"}
    assert 0 < shop.ttl(f"shop:rollup:{now:%Y-%m-%dT%H:%M}") <= 120


def test_a_window_is_left_open_while_it_lasts_and_for_a_while_after(
    spark: "SparkSession", redis_url: str, tmp_path: Path
) -> None:
    from services.pipeline.rollups import Rollups

    now, before, rows = now_and_before()
    rows[0] |= {"at": now + timedelta(hours=1)}  # an hour that does not end during the test
    with Redis.from_url(redis_url) as redis:
        rollups = Rollups(spark, str(tmp_path), redis, KEPT, 3_600)
        rollups.add(counted(rows), "q", 0, "q-0")
        rollups.close()
        assert not (tmp_path / "rollups").exists()
        Rollups(spark, str(tmp_path), redis, KEPT, 0).close()
    hours = spark.read.parquet(str(tmp_path / "rollups")).where("size = 'hour'").toArrow().to_pylist()
    assert [row["start"] for row in hours] == [before.replace(minute=0, second=0, microsecond=0)]
