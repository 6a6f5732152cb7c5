"""Repeated jobs: what is due is sent once, by the server's clock, and the same plan set again changes nothing."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock import sync
from penstock.base.errors import WrongCall
from penstock.jobs import Attempt, Jobs, repeating
from penstock.jobs.repeating import Repeats
from tests.jobs.given import consumer, look_every, working
from tests.support.harness import PATIENCE, eventually


@asynccontextmanager
async def done(jobs: Jobs, many: int = 1) -> AsyncIterator[list[tuple[str, Any]]]:
    """Yield ids and values of jobs that ``many`` consumers do in the block."""
    found, workers = list[tuple[str, Any]](), [consumer(concurrency=5) for _ in range(many)]

    async def work(job: Attempt) -> None:
        found.append((job.id, *await job.get("in").pull()))

    for each in workers:
        each.job("s")(work)
    async with working(jobs, *workers):
        yield found


async def plan_of(jobs: Jobs, name: str = "r") -> dict[str, Any]:
    return (await jobs.repeats.all("s"))[name]


async def overdue(redis: Any, name: str = "r", due: float = 1_000.0) -> None:
    """Let a job be overdue, as if no consumer had been there."""
    await redis.zadd("hfxbus:repeats:s", {name: due})


@pytest.mark.parametrize(
    "times", [{"every": 3_600}, {"cron": "30 2 * * *", "zone": "Europe/Berlin"}, {"cron": "R R * * *"}]
)
async def test_a_plan_that_is_set_again_changes_nothing(jobs: Jobs, redis: Any, times: dict[str, Any]) -> None:
    first = await jobs.repeats.set("r", "s", {"in": 7}, **times)
    stored = await redis.hgetall("hfxbus:repeated:s"), await redis.zrange("hfxbus:repeats:s", 0, -1, withscores=True)
    await asyncio.sleep(0.01)  # timing: so that a plan that begins anew has other times
    for _ in range(3):
        assert await jobs.repeats.set("r", "s", {"in": 7}, **times) == pytest.approx(first, abs=0.001)
    assert stored == (
        await redis.hgetall("hfxbus:repeated:s"), await redis.zrange("hfxbus:repeats:s", 0, -1, withscores=True)
    )  # fmt: skip


async def test_a_run_that_was_missed_is_sent_once_though_the_plan_is_set_at_each_start(jobs: Jobs, redis: Any) -> None:
    for times in ({"every": 3_600}, {"cron": "30 2 * * *"}):
        await jobs.repeats.set("r", "s", {"in": 7}, **times)
        await overdue(redis)
        for _ in range(2):
            assert await jobs.repeats.set("r", "s", {"in": 7}, **times) == 1_000
        async with done(jobs) as found:
            await eventually(lambda: found)
            await eventually(lambda: _is_due_later(jobs))
        assert found == [("r@1000.000", 7)]
        assert (await plan_of(jobs))["sent"] == 1_000
        assert await jobs.repeats.set("r", "s", {"in": 7}, **times) > time.time()
        await jobs.repeats.remove("r", "s")


async def _is_due_later(jobs: Jobs) -> bool:
    return bool((await plan_of(jobs))["due"] > time.time())


async def test_other_values_keep_the_times_and_other_times_begin_anew(jobs: Jobs, redis: Any) -> None:
    await jobs.repeats.set("r", "s", {"in": 7}, every=3_600)
    await overdue(redis)
    assert await jobs.repeats.set("r", "s", {"in": 8}, every=3_600, key="k") == 1_000
    assert (await plan_of(jobs))["key"] == "k"
    async with done(jobs) as found:
        await eventually(lambda: found)
    assert found == [("r@1000.000", 8)]
    await overdue(redis)
    assert await jobs.repeats.set("r", "s", {"in": 8}, every=1_800) == pytest.approx(time.time() + 1_800, abs=PATIENCE)
    due = await jobs.repeats.set("r", "s", cron="0 3 * * *")
    assert due != await jobs.repeats.set("r", "s", cron="0 3 * * *", zone="Asia/Tokyo")


async def test_a_plan_that_is_only_written_otherwise_is_the_same(jobs: Jobs, redis: Any) -> None:
    await jobs.repeats.set("r", "s", cron="0 2 * * MON", zone="Europe/Berlin")
    await overdue(redis)
    assert await jobs.repeats.set("r", "s", cron=" 0  2 * * mon", zone="Europe/Berlin") == 1_000
    assert await jobs.repeats.set("other", "s", every=60) == await jobs.repeats.set(
        "other", "s", every=60.0, zone="Asia/Tokyo"
    )


async def test_a_plan_that_is_set_in_the_hour_that_comes_twice_is_due_tomorrow(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    berlin = ZoneInfo("Europe/Berlin")

    async def time_at(node: Any) -> float:
        return datetime(2027, 10, 31, 2, 30, 1, tzinfo=berlin).timestamp()

    monkeypatch.setattr(repeating, "time_at", time_at)
    due = await jobs.repeats.set("nightly", "s", cron="30 2 * * *", zone="Europe/Berlin")
    assert datetime.fromtimestamp(due, berlin).isoformat() == "2027-11-01T02:30:00+01:00"


async def test_a_plan_that_cannot_be_leaves_the_former_one(jobs: Jobs) -> None:
    due = await jobs.repeats.set("r", "s", every=3_600)
    for wrong in (
        {"cron": "0 0 2 * * *"}, {"cron": "0 0 30 2 *"}, {"cron": "0 0 1 1 * 0 2020"}, {"cron": 5},
        {"cron": "0 2 * * *", "zone": "No/Where"}, {"cron": "0 2 * * *", "zone": "Europe"},
        {"every": 0}, {"every": float("nan")}, {"every": "1"},
    ):  # fmt: skip
        with pytest.raises(WrongCall, match=r"cron=|every="):
            await jobs.repeats.set("r", "s", **wrong)
    assert await jobs.repeats.set("r", "s", every=3_600) == pytest.approx(due, abs=0.001)


async def test_the_last_run_of_a_plan_is_sent_and_then_it_is_over(jobs: Jobs, redis: Any) -> None:
    at = datetime.fromtimestamp((await redis.time())[0] + 2, UTC)
    cron = f"{at.minute} {at.hour} {at.day} {at.month} * {at.second} {at.year}"
    async with done(jobs) as found:
        due = await jobs.repeats.set("r", "s", {"in": 7}, cron=cron)
        assert due == at.timestamp()
        await eventually(lambda: found)
        await eventually(lambda: _is_over(jobs))
        assert await jobs.repeats.set("r", "s", {"in": 7}, cron=cron) == due, (
            "a program that sets it at its start starts"
        )
    assert found == [(f"r@{due:.3f}", 7)]
    assert not await jobs.repeats.all("s")
    assert await jobs.repeats.remove("r", "s")
    with pytest.raises(WrongCall, match="never due"):
        await jobs.repeats.set("r", "s", {"in": 7}, cron=cron)


async def _is_over(jobs: Jobs) -> bool:
    return not await jobs.repeats.all("s")


@pytest.mark.parametrize("ahead", [-600.0, 600.0, 90_000.0])
async def test_times_are_the_servers(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    due = await jobs.repeats.set("r", "s", {"in": 7}, every=0.5)
    assert due == pytest.approx(real() + 0.5, abs=PATIENCE)
    async with done(jobs) as found:
        await eventually(lambda: len(found) >= 4)
    times = [float(id.partition("@")[2]) for id, _ in found]
    assert all(later - earlier > 0.4 for earlier, later in pairwise(times))
    assert times[-1] == pytest.approx(real(), abs=PATIENCE)


async def test_several_consumers_send_each_run_once(jobs: Jobs, redis: Any) -> None:
    await jobs.repeats.set("r", "s", {"in": 7}, every=0.1)
    async with done(jobs, many=4):
        await eventually(lambda: _are_sent(redis, 10))
    sent = [fields[b"job"] for _, fields in await redis.xrange("hfxbus:str:s")]
    assert len(sent) == len(set(sent))


async def _are_sent(redis: Any, many: int) -> bool:
    return bool(await redis.xlen("hfxbus:str:s") >= many)


async def test_a_consumer_that_dies_once_it_has_sent_leaves_the_next_time_to_others(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_every(monkeypatch, 0.1)
    await jobs.repeats.set("r", "s", {"in": 7}, every=3_600)
    await overdue(redis)
    store, fails = Repeats._store, [True, True]

    async def stored(self: Repeats, *words: Any) -> bool:
        if fails:
            fails.pop()
            raise ConnectionError
        return await store(self, *words)

    monkeypatch.setattr(Repeats, "_store", stored)
    async with done(jobs) as found:
        await eventually(lambda: _is_due_later(jobs))
    assert not fails
    assert found == [("r@1000.000", 7)]


@pytest.mark.parametrize(
    "plan", [{"cron": "x y"}, {"cron": "0 2 * * *", "zone": "No/Where"}, {"every": "x"}, {"cron": "H(9-1) 2 * * *"}]
)
async def test_what_is_due_is_sent_once_though_the_next_time_cannot_be_known(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any]
) -> None:
    """The plan was sound where it was set; the next one that is set under its name goes on."""
    look_every(monkeypatch, 0.05)
    await redis.hset("hfxbus:repeated:s", "r", json.dumps(plan | {"values": {"in": "7"}}))
    await overdue(redis)
    async with done(jobs) as found:
        await eventually(lambda: found)
        await asyncio.sleep(0.3)  # timing: nothing more may happen
        assert await jobs.repeats.set("r", "s", {"in": 8}, every=0.2) > 1_000
        await eventually(lambda: len(found) >= 2)
    assert found[0] == ("r@1000.000", 7)
    assert found[1][1] == 8


async def test_r_is_drawn_once_and_h_by_the_name(jobs: Jobs, redis: Any) -> None:
    for cron in ("R R * * *", "H H * * *"):
        await jobs.repeats.set("r", "s", {"in": 7}, cron=cron)
        drawn = (await plan_of(jobs))["drawn"]
        await overdue(redis)
        async with done(jobs) as found:
            await eventually(lambda: _is_due_later(jobs))
        assert len(found) <= 1
        due = datetime.fromtimestamp((await plan_of(jobs))["due"], UTC)
        assert drawn == f"{due.minute} {due.hour} * * *" == (await plan_of(jobs))["drawn"]


async def test_a_plan_of_the_former_version_goes_on(jobs: Jobs, redis: Any) -> None:
    """It has no numbers that were drawn, and may have been stored by a clock that was a day ahead."""
    former = {"cron": "R  * * * *", "every": None, "zone": "UTC", "key": None, "begun": 1.5, "values": {"in": "7"}}
    await redis.hset("hfxbus:repeated:s", "r", json.dumps(former))
    await overdue(redis)
    async with done(jobs) as found:
        await eventually(lambda: found)
        await eventually(lambda: _is_due_later(jobs))
    drawn = (await plan_of(jobs))["drawn"]
    assert found == [("r@1000.000", 7)]
    await overdue(redis, due=time.time() + 86_400)
    assert await jobs.repeats.set("r", "s", {"in": 7}, cron="R * * * *") < time.time() + 3_601
    assert (await plan_of(jobs))["drawn"] == drawn


async def test_a_plan_that_is_changed_meanwhile_is_not_overwritten(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two programs set a plan at once, or one removes it while a consumer sends it: the last one holds."""
    read = Repeats._read

    async def slow(self: Repeats, *words: Any) -> Any:
        found = await read(self, *words)
        if not await redis.exists("changed"):
            await redis.set("changed", 1)
            await jobs.repeats.set("r", "s", {"in": 1}, every=7_200)
        return found

    monkeypatch.setattr(Repeats, "_read", slow)
    await jobs.repeats.set("r", "s", {"in": 2}, every=3_600)
    assert (await plan_of(jobs))["every"] == 3_600
    assert (await plan_of(jobs))["values"] == {"in": "2"}


def test_the_blocking_twin_keeps_a_plan_as_well(redis_url: str) -> None:
    with sync.Jobs(redis_url) as jobs:
        jobs.repeats.remove("r", "s")
        due = jobs.repeats.set("r", "s", {"in": 7}, every=3_600)
        assert jobs.repeats.set("r", "s", {"in": 8}, every=3_600) == pytest.approx(due, abs=0.001)
        with pytest.raises(WrongCall, match=r"expected '0 2 \* \* \*'"):
            jobs.repeats.set("r", "s", cron="0 0 2 * * *")
        assert jobs.repeats.remove("r", "s")
