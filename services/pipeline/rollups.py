"""Roll-ups of every micro-batch by minute, hour and day, in hashes and in Parquet.

A micro-batch leaves a part with its numbers by minute; parts add up. A window is closed when it is over and no event
has come to it for a while: its parts become its rows. Later events count as late and reopen the window: an empty file
marks it before such events are written, and is deleted when the rows are written again.
"""

import json
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from redis import Redis

from penstock.base.encoding import encoded
from penstock.base.keys import Keys
from penstock.core.script import Script
from penstock.spark.archive import (
    ASIDE,
    MINUTES,
    MINUTES_DDL,
    RECENT,
    ROLLUPS,
    WRITER,
    Mounted,
    delete_published,
    listed,
    overwrite,
    stored,
)
from penstock.spark.claims import file_of
from penstock.spark.options import exchange
from penstock.spark.rollups import BASE, LEAST, SHARES, SIZES, windows
from penstock.spark.staging import checked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_rollup: Final = Script.read(Path(__file__).parent / "lua" / "rollup.lua")
NAMES: Final = {"minute": "%Y-%m-%dT%H:%M", "hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d"}
"""Names of windows by size: the start, as precise as the size needs."""
COUNTS: Final = ("count", "timed", "micros", "attempts", "timeouts", "dead")
REOPENED: Final = "_again"
"""Directory of the marks of reopened windows."""
MAX_HASHES: Final = 500
"""Maximum number of hashes that are updated in one round trip."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """The minute, hour or day that begins at ``start``."""

    size: str
    start: datetime

    @classmethod
    def of(cls, size: str, at: datetime) -> "Window":
        """Return the window that contains ``at``."""
        seconds = int(at.timestamp())
        return cls(size, datetime.fromtimestamp(seconds - seconds % SIZES[size], UTC))

    @property
    def end(self) -> datetime:
        return self.start + timedelta(seconds=SIZES[self.size])

    @property
    def name(self) -> str:
        return self.start.strftime(NAMES[self.size])

    @property
    def partition(self) -> tuple[str, str]:
        """Date and hour of its partition in the archive; a day has hour 0."""
        return self.start.date().isoformat(), str(self.start.hour)


class Rollups:
    """Maintains the roll-ups of one archive. ``kept``: seconds that a hash lives after its window, by size; 0: no hash.

    ``lateness``: seconds without an event after which a window that is over is closed. ``mounted``: the archive if
    this process can write there; else Java does.
    """

    def __init__(
        self,
        spark: "SparkSession",
        directory: str,
        redis: Redis,
        kept: dict[str, int],
        lateness: int,
        mounted: Mounted | None = None,
    ) -> None:
        self._spark, self._redis, self._kept, self._lateness = spark, redis, kept, lateness
        self._mounted = mounted
        self._apart = mounted and Mounted(mounted.archive, mounted.aside / ROLLUPS)
        """For windows: they may be closed while a micro-batch is written."""
        self._directory, self._rollups = directory, f"{directory}/{ROLLUPS}"
        self._guard = Lock()
        """Held while parts are added and while windows are closed."""
        self._is_first = True
        hours = {hour for (hour,) in listed(spark, f"{directory}/{MINUTES}", "hour")} | self._recent_hours()
        starts = [datetime.strptime(hour, NAMES["hour"]).replace(tzinfo=UTC) for hour in hours]
        touched = {Window.of(size, start) for start in starts for size in ("hour", "day")}
        partitions = {
            size: set(listed(spark, f"{self._rollups}/size={size}", "date", "hour")) for size in ("hour", "day")
        }
        reopened = {
            size: {name for (name,) in listed(spark, f"{self._rollups}/{REOPENED}", size)} for size in partitions
        }
        self._closed = {window for window in touched if window.partition in partitions[window.size]}
        reopened_windows = {window for window in self._closed if window.name in reopened[window.size]}
        self._open = dict.fromkeys(touched - self._closed | reopened_windows, -float(lateness))
        """Windows to be closed, with the time of their last event (``time.monotonic``)."""

    def _recent_hours(self) -> set[str]:
        recent = f"{self._directory}/{RECENT[MINUTES]}"
        if not listed(self._spark, recent, "batch"):
            return set()
        return {
            hour for (hour,) in self._spark.read.schema(MINUTES_DDL).parquet(recent).select("hour").distinct().collect()
        }

    def add(self, table: "pa.Table", query: str, batch: int, name: str) -> int:
        """Add the rows of ``minutes`` of a micro-batch to parts and hashes, once. Return how many events are late."""
        rows = table.to_pylist()
        touched = Counter[Window]()
        for row in rows:
            touched[Window.of("hour", row["start"])] += row["count"]
        with self._guard:
            reached = {*touched, *(Window.of("day", window.start) for window in touched)}
            for window in reached & self._closed - self._open.keys():
                self._mark(window, reopened=True)
            if self._is_first:
                delete_published(self._spark, self._directory, MINUTES, name, self._mounted)
                self._is_first = False
            self._keep(table, name)
            self._open |= dict.fromkeys(reached, time.monotonic())
            late = sum(count for window, count in touched.items() if window in self._closed)
        self._add_to_hashes(rows, query, batch)
        return late

    def _keep(self, table: "pa.Table", name: str) -> None:
        """Write the part of a micro-batch."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
        from pyspark.sql import functions as F

        parts = table.append_column("hour", pc.strftime(table["start"], NAMES["hour"]))
        if not self._mounted:
            rows = self._spark.createDataFrame(parts).coalesce(1).withColumn("batch", F.lit(name))
            overwrite(rows, f"{self._directory}/{RECENT[MINUTES]}", "batch")
            return
        staged = self._mounted.staged(MINUTES)
        pq.write_table(parts, staged / f"{name}.parquet", **WRITER)
        self._mounted.replace(f"{RECENT[MINUTES]}/batch={name}", staged)

    def _add_to_hashes(self, rows: Iterable[Row], query: str, batch: int) -> None:
        gathered: defaultdict[tuple[str, Window], defaultdict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        now = datetime.now(UTC)
        for row in rows:
            for size, life in self._kept.items():
                window = Window.of(size, row["start"])
                if life and window.end > now - timedelta(seconds=life):
                    gathered[row["namespace"], window][f"{row['event']}:{row['queue']}"].append(row)
        commands = []
        for (namespace, window), by_name in gathered.items():
            key = Keys(namespace).rollup(window.name)
            words = {
                "window": key,
                "query": query,
                "batch": batch,
                "gone": int(window.end.timestamp()) + self._kept[window.size],
                "base": BASE,
                "least": LEAST,
                "rows": json.dumps([{"name": name, **_added_up(several)} for name, several in by_name.items()]),
            }
            commands.append((key, words))
        for first in range(0, len(commands), MAX_HASHES):
            some = commands[first : first + MAX_HASHES]
            # The first call loads the script.
            calls = [_rollup.by_source(**some[0][1]), *(_rollup.by_digest(**words) for _, words in some[1:])]
            for (key, _), reply in zip(some, exchange(self._redis, calls), strict=True):
                checked(self._redis, reply, encoded(key), "hash")

    def close(self) -> None:
        """Write the rows of windows that are over. Raise ``Unsuitable`` if another process has taken over."""
        with self._guard, self._mounted.owned() if self._mounted else nullcontext():
            now, quiet = datetime.now(UTC) - timedelta(seconds=self._lateness), time.monotonic() - self._lateness
            over = [window for window, last in self._open.items() if window.end <= now and last <= quiet]
            # By path: a filter would list all partitions of the archive.
            hours = [window.name for window in over if window.size == "hour"]
            days = [f"{self._rollups}/size=hour/date={window.name}" for window in over if window.size == "day"]
            if hours:
                parts = stored(self._spark, self._directory, MINUTES, hours)
                for size in ("minute", "hour"):
                    self._write(windows(parts, size), size)
            if days:
                ended = self._spark.read.option("basePath", f"{self._rollups}/size=hour").parquet(*days)
                self._write(windows(ended, "day"), "day")
            for window in over:
                del self._open[window]
                if window in self._closed:
                    self._mark(window, reopened=False)
            self._closed.update(over)

    def _mark(self, window: Window, *, reopened: bool) -> None:
        """Mark ``window`` as reopened, or delete the mark, unless another process has taken over and relies on it."""
        name = f"{ROLLUPS}/{REOPENED}/{window.size}={window.name}"
        if self._mounted and not reopened:
            self._mounted.discard(self._mounted.archive / name)
            return
        files, file = file_of(self._spark, f"{self._directory}/{name}")
        if reopened:
            files.create(file).close()
        else:
            files.delete(file, False)

    def _write(self, rows: "DataFrame", size: str) -> None:
        from pyspark.sql import functions as F

        columns = {"size": F.lit(size), "date": F.to_date("start"), "hour": F.hour("start")}
        one = rows.withColumns(columns).coalesce(1)
        if not self._apart:
            overwrite(one, self._rollups, *columns)
            return
        self._apart.aside.mkdir(exist_ok=True)
        aside = f"{ASIDE}/{uuid4().hex}"
        overwrite(one, f"{self._directory}/{aside}", *columns)
        written = self._apart.archive / aside
        for each in written.glob("/".join(f"{column}=*" for column in columns)):
            staged = each.rename(self._apart.aside / "window")
            self._apart.replace(f"{ROLLUPS}/{each.relative_to(written)}", staged)
        shutil.rmtree(written)


def _added_up(rows: list[Row]) -> Row:
    """Add up rows of one kind of event in one queue."""
    buckets = Counter[int]()
    for row in rows:
        buckets.update(dict(row["buckets"]))
    return {
        **{count: sum(row[count] for row in rows) for count in COUNTS},
        "max": max(row["max"] or 0 for row in rows),
        "histogram": [sum(row["histogram"][share] for row in rows) for share in range(SHARES)],
        "buckets": buckets,
    }
