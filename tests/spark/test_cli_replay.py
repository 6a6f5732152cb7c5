"""penstock replay: push archived messages again in their order and pace, and compare the outcomes."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.dataset import write_dataset
from redis import Redis as Blocking
from redis.asyncio import Redis

from penstock.base.errors import DataLost, NoArchive
from penstock.base.keys import Keys
from penstock.cli import replay as replaying
from penstock.cli._frame import Failed, Misused
from penstock.cli.replay import ReplayRequest, run_replay
from penstock.spark.archive import DDL
from penstock.spark.masking import masked
from penstock.spark.outcomes import Comparison, EventRecorder, compare, outcomes_by_key, replayed_as
from penstock.spark.replay import Archived, Pace, Pushed, Replayed, divided, messages, push
from penstock.tracking.policy import Policy
from tests.spark import SparkSession, add_events
from tests.support.commandline import ended, running
from tests.support.harness import Service, until
from tests.support.tracked import policy

BEGUN = datetime(2026, 11, 21, 18, 5, tzinfo=UTC)
LISTS = {"source": "shadow:in", "pending": "shadow:pending", "out": "shadow:out"}


@dataclass
class ArchiveRow:
    """A row of an archive."""

    event: str
    id: str
    xid: str = ""
    message: bytes | None = None
    after: float = 0
    """Seconds since ``BEGUN``."""
    namespace: str = "shop"


SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("entry", "event", "id", "xid", "namespace")),
        *(("number", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("message", pa.binary()), ("date", pa.date32())),
        ("batch", pa.string()),
    ]
)


def write(place: Path, rows: Sequence[ArchiveRow]) -> str:
    """Write an archive as the pipeline does. Return its directory."""
    records = [
        {
            "entry": f"{round(row.after * 1000)}-{number}",
            "number": number,
            **{name: getattr(row, name) for name in ("event", "id", "namespace", "message")},
            "xid": row.xid or f"x{row.id}",
            "at": BEGUN + timedelta(seconds=row.after),
            "date": BEGUN.date(),
            "batch": "1",
        }
        for number, row in enumerate(rows, start=1)
    ]
    parts = ["date", "namespace", "batch"]
    table = pa.Table.from_pylist(records, SCHEMA)
    write_dataset(table, f"{place}/events", format="parquet", partitioning=parts, partitioning_flavor="hive")
    return str(place)


def request(place: object, **more: Any) -> ReplayRequest:
    return replace(ReplayRequest(str(place), "shadow", None, None, None, None, False), **more)


async def replayed_here(spark: "SparkSession", url: str, request: ReplayRequest) -> int:
    return await run_replay(request, lambda: nullcontext(spark), url, True)


async def test_messages_come_in_their_order_byte_for_byte_and_the_others_are_counted(
    spark: "SparkSession", redis: Redis, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    awkward = [b"", b"\0\xff\n\\", b'{"a": 1}', b"x" * 3_000_000]
    rows = [ArchiveRow("registered", str(place), message=each, after=place) for place, each in enumerate(awkward)]
    rows += [ArchiveRow("registered", "9", after=9), ArchiveRow("done", "1", after=9), ArchiveRow("done", "9", after=9)]
    write(tmp_path, rows[::-1])
    await policy(redis, Keys("shadow"), **LISTS)
    assert await replayed_here(spark, redis_url, request(tmp_path)) == 0
    assert await redis.lrange("shadow:in", 0, -1) == awkward[::-1]
    output = json.loads(capsys.readouterr().out)
    assert output.pop("seconds") > 0
    assert output == {
        "archive": str(tmp_path), "from": "shop", "into": "shadow", "list": "shadow:in", "messages": 4,
        "bytes": 3_000_012, "behind": 0.0, "withoutPayload": 1, "unfinished": 0, "compared": None,
    }  # fmt: skip


async def test_messages_that_a_pipeline_publishes_before_the_first_is_pushed_are_read_again(
    spark: "SparkSession",
    redis: Redis,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    choose = replaying._choose_namespace

    def publish(*words: Any) -> Archived:
        found = choose(*words)
        for place in sorted(tmp_path.glob("events/*/*/batch=1")):
            place.rename(place.with_name("batch=2"))
        return found

    monkeypatch.setattr(replaying, "_choose_namespace", publish)
    await policy(redis, Keys("shadow"), **LISTS)
    archive = write(
        tmp_path, [ArchiveRow("registered", "1", message=b"a"), ArchiveRow("registered", "2", message=b"b")]
    )
    assert await replayed_here(spark, redis_url, request(archive)) == 0
    assert await redis.lrange("shadow:in", 0, -1) == [b"b", b"a"]
    assert "files of the archive were published meanwhile: reading it again" in capfd.readouterr().err


async def test_an_interval_and_a_namespace_can_be_chosen(
    spark: "SparkSession", redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    both = [ArchiveRow("registered", str(at), message=b"%d" % at, after=at) for at in range(6)]
    write(tmp_path, [*both, *(replace(each, namespace="other", message=b"theirs") for each in both)])
    await policy(redis, Keys("shadow"), **LISTS)
    with pytest.raises(Misused, match="has messages of other, shop: name one of them with --from"):
        await replayed_here(spark, redis_url, request(tmp_path))
    between = {"since": BEGUN + timedelta(seconds=1), "until": BEGUN + timedelta(seconds=4)}
    assert await replayed_here(spark, redis_url, request(tmp_path, origin="shop", **between)) == 0
    assert await redis.lrange("shadow:in", 0, -1) == [b"3", b"2", b"1"]


async def test_what_cannot_be_replayed_is_reported_with_the_remedy(
    spark: "SparkSession", redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    async def refusal(kind: type[Exception], **more: Any) -> str:
        with pytest.raises(kind) as error:
            await replayed_here(spark, redis_url, request(tmp_path, **more))
        return str(error.value)

    assert "shadow" in await refusal(Failed)
    await policy(redis, Keys("shadow"), **LISTS)
    assert f"{tmp_path}/events: there is no archive" in await refusal(NoArchive)
    write(tmp_path, [ArchiveRow("registered", "1"), ArchiveRow("done", "1")])
    assert "has none of the 1 messages of shop themselves: have them archived" in await refusal(Failed)
    assert "no message of nobody was registered: look" in await refusal(Failed, origin="nobody")
    later = await refusal(Failed, since=BEGUN + timedelta(days=1), until=BEGUN + timedelta(days=2))
    assert "was registered from 2026-11-22 18:05:00 UTC before 2026-11-23 18:05:00 UTC" in later
    assert "name a shadow of it with --into" in await refusal(Misused, origin="shadow")
    await policy(redis, Keys("shop"), source="shop:in", out="shadow:in", done="shop:done")
    assert "shadow shares its list shadow:in with shop" in await refusal(Failed, origin="shop")
    await redis.delete("shop:policy")
    await redis.set("shadow:in", "no list")
    assert "shadow:in is a string, expected a list" in await refusal(Failed, origin="shop")


async def test_a_usage_error_is_refused_before_anything_starts(redis: Redis, redis_url: str) -> None:
    calls: list[tuple[tuple[str, ...], str]] = [
        (("--speed", "0"), "--speed takes a number above 0"),
        (("--speed", "nan"), "--speed takes a number above 0"),
        (("--speed", "2", "--fast"), "leave out --speed"),
        (("--since", "soon"), "--since 'soon': expected how long ago"),
        (("--from", "shadow"), "is where the messages are from"),
    ]
    await policy(redis, Keys("shadow"), **LISTS)
    for words, expected in calls:
        async with running("replay", "--archive", "/nowhere", "--into", "shadow", *words, redis=redis_url) as process:
            status, said = await ended(process)
        assert status == 2, said
        assert expected in " ".join(said.replace("│", " ").split())


class Clock:
    """A clock that advances by ``sleep`` or by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


@pytest.mark.parametrize("speed", [1, 10, 0.5])
async def test_each_is_pushed_when_it_is_due_and_no_delay_adds_up(speed: float) -> None:
    clock, at = Clock(), [50.0, 50.0, 51.0, 53.5, 53.5, 60.0]
    pace, rest, pushed = (
        Pace(speed, clock, clock.sleep),
        [Replayed(each, b"") for each in at],
        list[tuple[float, int]](),
    )
    while rest:
        count = await pace.due(rest)
        pushed.append((round((clock.now - 1000) * speed, 6), count))
        rest = rest[count:]
        clock.now += 0.25 / speed  # the duration of a push
    assert pushed == [(0, 2), (1, 1), (3.5, 2), (10, 1)]
    assert clock.slept == [round(each / speed, 6) for each in (0.75, 2.25, 6.25)]
    assert pace.behind < 1e-9


async def test_late_messages_are_pushed_at_once_and_the_delay_is_reported() -> None:
    clock = Clock()
    pace, rest = Pace(1, clock, clock.sleep), [Replayed(float(at), b"") for at in (0, 1, 2, 3, 10)]
    assert await pace.due(rest) == 1
    clock.now += 3
    assert await pace.due(rest[1:]) == 3
    assert pace.behind == 2
    assert await pace.due(rest[4:]) == 1
    assert (clock.slept, pace.behind) == ([7.0], 2)


async def test_as_fast_as_possible_waits_for_nothing() -> None:
    clock = Clock()
    pace = Pace(None, clock, clock.sleep)
    assert await pace.due([Replayed(float(at), b"") for at in range(500)]) == 500
    assert (clock.slept, pace.behind) == ([], 0)


async def test_an_interrupted_push_knows_what_has_arrived(redis: Redis) -> None:
    lists, pushed = [[Replayed(0, b"1"), Replayed(0, b"2"), Replayed(1000, b"3")], [Replayed(1001, b"4")]], Pushed()
    advanced: list[int] = []
    task = asyncio.create_task(push(redis, "in", iter(lists), Pace(1), pushed, advanced.append))
    while not advanced:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (pushed, advanced) == (Pushed(2, 2), [2])
    assert await redis.lrange("in", 0, -1) == [b"2", b"1"]


async def test_an_interrupted_push_waits_for_replies_to_what_is_in_flight(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lpush, under_way, pushed = redis.lpush, asyncio.Event(), Pushed()

    async def slow(key: Any, *words: Any) -> Any:
        under_way.set()
        await asyncio.sleep(0.2)
        return await lpush(key, *words)

    monkeypatch.setattr(redis, "lpush", slow)
    task = asyncio.create_task(push(redis, "in", iter([[Replayed(0, b"1")]]), Pace(None), pushed, lambda _: None))
    await under_way.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pushed == Pushed(1, 1)


def test_messages_are_read_part_by_part_in_order(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.replay.PARTITION_ROWS", 700)
    monkeypatch.setattr("penstock.spark.replay.BATCH", 300)
    rows = spark.range(0, 2_000, 1, 3).selectExpr(
        "timestamp_millis(1700000000000 + (id * 7919 % 2000) div 3) as at",
        "id * 7919 % 2000 as number",
        "cast(cast(id * 7919 % 2000 as string) as binary) as message",
    )
    first, last = 1_700_000_000_000_000, 1_700_000_000_666_000
    lists = list(messages(rows, Archived("shop", 2_000, 2_000, 6_890, first, last)))
    assert [int(each.message) for batch in lists for each in batch] == list(range(2_000))
    assert [each.at for batch in lists for each in batch] == [1.7e9 + number // 3 / 1000 for number in range(2_000)]
    assert [len(batch) for batch in lists] == [300] * 6 + [200]


@pytest.mark.parametrize("branches", [1_000, 10])
def test_no_part_has_more_than_fits_in_memory_however_uneven_the_messages_are(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, branches: int
) -> None:
    """A month of small messages, with many large ones within a millisecond, some of which came at once."""
    from pyspark.sql import functions as F

    monkeypatch.setattr("penstock.spark.replay.BRANCHES", branches)
    monkeypatch.setattr("penstock.spark.replay.SEARCHES", 5)
    monkeypatch.setattr("penstock.spark.replay.PARTITION_ROWS", 200)
    monkeypatch.setattr("penstock.spark.replay.PARTITION_BYTES", 5_000)
    month = 30 * 86_400_000_000
    times = [month // 1000 * number for number in range(1_000)] + [month // 3 + number for number in range(400)]
    sizes = [5] * 1_000 + [1_000] * 400
    at_once = [month // 2 + 1] * 300
    rows = [*zip(times, sizes, strict=True), *((time, 100) for time in at_once)]
    kept = spark.createDataFrame([(at, b"x" * size) for at, size in rows], "at long, message binary").repartition(3)
    total = sum(size for _, size in rows)
    parts = (
        divided(kept, Archived("shop", len(rows), len(rows), total, 0, month))
        .groupBy(F.spark_partition_id().alias("part"))
        .agg(F.min("at"), F.max("at"), F.count("*"), F.sum(F.octet_length("message")))
        .sort("part")
        .collect()
    )
    assert sum(count for _, _, _, count, _ in parts) == len(rows)
    assert all(before[2] < after[1] for before, after in pairwise(parts))
    assert [(count, size) for _, least, most, count, size in parts if count > 200 or size > 5_000] == [(300, 30_000)]
    assert len(parts) < 2 * total / 5_000


def test_each_registration_has_an_outcome_and_what_died_stays_dead(spark: "SparkSession", tmp_path: Path) -> None:
    lives = {"1": ["done"], "2": ["timeout", "late"], "3": ["dead", "late"], "4": ["expired"], "5": ["retry"]}
    history = [ArchiveRow("done", "1", after=-1)]  # with an id that was used before
    for id, events in lives.items():
        history += [ArchiveRow(event, id, after=int(id)) for event in ("registered", *events)]
    history += [ArchiveRow("registered", "1", after=10), ArchiveRow("dead", "1", after=11), ArchiveRow("dead", "77")]
    rows = spark.read.schema(DDL).parquet(write(tmp_path, history) + "/events")
    found = [(row.key, row.outcome) for row in outcomes_by_key(rows, rows.xid).collect()]
    expected = [("x1", "dead"), ("x1", "done"), ("x2", "late"), ("x3", "dead"), ("x4", "expired"), ("x5", "open")]
    assert sorted(found) == expected


def test_messages_with_the_same_xid_are_paired_by_equal_outcomes(spark: "SparkSession") -> None:
    def rows(**outcomes: str) -> Any:
        pairs = [{"key": key, "outcome": outcome} for key, words in outcomes.items() for outcome in words.split()]
        return spark.createDataFrame(pa.Table.from_pylist(pairs))

    before = rows(a="done done dead", b="done", c="done done", d="open", e="late", f="done")
    found = compare(before, rows(a="dead dead done", b="done", c="done", d="open open", e="done", z="dead"))
    assert found.pairs == {
        ("done", "done"): 3,
        ("dead", "dead"): 1,
        ("done", "dead"): 1,
        ("done", "none"): 2,
        ("open", "open"): 1,
        ("none", "open"): 1,
        ("late", "done"): 1,
    }
    assert (found.ids, found.differ) == (["a", "c", "d", "e", "f"], 5)
    assert compare(before, before) == Comparison({("done", "done"): 6, ("dead", "dead"): 1, ("open", "open"): 1, ("late", "late"): 1}, [])  # fmt: skip  # noqa: E501


def test_a_masked_message_is_known_by_what_is_left_of_it(spark: "SparkSession") -> None:
    plain, order = b'{"card": "4111"}', b'{"meta": {"id": "%s"}, "card": "4111"}' % (b"a" * 40)
    archived = [(hashlib.sha1(plain).hexdigest(), plain), ("a" * 40, order), ("12", b"0012"), (hashlib.sha1(b"[]").hexdigest(), b"[]")]  # fmt: skip  # noqa: E501
    xids, messages = zip(*archived, strict=True)
    rows = spark.createDataFrame(pa.table({"xid": xids, "message": masked(pa.array(messages), ["$.card"])}))
    found = [row.xid for row in rows.select(replayed_as().alias("xid")).collect()]
    assert found == [hashlib.sha1(b'{"card":"***"}').hexdigest(), "a" * 40, "12", archived[3][0]]


async def test_events_trimmed_before_they_were_read_are_reported(redis: Redis, redis_url: str) -> None:
    keys = Keys("shadow")
    with Blocking.from_url(redis_url) as blocking:
        add_events(blocking, 5, keys=keys)
        recorder = EventRecorder(redis, keys)
        await recorder.begin()
        add_events(blocking, 7, start=6, each=3, keys=keys)
        assert await recorder.read_page()
        assert not await recorder.read_page()
        add_events(blocking, 2_000, start=13, keys=keys, history=10)
    with pytest.raises(DataLost, match=r"events 13 to \d+ of shadow:events are gone: .* eventCapacity"):
        await recorder.read_page()


async def test_the_wait_ends_when_all_have_ended_or_nothing_can_come_any_more(redis: Redis) -> None:
    keys, clock = Keys("shadow"), iter(range(0, 10_000, 10))
    await policy(redis, keys, **LISTS)
    found = await Policy.read(redis, keys)
    assert found
    recorder = EventRecorder(redis, keys)
    await recorder.begin()
    assert await recorder.wait_until_ended(3, found, lambda: next(clock)) == 3
    assert 50 < next(clock) <= 3 * (10 + 5) + 10 + 40
    await redis.hset(keys.metric("registered"), "count", 3)
    await redis.zadd(keys.deadlines, {"1": 1})
    await redis.zadd(keys.delayed, {"2": 1, "3": 1})
    begun = next(clock)
    assert await recorder.wait_until_ended(3, found, lambda: next(clock)) == 3
    assert 50 < next(clock) - begun <= 3 * (10 + 5) + 10 + 50
    waiting = asyncio.create_task(recorder.wait_until_ended(3, found))
    await redis.delete(keys.deadlines, keys.delayed)
    assert await waiting == 0


@contextmanager
def working(url: str, namespace: str, act: Callable[[bytes], bool | None]) -> Iterator[None]:
    """Run a worker. ``act`` returns True if a message is done, False if it failed for good, None for no report."""
    over = Event()

    def work() -> None:
        with Blocking.from_url(url) as redis:
            while not over.is_set():
                taken: Any = redis.brpop([f"{namespace}:out"], 1)
                if taken and (said := act(taken[1])) is not None:
                    xid = xid_of(taken[1])
                    word = {"xid": xid} if said else {"xid": xid, "error": "no tea", "retry": False}
                    redis.lpush(f"{namespace}:done", json.dumps(word))

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def xid_of(message: bytes) -> str:
    try:
        return str(json.loads(message)["meta"]["id"])
    except (ValueError, TypeError, KeyError):
        return str(int(message)) if message.isdigit() else hashlib.sha1(message).hexdigest()


@pytest.fixture
def services(redis: Redis, redis_url: str, tmp_path: Path) -> Iterator[Callable[[str], Service]]:
    """Return a function that starts an mdispatch; a monitor of shop and shadow is running."""
    patience = {"message_timeout": 1, "message_expire": 30, "attempts": 2, "backoff": "[0.2]"}
    started: list[Service] = []

    def start(namespace: str) -> Service:
        lists = {"in": f"{namespace}:in", "pending": f"{namespace}:pending", "out": f"{namespace}:out"}
        service = Service("mdispatch", tmp_path / namespace, redis=redis_url, redis_namespace=namespace,
                          event_messages="true", **lists, **patience)  # fmt: skip
        started.append(service.start())
        return service

    monitor = Service("monitor", tmp_path / "monitor", redis=redis_url, redis_namespace="watcher",
                      watch='["shop", "shadow"]', metrics_port=0)  # fmt: skip
    with monitor:
        yield start
        for service in started:
            assert service.stop() == 0


def archive(spark: "SparkSession", url: str, place: Path) -> None:
    """Archive the events of shop, as the pipeline would."""
    from pyspark.sql import functions as F

    rows = spark.read.format("redis-stream").options(url=url, keys="shop:events").load().drop("malformed")
    rows = rows.withColumns({"date": F.to_date("at"), "batch": F.lit("1")})
    rows.write.partitionBy("date", "namespace", "batch").parquet(f"{place}/events")


async def test_a_replay_repeats_the_outcomes_and_a_worker_that_differs_is_found(
    spark: "SparkSession",
    services: Callable[[str], Service],
    redis_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pushed = [b"%d" % number for number in range(100)] + [b'{"meta": {"id": "order-%d"}}' % at for at in range(50)]
    pushed += [b"lazy \0\xff\n\\", b"same", b"same", b"000"]

    def act(message: bytes) -> bool | None:
        return None if message.startswith(b"lazy") else xid_of(message)[-1] not in "27"

    def settled(redis: Blocking) -> bool:
        return redis.zcard("shop:message:deadlines") + redis.zcard("shop:message:delayed") == 0

    with Blocking.from_url(redis_url) as redis, working(redis_url, "shop", act):
        services("shop")
        redis.lpush("shop:in", *pushed)
        until(lambda: int(redis.hget("shop:metrics:registered", "count") or 0) == len(pushed) and settled(redis))
    await asyncio.to_thread(archive, spark, redis_url, tmp_path)
    services("shadow")
    with Blocking.from_url(redis_url) as redis:
        until(lambda: redis.exists("shadow:policy"))
    given = request(tmp_path, compare=True)
    with working(redis_url, "shadow", act):
        status = await replayed_here(spark, redis_url, replace(given, speed=3))
    output = json.loads(capsys.readouterr().out)
    died = sum(act(message) is not True for message in pushed)
    assert {(row["before"], row["now"]): row["messages"] for row in output["compared"]["table"]} == {
        ("done", "done"): len(pushed) - died,
        ("dead", "dead"): died,
    }
    assert (status, output["messages"], output["unfinished"], output["compared"]["differ"]) == (0, len(pushed), 0, 0)
    with Blocking.from_url(redis_url) as redis:
        letters: Any = redis.lrange("shop:dead", 0, -1)
        again: Any = redis.lrange("shadow:dead", 0, -1)
        assert [len(letters), len(again)] == [died, died]
    with working(redis_url, "shadow", lambda message: message not in (b"same", b"5") and act(message)):
        assert await replayed_here(spark, redis_url, given) == 1
    output = json.loads(capsys.readouterr().out)["compared"]
    assert (output["differ"], output["ids"]) == (3, sorted(["5", hashlib.sha1(b"same").hexdigest()]))
    assert {"before": "done", "now": "dead", "messages": 3} in output["table"]
