"""Benchmarks of the pipeline as a running service."""

import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from bench.figures import Figure
from bench.testbed import PYTHON, Testbed
from penstock.base.keys import Keys
from penstock.core.script import Script
from penstock.spark.archive import WRITING
from penstock.spark.session import file_of_classes
from tests.support.harness import ROOT, Service, until

SHOP: Final = Keys("bench:shop")
PIPELINE: Final = Keys("bench:pipeline")
MANY: Final = "bench:many"
MILLION: Final = 1_000_000
MERGED_BATCHES: Final = 40
"""Micro-batches of the benchmark of merging."""
ADD_EVENTS: Final = Script(
    "add_events.lua",
    """-- Write an event `done` for each of some messages, as a monitor does.
--
-- WITH events: report write_events
-- ARGV from     the first id
-- ARGV many     how many
-- ARGV at       when (ms)
-- ARGV history  most events to keep
-- Returns nothing. Run twice: the second run writes them again.
for id = from, from + many - 1 do
  report('done', string.format('%d', id), redis.sha1hex(id), 'shop:work', '7', 1, (id % 997) / 100)
end
write_events(at, tonumber(history))
""",
)


def write_events(redis: Any, count: int, *, keys: Keys = SHOP, entry: int = 1_000, first: int = 1) -> None:
    """Write ``count`` events, 100 a millisecond, in stream entries of at most ``entry`` events and at most 100."""
    begun = int(time.time() * 1000) - count // 100
    redis.hset(keys.policy, "messageTimeout", 10)
    with redis.pipeline(transaction=False) as wire:
        for start in range(first, first + count, entry):
            named = {"from": start, "many": min(entry, first + count - start), "history": 2**40}
            wire.execute_command(*ADD_EVENTS.by_source(**keys.event_keys, at=begun + (start - first) // 100, **named))
            if len(wire) == 200:
                wire.execute()
        wire.execute()


class PipelineRun:
    """A running pipeline over the streams of ``namespaces``, and its progress."""

    def __init__(self, bed: Testbed, namespaces: Sequence[Keys], **settings: object) -> None:
        self._bed = bed
        self.place = Path(tempfile.mkdtemp(prefix="penstock-bench-archive-"))
        base = {"redis": bed.url, "redis_namespace": PIPELINE.namespace, "archive": self.place / "archive"}
        watch = "[" + ",".join(f'"{keys.namespace}"' for keys in namespaces) + "]"
        self.service = Service("pipeline", self.place / "log", **{**base, "watch": watch, "memory": "2g", **settings})
        self.progress: list[tuple[float, int]] = []
        """Time (s) and total of archived events after each micro-batch."""

    def __enter__(self) -> "PipelineRun":
        self.service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.__exit__(None, None, None)
        shutil.rmtree(self.place, ignore_errors=True)  # Java may take a moment to end

    def until(self, events: int) -> None:
        """Record the progress until ``events`` are archived."""
        end = time.monotonic() + 1_800
        while not self.progress or self.progress[-1][1] < events:
            count = int(self._bed.redis.hget(PIPELINE.metric("pipeline"), "count") or 0)
            if count and (not self.progress or count > self.progress[-1][1]):
                self.progress.append((time.monotonic(), count))
            alive = self.service.process and self.service.process.poll() is None
            assert alive, self.service.log_text()
            assert time.monotonic() < end, "not archived in half an hour"
            time.sleep(0.02)

    def rate(self, first: float, last: float) -> float:
        """Return the events per second between the micro-batches that reached ``first`` and ``last`` events."""
        begin = next(point for point in self.progress if point[1] >= first)
        end = next(point for point in self.progress if point[1] >= last)
        return (end[1] - begin[1]) / (end[0] - begin[0])


def pages(bed: Testbed) -> Iterator[Any]:
    """Yield pages of the entries, read by hiredis alone."""
    connection = bed.redis.connection_pool.get_connection()
    try:
        after = "-"
        while True:
            connection.send_command("XRANGE", SHOP.events, after, "+", "COUNT", 5_000)
            page = connection.read_response()
            if not page:
                return
            yield page
            after = "(" + page[-1][0].decode()
    finally:
        bed.redis.connection_pool.release(connection)


def bare_parquet(bed: Testbed, place: Path) -> None:
    """Read all events with XRANGE, decode them and write them with pyarrow, in this process."""
    import pyarrow.parquet as pq

    from penstock.spark.decode import SCHEMA, decode_entries

    level = int(WRITING["parquet.compression.codec.zstd.level"])
    with pq.ParquetWriter(place, SCHEMA, compression="zstd", compression_level=level) as writer:
        for page in pages(bed):
            for batch in decode_entries(SHOP.namespace, page):
                writer.write_batch(batch)


def archive(bed: Testbed, events: int) -> list[Figure]:
    """Measure the rate of archiving a backlog without roll-ups from the second micro-batch on, and if it slows."""
    write_events(bed.redis, events)
    with PipelineRun(bed, [SHOP], rollups="false", max_events=events // 10, trigger=0) as run:
        run.until(events)
        rate = run.rate(0, events)
        parts = [run.rate(events * part / 5, events * (part + 1) / 5) for part in range(5)]
    bare = _bare_rate(bed, events)
    bed.redis.flushall()
    note = "by fifths: " + ", ".join(f"{part / 1000:,.0f} k/s" for part in parts)
    return [
        Figure(f"archive of {events:,} events", "/s", [rate], 150_000, at_least=True, note=note),
        Figure("archive: the last fifth's time / the first one's", "x", [parts[0] / parts[-1]], 1.2),
        _beside_bare(f"archive of {events:,} events, after the first batch", rate, bare, 0.35),
    ]


def _bare_rate(bed: Testbed, events: int) -> list[float]:
    """Return the events a second of a bare process, three times."""
    with tempfile.TemporaryDirectory() as place:
        found = []
        for _ in range(3):
            begin = time.perf_counter()
            bare_parquet(bed, Path(place) / "bare.parquet")
            found.append(events / (time.perf_counter() - begin))
    return found


def _beside_bare(what: str, rate: float, bare: Sequence[float], limit: float) -> Figure:
    note = f"{rate / 1000:,.0f} k/s against {statistics.median(bare) / 1000:,.0f} k/s"
    name = f"{what} / bare XRANGE and pyarrow"
    return Figure(name, "x", [rate / each for each in bare], limit, at_least=True, note=note)


def rolling_up(bed: Testbed, events: int) -> list[Figure]:
    """Measure the rate of archiving a backlog with roll-ups, the cost of an event in a large archive, and its SQL.

    The first events cost more because Java has just started, so compare them with the events after a final restart.
    """
    write_events(bed.redis, events)
    part = events // 10
    with PipelineRun(bed, [SHOP], max_events=events // 40, trigger=0) as run:
        run.until(events)
        rate = run.rate(0, events)
        first, between, last = (1e6 / run.rate(after, after + part) for after in (0, events // 5, events - part))
        bare = _bare_rate(bed, events)
        run.service.stop()
        write_events(bed.redis, part, first=events + 1)
        run.service.start()
        run.until(events + part)
        again = 1e6 / run.rate(events + 1, events + part)
        run.service.stop()
        asked = [_ask(run.place / "archive", events + part) for _ in range(5)]
    bed.redis.flushall()
    note = f"{first:.2f} us up to {part:,}, {between:.2f} from {events // 5:,} on, {last:.2f} from {events - part:,} on"
    return [
        Figure(f"archive and roll-ups of {events:,} events", "/s", [rate], 100_000, at_least=True, note=note),
        _beside_bare(f"archive and roll-ups of {events:,} events, after the first batch", rate, bare, 0.25),
        Figure("cost of an event, the last ones' / those in between", "x", [last / between], 1.2, note=note),
        Figure(
            f"the same after a restart at {events:,} / after the first start",
            "x",
            [again / first],
            1.2,
            note=f"{again:.2f} us against {first:.2f} us",
        ),
        Figure(f"penstock sql: a count by event of {events + part:,} archived events", "s", asked, 2),
    ]


def _ask(place: Path, events: int) -> float:
    """Return how long (s) the command takes, from its start to its end."""
    words = ("sql", "--archive", str(place), "select event, count(*) as many from events group by all", "--json")
    begin = time.perf_counter()
    done = subprocess.run((*PYTHON, "penstock", *words), check=True, capture_output=True, cwd=ROOT)
    seconds = time.perf_counter() - begin
    assert [row["many"] for row in json.loads(done.stdout)] == [events], done.stdout
    return seconds


def starting(bed: Testbed, rounds: int) -> list[Figure]:
    """Measure the time from the start of the process to the first counted micro-batch, and after a kill."""
    if not file_of_classes().exists():  # as in the image
        subprocess.run((*PYTHON, "penstock.spark.classes"), check=True, capture_output=True, cwd=ROOT)
    started, killed = [], []
    write_events(bed.redis, 1_000)
    for _ in range(rounds):
        begin = time.monotonic()
        with PipelineRun(bed, [SHOP]) as run:
            run.until(1_000)
            started.append(run.progress[0][0] - begin)
            write_events(bed.redis, 1_000, first=1_001)
            assert run.service.process
            run.service.process.kill()
            run.service.wait()
            begin = time.monotonic()
            run.service.start()
            run.until(2_000)
            killed.append(run.progress[-1][0] - begin)
        bed.redis.delete(*bed.redis.keys(f"{PIPELINE.namespace}:*"), SHOP.events)
        write_events(bed.redis, 1_000)
    bed.redis.flushall()
    return [
        Figure("pipeline, start to the first counted batch", "s", started, 10),
        Figure("pipeline, start after kill -9 to the next counted batch", "s", killed, 12),
    ]


def many_namespaces(bed: Testbed, count: int, each: int) -> list[Figure]:
    """Measure how long the first events of many namespaces take to be counted, and the memory beside 100 of them."""
    taken, memory = [], []
    for many in (100, count):
        for number in range(many):
            write_events(bed.redis, each * count // many, keys=Keys(f"{MANY}:{number}"))
        begin = time.monotonic()
        with PipelineRun(bed, [Keys(f"{MANY}:*")]) as run:
            run.until(count * each)
            taken.append(run.progress[-1][0] - begin)
            memory.append(_python_bytes(run.service.pid) / 1e6)
        bed.redis.flushall()
    name = f"pipeline, {count:,} namespaces of {each} events"
    note = f"{memory[1]:,.0f} MB against {memory[0]:,.0f} MB"
    return [
        Figure(f"{name}: from the start until all are counted", "s", [taken[1]], 60),
        Figure(
            f"{name}: memory of its Python processes / of 100 with as many",
            "x",
            [memory[1] / memory[0]],
            1.3,
            note=note,
        ),
    ]


def _python_bytes(pid: int) -> int:
    """Return the resident memory of a process and all below it, without Java."""
    found = 0
    for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a worker that was idle has ended
            found += one.memory_info().rss if "java" not in one.name() else 0
    return found


def shards(bed: Testbed, rounds: int, events: int) -> Figure:
    """Compare the cost of an event in one stream and in eight, alternating between them."""
    pairs = []
    for _ in range(rounds):
        rates = []
        for number in (1, 8):
            namespaces = [Keys(f"bench:shop{place}") for place in range(number)]
            for keys in namespaces:
                write_events(bed.redis, events // number, keys=keys)
            with PipelineRun(bed, namespaces, max_events=events // 8, trigger=0) as run:
                run.until(events // number * number)
                rates.append(run.rate(0, events))
            bed.redis.flushall()
        pairs.append(rates)
    note = " against ".join(f"{statistics.median(column) / 1000:,.0f} k/s" for column in zip(*pairs, strict=True))
    return Figure(
        f"cost of an event, {events:,} in 8 streams / in 1", "x", [one / eight for one, eight in pairs], 1.2, note=note
    )


def merging(bed: Testbed, rounds: int, events: int) -> Figure:
    """Measure the cost of merging small files every few seconds, alternating with no merging."""
    pairs, left = [], []
    for _ in range(rounds):
        rates = []
        for every in (0, 5):
            write_events(bed.redis, events)
            with PipelineRun(bed, [SHOP], max_events=events // MERGED_BATCHES, trigger=0, merge_every=every) as run:
                run.until(events)
                rates.append(run.rate(0, events))
                left.append(sum(1 for _ in run.place.glob("archive/*/**/batch=*")))
            bed.redis.flushall()
        pairs.append(rates)
    without, merged = (f"{statistics.median(column) / 1000:,.0f} k/s" for column in zip(*pairs, strict=True))
    note = f"{merged} and {left[1]} directories against {without} and {left[0]}"
    return Figure(
        f"cost of an event, {events:,} in {MERGED_BATCHES} micro-batches, small files merged / not",
        "x",
        [without / merged for without, merged in pairs],
        1.2,
        note=note,
    )


def visible(bed: Testbed, rounds: int) -> Figure:
    """Measure the time from an event's XADD until the roll-up hash of its day counts it, on an idle pipeline."""
    taken = []
    write_events(bed.redis, 1_000)
    with PipelineRun(bed, [SHOP]) as run:
        run.until(1_000)
        for turn in range(rounds + 1):
            time.sleep(2 + 0.37 * turn)  # not in step with the trigger
            day = SHOP.rollup(time.strftime("%Y-%m-%d", time.gmtime()))
            before = int(bed.redis.hget(day, "count") or 0)
            begin = time.perf_counter()
            write_events(bed.redis, 1, first=2_000 + turn)
            until(lambda day=day, before=before: int(bed.redis.hget(day, "count") or 0) > before, 60, 0.002)  # type: ignore[misc]
            if turn:
                taken.append(time.perf_counter() - begin)
    bed.redis.flushall()
    return Figure("an event, idle, to the roll-up hash of its day", "s", taken, 3)
