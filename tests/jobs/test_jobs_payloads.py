"""Values of jobs. HB-20; HB-D08, HB-D09, HB-D11."""

from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from penstock.base.errors import Unreadable, WrongCall, WrongType
from penstock.jobs import Attempt, Jobs
from penstock.jobs.intake import MAX_VALUE_BYTES
from tests.jobs.given import consumer, working
from tests.support.harness import PATIENCE, eventually


class Page(BaseModel):
    number: int


async def test_HB_20_values_are_set_read_and_deleted_in_one_round_trip(jobs: Jobs, redis: Any) -> None:
    job = jobs.job("J1")
    await job.set("a", {"x": [1, "ü"]}).set("b", b"\x00\xff").set("c", 3).push()
    assert await redis.get("hfxbus:job:J1:a") == '{"x":[1,"ü"]}'.encode()
    assert await redis.get("hfxbus:job:J1:b") == b"\x00\xff"
    await redis.config_resetstat()
    other = jobs.job("J1")
    found = await other.get("a").get("b", bytes).get("c", int).get("missing").delete("a").delete("c").set("d", 4).pull()
    assert found == [{"x": [1, "ü"]}, b"\x00\xff", 3, None]
    stats = await redis.info("commandstats")
    assert sum(stats.get(f"cmdstat_{each}", {}).get("calls", 0) for each in ("evalsha", "mget")) == 1
    assert sorted(await redis.keys("hfxbus:job:*")) == [b"hfxbus:job:J1:b", b"hfxbus:job:J1:d"]
    assert await other.pull() == []


async def test_HB_20_one_job_goes_to_several_streams(jobs: Jobs, redis: Any) -> None:
    job, producer = jobs.job("J1").set("in", 7), jobs.producer()
    for stream in "st":
        await producer.send(stream, job)
    for stream in "st":
        [(_, fields)] = await redis.xrange(f"hfxbus:str:{stream}")
        assert (fields[b"job"], fields[b"keys"]) == (b"J1", b'["in"]')
    assert await jobs.job("J1").get("in").pull() == [7]


@pytest.mark.parametrize(
    "value", [None, "", b"", [], False, 0, "ü😀", {"a": None}, 1.5, bytearray(b"x"), memoryview(b"y")]
)
async def test_HB_D09_every_value_comes_back(jobs: Jobs, value: Any) -> None:
    await jobs.job("J1").set("a", value).push()
    kind = bytes if isinstance(value, bytes | bytearray | memoryview) else None
    assert await jobs.job("J1").get("a", kind).pull() == [bytes(value) if kind else value]


async def test_HB_D08_HB_D11_every_value_has_a_ttl(jobs: Jobs, redis: Any) -> None:
    producer = jobs.producer()
    await jobs.job("J1").set("a", 1).set("b", 1, ttl=600).push()
    await producer.send("s", jobs.job("J2").set("a", 1).set("b", 1, ttl=600))
    await producer.send("s", {"a": 1, "b": 1}, ttl=600)
    keys = await redis.keys("hfxbus:job:*")
    ttls = {key: await redis.pttl(key) for key in keys}
    assert len(ttls) == 6
    assert min(ttls.values()) > 0
    assert len([ttl for ttl in ttls.values() if ttl <= 600_000]) == 4
    for bad in (0, -1, float("inf"), float("nan"), 1e12):
        with pytest.raises(WrongCall, match="ttl"):
            jobs.job().set("a", 1, ttl=bad)


async def test_HB_D11_what_is_no_JSON_is_refused_where_it_is_set(jobs: Jobs) -> None:
    for bad in (object(), {1, 2}, float("nan")):
        with pytest.raises(WrongCall, match="JSON"):
            jobs.job().set("a", bad)


async def test_HB_D09_what_cannot_be_read_raises(jobs: Jobs, redis: Any) -> None:
    await redis.mset(
        {"hfxbus:job:J1:a": b"\xff{", "hfxbus:job:J1:b": '{"number":"x"}', "hfxbus:job:J1:c": "[" * 100_000}
    )
    for key, kind, text in (
        ("a", None, "no JSON"),
        ("b", Page, "number"),
        ("c", None, "no JSON"),
        ("a", Page, "no JSON"),
    ):
        with pytest.raises(Unreadable, match=f"'{key}' of job J1.*{text}"):
            await jobs.job("J1").get(key, kind).pull()
    await redis.set("hfxbus:job:J1:b", '{"number":3}')
    assert await jobs.job("J1").get("b", Page).get("a", bytes).pull() == [Page(number=3), b"\xff{"]


async def test_HB_D09_a_key_of_the_wrong_type_raises_and_nothing_is_done(jobs: Jobs, redis: Any) -> None:
    await redis.lpush("hfxbus:job:J1:a", "x")
    for job in (jobs.job("J1").get("a"), jobs.job("J1").get("a").set("b", 1)):
        with pytest.raises(WrongType, match="J1:a"):
            await job.pull()
    assert await redis.keys("hfxbus:job:*") == [b"hfxbus:job:J1:a"]
    await jobs.job("J1").set("a", 1).push()  # as SET does
    assert await jobs.job("J1").get("a").pull() == [1]


async def test_names_of_values_are_checked(jobs: Jobs) -> None:
    given: list[Any] = ["", 'a"', "a\\", "\n", 5, ["a"]]
    for bad in given:
        for call in (jobs.job().get, jobs.job().delete, jobs.job, partial(jobs.job().set, value=1)):
            with pytest.raises(WrongCall):
                call(bad)


async def test_values_are_bounded(jobs: Jobs) -> None:
    job = jobs.job()
    for number in range(1_000):
        job.get(f"k{number}")
    with pytest.raises(WrongCall, match="1,000"):
        job.get("one more")


async def test_a_value_that_many_jobs_share_is_read_once_and_large_ones_in_turn(jobs: Jobs, redis: Any) -> None:
    """Entries that name one job have one value; a read ends once it has 8 MiB."""
    many, large = 100, bytes(MAX_VALUE_BYTES // 2)
    await redis.set("hfxbus:job:shared:in", large)
    await redis.rpush("hfxbus:job:wrong:in", "x")
    for number in range(3):
        await redis.set(f"hfxbus:job:J{number}:in", large)
    ids = ["shared"] * many + [f"J{number}" for number in range(3)] + ["wrong", "missing"]
    for id in ids:
        await redis.xadd("hfxbus:str:s", {"prd": "p", "job": id})
    worker, seen = consumer(concurrency=len(ids)), dict[str, set[int | None]]()

    @worker.job("s", values=["in"])
    async def work(job: Attempt) -> None:
        value = job.values["in"]
        seen.setdefault(job.id, set()).add(None if value is None else len(value))

    await redis.config_resetstat()
    async with working(jobs, worker):
        await eventually(partial(_are_done, redis, len(ids)))
    assert seen == {f"J{number}": {len(large)} for number in range(3)} | {
        "shared": {len(large)}, "wrong": {None}, "missing": {None},
    }  # fmt: skip
    stats = await redis.info("commandstats")
    assert stats["cmdstat_get"]["calls"] == 6
    assert (await redis.info("stats"))["total_net_output_bytes"] < 5 * len(large)


async def _are_done(redis: Any, many: int) -> bool:
    return bool(await redis.xlen("hfxbus:done:s") == many)


async def test_values_live_their_time_from_when_a_delayed_job_begins(jobs: Jobs, redis: Any) -> None:
    sent = await jobs.producer().send("s", {"in": 1}, delay=1_000, ttl=10)
    assert 1_000_000 < await redis.pttl(f"hfxbus:job:{sent.job.id}:in") <= 1_010_000


async def test_a_later_attempt_reads_the_values_as_the_former_one_has_left_them(jobs: Jobs) -> None:
    """However small they are: also one of a dead job that is sent again."""
    worker, found = consumer(attempts=2), list[tuple[int, bytes | None]]()

    @worker.job("s", values=["state"])
    async def process(job: Attempt) -> None:
        found.append((job.number, job.values["state"]))
        await job.set("state", len(found)).push()
        if len(found) < 3:
            raise ValueError("again")

    async with working(jobs, worker):
        sent = await jobs.producer().send("s", {"state": 0}, wait_for=["g"])
        assert (await sent.finished(PATIENCE))["g"].error
        [letter] = [each async for each in jobs.dead("s")]
        assert await jobs.retry(letter)
        await eventually(lambda: len(found) == 3)
    assert found == [(1, b"0"), (2, b"1"), (1, b"2")]
