"""Jobs that were left: claims, fences, trims. HB-37 to HB-39; HB-D01, HB-D02, HB-D20 to HB-D22."""

import asyncio
import json
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from penstock.base.keys import Keys
from penstock.jobs import Attempt, Jobs, Rejected, in_hand, ledger, scheduler, settlement
from tests.jobs.given import (
    Gauge,
    Held,
    completed,
    consumer,
    dead,
    kept,
    look_every,
    pending,
    renew_every,
    send,
    working,
)
from tests.support.harness import PATIENCE, eventually

STREAM, GROUP = "hfxbus:str:s", "hfxbus:csr:g"


async def left_by_the_dead(redis: Any, jobs: Jobs, many: int, times: int = 1) -> None:
    """Have a consumer read jobs and die."""
    await redis.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    ids = await send(jobs, many)
    await redis.xreadgroup(GROUP, "DEAD", {STREAM: ">"}, count=len(ids))
    entries = [entry for entry, _ in await redis.xrange(STREAM)]
    await redis.xclaim(STREAM, GROUP, "DEAD", 0, entries, retrycount=times, idle=60_000)


async def test_HB_37_HB_D01_HB_D01b_jobs_of_a_dead_consumer_are_claimed_with_id_and_producer(
    jobs: Jobs, redis: Any
) -> None:
    await redis.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    await redis.xadd(STREAM, {"prd": "P", "job": "J0", "keys": "[]", "key": "k"})
    await redis.xreadgroup(GROUP, "DEAD", {STREAM: ">"})
    [(entry, _)] = await redis.xrange(STREAM)
    await redis.xclaim(STREAM, GROUP, "DEAD", 0, [entry], retrycount=1, idle=60_000)
    worker, found = consumer(claim_after=10), list[tuple[object, ...]]()

    @worker.job("s")
    async def process(job: Attempt) -> None:
        found.append((job.id, job.producer, job.key, job.number, job.stream, job.group))

    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 1))
    assert found == [("J0", "P", "k", 2, "s", "g")]


async def test_HB_D02_claims_do_not_exceed_the_concurrency(jobs: Jobs, redis: Any) -> None:
    """HB-D02b: many pages of one entry, none twice, and the server answers meanwhile."""
    await left_by_the_dead(redis, jobs, 130)
    gauge, worker, begun = Gauge(), consumer(claim_after=10, concurrency=2), list[str]()

    @worker.job("s")
    async def process(job: Attempt) -> None:
        begun.append(job.id)
        with gauge:
            await asyncio.sleep(0.001)

    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 130))
    assert gauge.most == 2
    assert sorted(begun) == sorted(f"J{number}" for number in range(130))


async def test_HB_D02c_a_deleted_entry_a_stream_without_group_stop_no_claim(jobs: Jobs, redis: Any) -> None:
    await left_by_the_dead(redis, jobs, 3)
    entries = [entry for entry, _ in await redis.xrange(STREAM)]
    await redis.xdel(STREAM, entries[1])
    await redis.xadd("hfxbus:str:t", {"job": "other"})
    worker, held = consumer(claim_after=10, concurrency=5), Held()
    held.let()
    worker.job("t")(held)
    worker.job("s")(held)
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 2))
        await eventually(lambda: completed(redis, 1, "t"))
    assert sorted(held.ended) == ["J0", "J2", "other"]
    assert await pending(redis) == []


async def test_HB_38_HB_D21_a_job_whose_consumers_die_ends_as_a_dead_letter(jobs: Jobs, redis: Any) -> None:
    """With its payload, and the deaths in its history."""
    await jobs.job("J0").set("in", 5).push()
    await left_by_the_dead(redis, jobs, 1, times=3)
    await redis.delete(STREAM)
    await redis.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    await jobs.producer("P").send("s", jobs.job("J0").set("in", 5))
    await redis.xreadgroup(GROUP, "DEAD", {STREAM: ">"})
    [(entry, _)] = await redis.xrange(STREAM)
    await redis.xclaim(STREAM, GROUP, "DEAD", 0, [entry], retrycount=3, idle=60_000)
    worker, held = consumer(claim_after=10, attempts=3), Held()
    worker.job("s")(held)
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 1))
    assert held.begun == []
    assert await pending(redis) == []
    [letter] = await dead(redis)
    assert (letter["job"], letter["values"]) == ("J0", {"in": "5"})
    assert letter["errors"][-1]["error"]["name"] == "Lost"
    [completion] = await kept(redis)
    assert completion["err"]["name"] == "Lost"


async def test_the_history_of_a_job_has_deaths_and_errors_in_order(jobs: Jobs, redis: Any) -> None:
    worker = consumer(claim_after=10, attempts=4)

    @worker.job("s")
    async def process(job: Attempt) -> None:
        raise ValueError(f"no {job.number}")

    await left_by_the_dead(redis, jobs, 1)
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 1))
    [letter] = await dead(redis)
    assert [(each["attempt"], each["error"]["name"]) for each in letter["errors"]] == [
        (1, "Lost"), (2, "ValueError"), (3, "ValueError"), (4, "ValueError"),
    ]  # fmt: skip


async def test_a_consumer_that_lost_a_job_cannot_finish_it(jobs: Jobs, redis: Any) -> None:
    """Its result is not written, its failure is not counted, and the job is the other's."""
    one, errors = consumer("g", id="ONE", attempts=5), dict[str, Exception]()
    held = {"J0": asyncio.Event(), "J1": asyncio.Event()}
    begun = list[str]()

    @one.job("s", result="out")
    async def process(job: Attempt) -> str:
        begun.append(job.id)
        await held[job.id].wait()
        if job.id == "J1":
            raise ValueError("mine")
        return "late"

    one.options.concurrency = 2
    async with working(jobs, one):
        await send(jobs, 2)
        await eventually(lambda: len(begun) == 2)
        entries = [entry for entry, _ in await redis.xrange(STREAM)]
        await redis.xclaim(STREAM, GROUP, "OTHER", 0, entries)
        for each in held.values():
            each.set()
        await eventually(lambda: one.running == 0)
        assert await kept(redis) == []
        assert [each["consumer"] for each in await redis.xpending_range(STREAM, GROUP, "-", "+", 9)] == [b"OTHER"] * 2
        assert await jobs.job("J0").get("out").pull() == [None]
        assert not await redis.exists("hfxbus:wait:s:g", "hfxbus:tries:s:g", "hfxbus:dead:s")
    assert not errors


async def test_a_consumer_that_lost_a_job_is_told(jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    renew_every(monkeypatch, 0.1)
    one, held, cancelled = consumer("g", id="ONE"), Held(), list[str | None]()

    @one.job("s")
    async def process(job: Attempt) -> None:
        try:
            await held(job)
        except asyncio.CancelledError:
            cancelled.append(job.why)
            raise

    async with working(jobs, one):
        await send(jobs, 1)
        await eventually(lambda: held.begun)
        [(entry, _)] = await redis.xrange(STREAM)
        await redis.xclaim(STREAM, GROUP, "OTHER", 0, [entry], idle=0)
        await eventually(lambda: cancelled == ["lost"])


async def test_nothing_is_claimed_until_those_who_hold_it_could_come_back_to_a_server_that_was_away(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_every(monkeypatch, 0.05)
    one, held, node, looks = consumer("g", id="ONE"), Held(), jobs.nodes[0], list[int]()
    one.job("s")(held)
    held.let()
    run = node.run

    async def noted(script: Any, **named: Any) -> Any:
        looks.extend([named["idle"]] if script is scheduler._tend else [])
        return await run(script, **named)

    monkeypatch.setattr(node, "run", noted)
    await left_by_the_dead(redis, jobs, 1)
    now = time.monotonic()
    node.lost_at, node.back_at = now - 40, now
    async with working(jobs, one):
        await eventually(lambda: len(looks) > 3)
        assert {*looks} == {scheduler.NEVER_MS}
        assert held.begun == []
        node.back_at = node.lost_at + 5  # so short that those who hold it have renewed it
        await eventually(lambda: held.begun == [("J0", 2)])


async def test_a_job_for_another_group_that_a_dead_consumer_had_is_no_dead_job(jobs: Jobs, redis: Any) -> None:
    """It was sent again for that group; whoever read it has died before it said that it is not for this one."""
    await redis.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    await redis.xadd(STREAM, {"job": "J0", "prd": "p", "for": "other"})
    [(_, [(entry, _)])] = await redis.xreadgroup(GROUP, "DEAD", {STREAM: ">"})
    await redis.xclaim(STREAM, GROUP, "DEAD", 0, [entry], idle=70_000, justid=True)
    one, held = consumer("g", attempts=1), Held()
    one.job("s")(held)
    async with working(jobs, one):
        await eventually(partial(has_none_pending, redis))
    assert held.begun == []
    assert not await redis.exists("hfxbus:dead:s")


async def has_none_pending(redis: Any) -> bool:
    return await pending(redis) == []


async def test_a_job_that_its_own_consumer_claims_goes_on_and_does_not_begin_again(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after it stood still for longer than ``claim_after``: the job may not even have an attempt left."""
    look_every(monkeypatch, 0.05)
    one, held, attempts = consumer("g", id="ONE", attempts=1, concurrency=2), Held(), list[Attempt]()

    @one.job("s")
    async def process(job: Attempt) -> None:
        attempts.append(job)
        await held(job)

    async with working(jobs, one):
        await send(jobs, 1)
        await eventually(lambda: held.begun)
        [(entry, _)] = await redis.xrange(STREAM)
        for times in (2, 3):
            await redis.xclaim(STREAM, GROUP, "ONE", 0, [entry], idle=70_000, retrycount=times, justid=True)
            await eventually(partial(is_numbered, attempts, times))
        held.let()
        await eventually(lambda: completed(redis, 1))
    assert held.begun == [("J0", 1)]
    assert [each["job"] for each in await kept(redis) if "err" not in each] == ["J0"]
    assert await pending(redis) == []
    assert not await redis.exists("hfxbus:wait:s:g", "hfxbus:tries:s:g", "hfxbus:dead:s")


async def test_a_job_that_is_claimed_by_its_own_consumer_while_it_is_renewed_is_not_lost(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_every(monkeypatch, 0.05)
    one, attempts, may_end = consumer("g", id="ONE"), list[Attempt](), asyncio.Event()

    @one.job("s")
    async def process(job: Attempt) -> None:
        attempts.append(job)
        await may_end.wait()

    async with working(jobs, one):
        await send(jobs, 1)
        await eventually(lambda: attempts)
        [(entry, _)] = await redis.xrange(STREAM)
        run, renewed = jobs.nodes[0].run, list[object]()

        async def claimed_first(script: Any, **named: Any) -> Any:
            """Have the claim come between what a renewal says and its reply."""
            if script is not in_hand._renew:
                return await run(script, **named)
            if not renewed:
                await redis.xclaim(STREAM, GROUP, "ONE", 0, [entry], retrycount=2, justid=True)
            found = await run(script, **named)
            attempts[0].number = 2
            renewed.append(found)
            return found

        monkeypatch.setattr(jobs.nodes[0], "run", claimed_first)
        await eventually(lambda: len(renewed) >= 2)
        assert renewed[:2] == [[[entry], []], [[], []]]
        may_end.set()
        await eventually(lambda: completed(redis, 1))
    assert [(each.number, each.why) for each in attempts] == [(2, None)]


def is_numbered(attempts: list[Attempt], number: int) -> bool:
    """Return whether the only attempt has that number."""
    return [each.number for each in attempts] == [number]


@pytest.mark.parametrize("result", ["out", None])
async def test_a_job_that_its_own_consumer_claims_while_it_is_settled_is_settled_again(
    jobs: Jobs, redis: Any, result: str | None
) -> None:
    one = consumer("g", id="ONE")

    @one.job("s", result=result)
    async def process(job: Attempt) -> str:
        await redis.xclaim(STREAM, GROUP, "ONE", 0, [job.entry], retrycount=2, justid=True)
        asyncio.get_running_loop().call_soon(setattr, job, "number", 2)
        return "mine"

    async with working(jobs, one):
        await send(jobs, 1)
        await eventually(lambda: completed(redis, 1))
    assert await jobs.job("J0").get("out").pull() == [result and "mine"]
    assert await pending(redis) == []


async def test_a_job_that_its_consumer_has_lost_and_claims_is_renewed_though_its_first_attempt_ends(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_every(monkeypatch, 0.05)
    look_every(monkeypatch, 0.05)
    one, held = consumer("g", id="ONE", concurrency=2), {1: asyncio.Event(), 3: asyncio.Event()}
    begun, ended = list[int](), list[int]()

    @one.job("s")
    async def process(job: Attempt) -> None:
        begun.append(job.number)
        with suppress(asyncio.CancelledError):
            await held[job.number].wait()
        await held[job.number].wait()
        ended.append(job.number)

    async with working(jobs, one):
        await send(jobs, 1)
        await eventually(lambda: begun)
        [(entry, _)] = await redis.xrange(STREAM)
        await redis.xclaim(STREAM, GROUP, "OTHER", 0, [entry], idle=70_000, retrycount=2)
        await eventually(lambda: begun == [1, 3])
        held[1].set()
        await eventually(lambda: ended == [1])
        await redis.xclaim(STREAM, GROUP, "ONE", 0, [entry], idle=30_000, retrycount=3, justid=True)
        await eventually(partial(is_fresh, redis))
        held[3].set()
        await eventually(lambda: completed(redis, 1))
    assert begun == ended == [1, 3]


async def is_fresh(redis: Any) -> bool:
    """Return whether the job in hand was renewed lately."""
    [found] = await redis.xpending_range(STREAM, GROUP, "-", "+", 9)
    return bool(found["time_since_delivered"] < 30_000)


async def test_a_service_begins_no_job_that_others_have_ended_while_the_server_was_away(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be registered again, and be under way for ever."""
    one, held, run = consumer("g", id="ONE"), Held(), jobs.nodes[0].run
    held.let()
    one.job("s")(held)

    async def late(script: Any, **named: Any) -> Any:
        """Have others claim the first job, and end it, before the server hears that it begins."""
        if script is ledger._begin and named["words"][2] == "J0":
            await redis.xclaim(STREAM, GROUP, "OTHER", 0, [named["words"][0]])
            await redis.xack(STREAM, GROUP, named["words"][0])
        return await run(script, **named)

    monkeypatch.setattr(jobs.nodes[0], "run", late)
    running = asyncio.create_task(jobs.run(one, ledger.Ledger(Keys("shop"), "1", 100)))
    for id in ("J0", "J1"):
        await jobs.producer().send("s", jobs.job(id))
    await eventually(lambda: completed(redis, 1))
    one.stop()
    await running
    assert held.ended == ["J1"]
    assert await redis.hget("shop:metrics:registered", "count") == b"1"
    assert await redis.zcard("shop:message:deadlines") == 0


@pytest.mark.parametrize("has_begun", [False, True])
async def test_what_is_claimed_while_its_consumer_stops_is_handed_back(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    """As at each reload of a service: else it would wait for ``claim_after``, and lose an attempt.

    One that had begun elsewhere is no new one, though its attempt does not count.
    """
    one, held, run = consumer(), Held(), jobs.nodes[0].run
    held.let()
    one.job("s")(held)

    async def stopping(script: Any, **named: Any) -> Any:
        """Have the stop come between a claim and its reply."""
        found = await run(script, **named)
        if script is scheduler._tend and found[1]:
            one.stop()
            await asyncio.sleep(0.1)  # timing: the stop goes on meanwhile
        return found

    monkeypatch.setattr(jobs.nodes[0], "run", stopping)
    await left_by_the_dead(redis, jobs, 1)
    if has_begun:
        [(entry, _)] = await redis.xrange(STREAM)
        await redis.hset("hfxbus:tries:s:g", entry + b":free", 1)
        await redis.zadd("hfxbus:wait:s:g", {entry: 0})
    async with asyncio.timeout(PATIENCE):
        await jobs.run(one)
    assert held.ended == []
    assert await read_as_node(redis, "s") == []
    monkeypatch.undo()
    other = consumer()
    other.job("s")(held)
    async with working(jobs, other):
        await eventually(lambda: held.ended == ["J0"])


async def test_what_is_read_while_something_due_is_claimed_begins_at_once(
    jobs: Jobs, redis: Any, seldom: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to a read may come while the consumer asks what is due: then nothing else would tell of it."""
    one, held, run, attempts = consumer(concurrency=5), Held(), jobs.nodes[0].run, list[int]()
    held.let()
    one.job("s")(held)

    @one.job("fails")
    async def fails(job: Attempt) -> None:
        attempts.append(job.number)
        if job.number == 1:
            raise ValueError("not yet")

    async def meanwhile(script: Any, **named: Any) -> Any:
        found = await run(script, **named)
        if script is scheduler._tend and found[1]:
            await send(jobs, 1)
            await eventually(lambda: pending_has(redis, "s"))
            await asyncio.sleep(0.05)  # timing: the reply is here
        return found

    monkeypatch.setattr(jobs.nodes[0], "run", meanwhile)
    monkeypatch.setattr("penstock.jobs.source.BLOCK_SECONDS", 3600)
    async with working(jobs, one):
        await send(jobs, 1, "fails")
        await eventually(lambda: held.ended == ["J0"])
    assert attempts == [1, 2]


async def pending_has(redis: Any, stream: str) -> bool:
    """Return whether a job of the stream is in hand."""
    return bool(await pending(redis, stream))


async def test_a_job_whose_entry_is_gone_as_it_fails_ends_for_its_producer(jobs: Jobs, redis: Any) -> None:
    one = consumer()

    @one.job("s")
    async def fails(job: Attempt) -> None:
        await redis.xtrim(STREAM, maxlen=0, approximate=False)
        raise ValueError("bad")

    async with working(jobs, one):
        sent = await jobs.producer().send("s", jobs.job("J0"), wait_for=["g"])
        with pytest.raises(Rejected) as rejected:
            await sent.finished(PATIENCE, reject=True)
    assert rejected.value.error["name"] == "Gone"
    assert [error["error"]["message"] for error in (await dead(redis))[0]["errors"]] == ["bad"]


async def test_suspects_that_died_together_are_not_charged(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await left_by_the_dead(redis, jobs, 2)
    for entry, _ in await redis.xrange(STREAM):
        await redis.hset("hfxbus:tries:s:g", entry + b":suspect", "2 out")
    assert await begun_alone(jobs, redis, 2) == [1, 1]


async def test_who_has_one_job_in_hand_and_others_that_wait_has_died_of_that_one(jobs: Jobs, redis: Any) -> None:
    await left_by_the_dead(redis, jobs, 3)
    for entry, _ in (await redis.xrange(STREAM))[1:]:
        await redis.zadd("hfxbus:wait:s:g", {entry: time.time() + 3_600})
    assert await begun_alone(jobs, redis, 1) == [2]


async def begun_alone(jobs: Jobs, redis: Any, many: int) -> list[int]:
    """Return the numbers of the attempts that a consumer begins of what a dead one has left, one after the other."""
    one, held = consumer(concurrency=5), Held()
    one.job("s")(held)
    held.let()
    async with working(jobs, one):
        await eventually(lambda: completed(redis, many))
    return [number for _, number in held.begun]


async def test_a_consumer_that_dies_twice_under_its_name_is_judged_by_what_it_had_each_time(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first death, of one job, would make each of ten guilty of the second."""
    look_every(monkeypatch, 0.05)
    await left_by_the_dead(redis, jobs, 4)
    await redis.hset("hfxbus:tries:s:g", "died DEAD", 1)  # as a former version has left it
    one, held = consumer(concurrency=4), Held()
    one.job("s")(held)
    async with working(jobs, one):
        await eventually(lambda: len(held.begun) == 2)  # half of them, suspects
        held.let()
        await eventually(lambda: completed(redis, 4))
    assert [number for _, number in held.begun] == [1] * 4
    assert not await redis.hexists("hfxbus:tries:s:g", "died DEAD")


async def test_an_attempt_of_the_same_consumer_is_fenced_by_its_number(jobs: Jobs, redis: Any) -> None:
    worker, held = consumer("g", id="ONE"), Held()
    worker.job("s")(held)
    async with working(jobs, worker):
        await send(jobs, 1)
        await eventually(lambda: held.begun)
        [(entry, _)] = await redis.xrange(STREAM)
        await redis.xclaim(STREAM, GROUP, "ONE", 0, [entry], retrycount=2)
        held.let()
        await eventually(lambda: worker.running == 0)
        assert await pending(redis) == [(entry.decode(), 2)]


async def test_HB_39_HB_D22_a_stream_is_trimmed_behind_its_slowest_group(jobs: Jobs, redis: Any) -> None:
    """Node's groups count, and jobs that wait for their next attempt."""
    await redis.xgroup_create(STREAM, "hfxbus:csr:node", "0", mkstream=True)
    worker = consumer(concurrency=50, trim=True)

    @worker.job("s")
    async def process(job: Attempt) -> None: ...

    await send(jobs, 1_500)
    entries = [entry for entry, _ in await redis.xrange(STREAM)]
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 1_500))
        await eventually(lambda: nothing(redis))
        assert await redis.xlen(STREAM) == 1_500
        await redis.xreadgroup("hfxbus:csr:node", "N", {STREAM: ">"}, count=1_200)
        await redis.xack(STREAM, "hfxbus:csr:node", *(entry for entry in entries[:1_200] if entry != entries[700]))
        await send(jobs, 1_001)
        await eventually(lambda: shorter(redis, 2_501))
        left = [entry for entry, _ in await redis.xrange(STREAM)]
        assert left[0] <= entries[700]
        assert set(entries[700:]) <= set(left)


async def nothing(redis: Any) -> bool:
    return await pending(redis) == []


async def shorter(redis: Any, length: int) -> bool:
    return bool(await redis.xlen(STREAM) < length - 500)


async def test_HB_D20_names_of_dead_consumers_of_ours_do_not_stay(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement, "SILENT_MS", -1)
    await redis.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    for name in ("py-dead", "py-has-a-job", "node"):
        await redis.xgroup_createconsumer(STREAM, GROUP, name)
    await send(jobs, 1)
    await redis.xreadgroup(GROUP, "py-has-a-job", {STREAM: ">"})
    worker, held = consumer(claim_after=60), Held()
    held.let()
    worker.job("s")(held)
    async with working(jobs, worker):
        await send(jobs, 1_000)  # after which it is looked
        await eventually(partial(names_are, redis, {"node", "py-has-a-job", worker.id}))


async def names_are(redis: Any, names: set[str]) -> bool:
    return {each["name"].decode() for each in await redis.xinfo_consumers(STREAM, GROUP)} == names


async def test_HB_39_trim_can_be_left_to_others(jobs: Jobs, redis: Any) -> None:
    worker = consumer(concurrency=50, trim=False)

    @worker.job("s")
    async def process(job: Attempt) -> None: ...

    await send(jobs, 1_100)
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 1_100))
    assert await redis.xlen(STREAM) == 1_100


async def test_names_with_colons_do_not_meet(jobs: Jobs, redis: Any) -> None:
    """The group ``b:c`` of the stream ``a``, and ``c`` of ``a:b``: both retry, each its own jobs."""
    found = dict[str, list[int]]()
    workers = [consumer("b:c", attempts=3), consumer("c", attempts=3)]
    for worker, stream in zip(workers, ("a", "a:b"), strict=True):

        @worker.job(stream)
        async def process(job: Attempt, stream: str = stream) -> None:
            found.setdefault(stream, []).append(job.number)
            raise ValueError(stream)

        worker.options.backoff = type(worker.options.backoff)((0.3,), 0, 0)
    for stream in ("a", "a:b"):
        await redis.xadd(f"hfxbus:str:{stream}", {"job": "J", "prd": "P"}, id="1-1")
    async with working(jobs, *workers):
        for stream in ("a", "a:b"):
            await eventually(partial(completed, redis, 1, stream))
    assert found == {"a": [1, 2, 3], "a:b": [1, 2, 3]}
    for stream in ("a", "a:b"):
        [letter] = await dead(redis, stream)
        assert [each["error"]["message"] for each in letter["errors"]] == [stream] * 3


async def test_HB_42_kinds_of_errors(jobs: Jobs, redis: Any) -> None:
    from penstock.jobs import errors

    for kind in (
        errors.FinishTimeout("", {}),
        errors.PauseTimeout(),
        errors.DeadlineTimeout(),
        errors.Rejected("g", 1, {}),
    ):
        assert kind.code == kind.errno
    assert json.loads(json.dumps(errors.as_error(errors.DeadlineTimeout("x")))) == {
        "name": "DeadlineTimeout", "message": "x", "code": "DEADLINE_TIMEOUT", "errno": "DEADLINE_TIMEOUT",
    }  # fmt: skip


async def read_as_node(redis: Any, *streams: str) -> list[str]:
    """Return what a consumer gets that claims nothing."""
    found = await redis.xreadgroup(GROUP, "NODE", {f"hfxbus:str:{stream}": ">" for stream in streams})
    return sorted(fields[b"job"].decode() for _, entries in found for _, fields in entries)


async def test_what_is_handed_back_before_it_began_is_new_for_all_that_read(jobs: Jobs, redis: Any) -> None:
    """Of several streams more jobs are read than can run."""
    one, held, found = consumer(), Held(), list[str]()
    for stream in "stu":
        await redis.xadd(f"hfxbus:str:{stream}", {"prd": "P", "job": stream})
        one.job(stream)(held)

    async def are_read() -> bool:
        found.extend(await read_as_node(redis, "s", "t", "u"))
        return len(found) == 2

    async with working(jobs, one):
        await eventually(lambda: held.begun)
        await eventually(are_read)
        assert sorted([*found, held.begun[0][0]]) == ["s", "t", "u"]
        for each in found:
            assert [number for _, number in await pending(redis, each)] == [1]
        held.let()
    for each in found:
        [group] = await redis.xinfo_groups(f"hfxbus:str:{each}")
        assert (group["entries-read"], group["lag"]) == (1, 0)


async def test_a_consumer_that_is_paused_reads_nothing_any_more(jobs: Jobs, redis: Any) -> None:
    """What its read would get that waited, others would wait for, such as Node's."""
    one = consumer(concurrency=5)
    one.job("s")(Held())
    async with working(jobs, one):
        await eventually(partial(_blocks, redis))
        await one.pause()
        sent = await send(jobs, 4)
        assert await read_as_node(redis, "s") == sent
    assert {(each["consumer"], each["times_delivered"]) for each in await _in_hand(redis)} == {(b"NODE", 1)}


async def _blocks(redis: Any) -> bool:
    """Return whether a read waits."""
    return bool((await redis.info("clients"))["blocked_clients"])


async def _in_hand(redis: Any) -> Any:
    return await redis.xpending_range(STREAM, GROUP, "-", "+", 9)


async def test_a_job_whose_entry_is_removed_ends_for_its_producer_with_that_reason(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``capped`` removes it. Nobody could try it again."""
    renew_every(monkeypatch, 0.05)
    one, held, why = consumer(), Held(), list[str | None]()

    @one.job("s")
    async def process(job: Attempt) -> None:
        try:
            await held(job)
        finally:
            why.append(job.why)

    async with working(jobs, one):
        sent = await jobs.producer().send("s", jobs.job("J0").set("in", 7), wait_for=["g"])
        await eventually(lambda: held.begun)
        await redis.xtrim(STREAM, maxlen=0, approximate=False)
        with pytest.raises(Rejected) as rejected:
            await sent.finished(PATIENCE, reject=True)
        assert why == ["gone"]
    assert rejected.value.error["name"] == "Gone"
    [letter] = await dead(redis)
    assert (letter["job"], letter["values"]) == ("J0", {"in": "7"})
    assert await pending(redis) == []
