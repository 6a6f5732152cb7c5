"""Jobs that are cancelled: in the stream, before their time, while they run, and while they wait for room."""

import asyncio

import pytest
from redis.asyncio import Redis

from penstock.base.errors import WrongCall
from penstock.jobs import DISTRIBUTED, Attempt, Jobs, Limit
from tests.jobs.given import consumer, working
from tests.support.harness import PATIENCE, eventually


async def test_a_job_that_runs_is_cancelled_by_its_id(jobs: Jobs) -> None:
    one, begun, ended = consumer(route="s"), asyncio.Event(), list[str | None]()

    @one.job("s", result="out")
    async def work(job: Attempt) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(job.why)

    async with working(jobs, one):
        sent = await jobs.producer().send("s", wait_for=["g"])
        await begun.wait()
        assert await jobs.cancel("s", job=sent.job.id) == ["g"]
        assert (await sent.finished(PATIENCE))["g"].error["code"] == "CANCELLED"

        async def has_ended() -> bool:
            return ended == ["cancelled"]

        await eventually(has_ended)
    assert await sent.job.get("out").pull() == [None]


async def test_a_job_that_was_read_and_waits_for_room_is_not_begun_once_it_is_cancelled(jobs: Jobs) -> None:
    one, seen, may_end = consumer(route="s"), list[str](), asyncio.Event()

    async def work(job: Attempt) -> None:
        seen.append(job.id)
        await may_end.wait()

    for stream in ("s", "t"):
        one.job(stream, limit=Limit(concurrency=1, by_key=True))(work)  # each is read alone
    producer = jobs.producer()
    sent = [await producer.send(stream, route="s", wait_for=["g"]) for stream in ("s", "t")]
    async with working(jobs, one):

        async def are_read() -> bool:
            pending = [
                await jobs.nodes[0].command("XPENDING", f"hfxbus:str:{each}".encode(), "hfxbus:csr:g") for each in "st"
            ]
            return [each[0] for each in pending] == [1, 1] and len(seen) == 1

        await eventually(are_read)
        (waits,) = [each for each in sent if each.job.id not in seen]
        assert await jobs.cancel(waits.stream, waits.entry, route="s") == ["g"]
        last = await producer.send("s", route="s", wait_for=["g"])
        await asyncio.sleep(0.2)  # timing: nothing may happen
        may_end.set()
        assert (await last.finished(PATIENCE))["g"].error is None
    assert waits.job.id not in seen


async def test_the_same_job_is_cancelled_as_often_as_it_is_there(jobs: Jobs, redis: Redis) -> None:
    await redis.xgroup_create("hfxbus:str:s", "hfxbus:csr:g", "0", mkstream=True)
    producer = jobs.producer()
    job = producer.job("a*b")
    for delay in (0, 0, 600, 700):
        await producer.send("s", job, delay=delay)
    await producer.send("s", producer.job("aXb"), delay=600)
    assert await jobs.cancel("s", job="a*b") == ["g"]
    assert (await redis.xlen("hfxbus:str:s"), await redis.zcard("hfxbus:later:s")) == (0, 1)
    assert await jobs.cancel("s", job="a*b") == []


async def test_an_entry_of_a_distributed_stream_may_be_two_jobs(two: Jobs, servers: list[Redis]) -> None:
    for server, id in zip(servers, ("J0", "J1"), strict=True):
        await server.xadd("hfxbus:str:s", {"prd": "P", "job": id}, id="5-1")
        await server.xgroup_create("hfxbus:str:s", "hfxbus:csr:g", "0")
    with pytest.raises(WrongCall, match="cancel the job by its id"):
        await two.cancel("s", "5-1", route=DISTRIBUTED)
    assert await two.cancel("s", job="J1", route=DISTRIBUTED) == ["g"]
    assert [await each.xlen("hfxbus:str:s") for each in servers] == [1, 0]
    for words in ({}, {"entry": "5-1", "job": "J0"}):
        with pytest.raises(WrongCall, match="expected the entry"):
            await two.cancel("s", **words)
