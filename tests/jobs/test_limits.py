"""Limits of jobs: never exceeded, and nothing that waits for a permit is forgotten."""

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from penstock.core.connection import server_time
from penstock.jobs import Attempt, Jobs, Limit, source
from tests.jobs.given import Gauge, Held, consumer, pending, send, working
from tests.support.harness import eventually

pytestmark = pytest.mark.usefixtures("seldom")
ONE_BY_KEY = Limit(concurrency=1, by_key=True)


@pytest.mark.parametrize(
    "key", ["user:anna", "store:united", "a:at", "b:until", "b:count", 'q"uote', "x y  z", "%20", ""]
)
async def test_a_limit_holds_for_keys_of_any_characters(jobs: Jobs, redis: Any, key: str) -> None:
    worker, gauge = consumer(concurrency=20), Gauge()
    done = list[str]()

    @worker.job("s", limit=ONE_BY_KEY)
    async def work(job: Attempt) -> None:
        with gauge:
            await asyncio.sleep(0.01)
        done.append(job.id)

    async with working(jobs, worker):
        for number in range(20):
            await redis.xadd("hfxbus:str:s", {"prd": "p", "job": f"{number}", "key": key})
            await asyncio.sleep(0.005)
        await eventually(lambda: len(done) == 20)
    assert done == [str(number) for number in range(20)]
    assert gauge.most == 1


async def test_a_job_begins_as_soon_as_a_permit_is_given_back(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be given back while the consumer asks for one."""
    monkeypatch.setattr(source, "LOOK_SECONDS", 3600)
    worker, done = consumer(), list[str]()

    @worker.job("s", limit=Limit(concurrency=1))
    async def work(job: Attempt) -> None:
        done.append(job.id)

    async with working(jobs, worker):
        sent = await send(jobs, 100)
        await eventually(lambda: len(done) == len(sent))


async def test_jobs_of_one_key_take_no_permit_of_a_key_that_begins_alike(jobs: Jobs, redis: Any) -> None:
    worker, held, done = consumer(concurrency=20), Held(), list[str]()

    @worker.job("s", limit=ONE_BY_KEY)
    async def work(job: Attempt) -> None:
        if job.id.startswith("held"):
            await held(job)
        done.append(job.id)

    producer = jobs.producer()
    async with working(jobs, worker):
        for id, key in (("held", "shop 7"), ("later", "shop 7"), ("first", "shop")):
            await producer.send("s", jobs.job(id), key=key)
        await eventually(lambda: done == ["first"])
        await asyncio.sleep(0.1)  # timing: nothing may happen
        await producer.send("s", jobs.job("second"), key="shop")
        await eventually(lambda: done == ["first", "second"])
        held.let()
        await eventually(lambda: len(done) == 4)


async def test_a_job_that_gets_a_permit_of_another_obeys_the_rate_too(jobs: Jobs, redis: Any) -> None:
    worker, begun, may_end = consumer(concurrency=20), list[float](), asyncio.Event()

    @worker.job("s", limit=Limit(rate=10, concurrency=1, by_key=True))
    async def work(job: Attempt) -> None:
        begun.append(time.monotonic())
        if job.id == "0":
            await may_end.wait()

    producer = jobs.producer()
    async with working(jobs, worker):
        for number in range(8):
            await producer.send("s", jobs.job(str(number)), key="k")
        await eventually(partial(_are_parked, redis, 7))
        let = time.monotonic()
        may_end.set()
        await eventually(lambda: len(begun) == 8)
    assert begun[-1] - let > 0.55  # the first one after ``let`` may begin at once, the others 0.1 s after each other


async def test_a_consumer_that_has_lost_a_job_gives_no_permit_back_that_another_has(jobs: Jobs, redis: Any) -> None:
    """As after a SIGSTOP: the job runs elsewhere when the one that was stopped finds out."""
    worker, held, started = consumer(concurrency=5), Held(), list[str]()

    @worker.job("s", limit=ONE_BY_KEY, deadline=None)
    async def work(job: Attempt) -> None:
        started.append(job.id)
        await held(job)

    producer = jobs.producer()
    async with working(jobs, worker):
        await producer.send("s", jobs.job("1"), key="k")
        await producer.send("s", jobs.job("2"), key="k")
        await eventually(lambda: started == ["1"])
        await eventually(partial(_are_read, redis, 2))
        [(entry, _), *_] = await pending(redis)
        await redis.xclaim("hfxbus:str:s", "hfxbus:csr:g", "another", 0, [entry])  # which has its permit
        held.let()
        await eventually(lambda: held.ended)
        await asyncio.sleep(0.5)  # timing: nothing may happen
        assert started == ["1"]
        await redis.zrem("hfxbus:busy:s:g", f"k {entry}")


@pytest.mark.parametrize("how", ["cancel", "xdel"])
async def test_jobs_that_are_cancelled_while_they_wait_for_a_permit_hold_nobody_up(
    jobs: Jobs, redis: Any, how: str
) -> None:
    worker, held, done = consumer(concurrency=20), Held(), list[str]()

    @worker.job("s", limit=ONE_BY_KEY)
    async def work(job: Attempt) -> None:
        await held(job)
        done.append(job.id)

    producer = jobs.producer()
    async with working(jobs, worker):
        sent = [await producer.send("s", jobs.job(str(number)), key="k") for number in range(10)]
        await eventually(partial(_are_read, redis, 10))
        for each in sent[1:9]:
            if how == "cancel":
                assert await jobs.cancel("s", each.entry) == ["g"]
            else:
                await redis.xdel("hfxbus:str:s", each.entry)
        held.let()
        await eventually(lambda: done == ["0", "9"])
        await eventually(lambda: _empty(redis))


async def _are_read(redis: Any, many: int) -> bool:
    """Return whether ``many`` jobs run or wait for a permit."""
    return await redis.exists("hfxbus:str:s") == 1 and len(await pending(redis)) == many


async def _are_parked(redis: Any, many: int) -> bool:
    return bool(await redis.zcard("hfxbus:parked:s:g") == many)


async def _empty(redis: Any) -> bool:
    names = ("parked", "busy", "wait", "tries")
    return not [name for name in names if await redis.exists(f"hfxbus:{name}:s:g")]


async def test_jobs_that_wait_for_a_permit_begin_if_the_limit_is_taken_away(jobs: Jobs, redis: Any) -> None:
    first, held = consumer(concurrency=20, stop_timeout=0.1), Held()
    first.job("s", limit=ONE_BY_KEY)(held)
    producer = jobs.producer()
    async with working(jobs, first):
        for number in range(5):
            await producer.send("s", jobs.job(str(number)), key="k")
        await eventually(partial(_are_read, redis, 5))
    second, done = consumer(concurrency=20), set[str]()

    @second.job("s")
    async def work(job: Attempt) -> None:
        done.add(job.id)

    async with working(jobs, second):
        await eventually(lambda: len(done) == 5)


async def test_any_entry_waits_for_a_permit_and_keeps_its_id(jobs: Jobs, redis: Any) -> None:
    worker, held, done = consumer(concurrency=20), Held(), list[str]()

    @worker.job("s", limit=ONE_BY_KEY)
    async def work(job: Attempt) -> None:
        await held(job)
        done.append(job.id)

    async with working(jobs, worker):
        for number, entry in enumerate(("1-1", "1-999999999", "1-18446744073709551000", "99999999999999-0")):
            await redis.xadd("hfxbus:str:s", {"prd": "p", "job": f"{number}", "key": "k"}, id=entry)
        await eventually(partial(_are_read, redis, 4))
        held.let()
        await eventually(lambda: done == ["0", "1", "2", "3"])


async def test_a_consumer_that_is_paused_holds_no_job_and_no_permit(jobs: Jobs, redis: Any) -> None:
    paused, playing = consumer(concurrency=5, claim_after=3_600), consumer(concurrency=5, claim_after=3_600)
    done = list[str]()

    async def work(job: Attempt) -> None:
        done.append(job.id)

    for each in (paused, playing):
        each.job("s", limit=Limit(concurrency=1))(work)
    producer = jobs.producer()
    async with working(jobs, paused):
        await asyncio.sleep(0.3)  # timing: it waits for jobs, with a permit
        await paused.pause()
        async with working(jobs, playing):
            for number in range(5):
                await producer.send("s", jobs.job(str(number)))
            await eventually(lambda: len(done) == 5)


async def test_nothing_is_left_when_all_is_done(jobs: Jobs, redis: Any) -> None:
    worker, done = consumer(concurrency=20, attempts=2), list[str]()

    @worker.job("s", limit=ONE_BY_KEY)
    async def work(job: Attempt) -> None:
        done.append(job.id)
        if job.number == 1 and int(job.id) % 3 == 0:
            raise ValueError

    producer = jobs.producer()
    async with working(jobs, worker):
        for number in range(40):
            await producer.send("s", jobs.job(str(number)), key=f"k{number % 4}")
        await eventually(lambda: len(done) == 40 + 14)
        await eventually(lambda: _empty(redis))


@pytest.mark.parametrize("ahead", [":at", ":until"])
async def test_a_rate_that_was_kept_before_the_clock_was_set_back_holds_nobody_up(
    jobs: Jobs, redis: Any, ahead: str
) -> None:
    worker, done = consumer(concurrency=20), list[str]()

    @worker.job("s", limit=Limit(rate=1))
    async def work(job: Attempt) -> None:
        done.append(job.id)

    await redis.hset("hfxbus:limit:s:g", ahead, await server_time(redis) + 3_600)
    producer = jobs.producer()
    async with working(jobs, worker):
        for number in range(3):
            await producer.send("s", jobs.job(str(number)))
        await eventually(lambda: len(done) == 3)
