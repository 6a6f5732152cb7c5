"""Consumers: how jobs begin and end. HB-30 to HB-36; HB-D09b, HB-D13, HB-D15, HB-D20, HB-D23."""

import asyncio
import threading
import time
from functools import partial
from typing import Any, cast

import pytest

from penstock.base.errors import WrongCall
from penstock.core.backoff import Backoff
from penstock.core.runner import Runner
from penstock.jobs import Attempt, Consumer, Final, Jobs, PauseTimeout, source
from tests.jobs.given import Gauge, Held, completed, consumer, dead, kept, pending, send, working
from tests.support.harness import PATIENCE, eventually, until


async def test_HB_30_a_consumer_is_seen_under_its_group_and_id(jobs: Jobs, redis: Any) -> None:
    worker = consumer("g", id="C1")
    held = Held()
    worker.job("s")(held)
    async with working(jobs, worker):
        await send(jobs, 1)
        await eventually(lambda: held.begun)
        [group] = await redis.xinfo_groups("hfxbus:str:s")
        assert group["name"] == b"hfxbus:csr:g"
        [found] = await redis.xinfo_consumers("hfxbus:str:s", "hfxbus:csr:g")
        assert (found["name"], found["pending"]) == (b"C1", 1)
        held.let()
    assert await redis.xinfo_consumers("hfxbus:str:s", "hfxbus:csr:g") == []  # HB-D20


async def test_HB_31_a_new_group_begins_with_all_jobs_or_with_those_that_come(jobs: Jobs, redis: Any) -> None:
    await send(jobs, 3)
    entry = (await redis.xrange("hfxbus:str:s"))[1][0].decode()
    found = dict[str, list[str]]()
    workers = []
    for group, options in {"all": {}, "some": {"start": entry}, "new": {"start": "$"}}.items():
        worker = consumer(group)

        @worker.job("s", **options)
        async def note(job: Attempt, group: str = group) -> None:
            found.setdefault(group, []).append(job.id)

        workers.append(worker)
    async with working(jobs, *workers):
        await eventually(lambda: groups(redis, 3))
        await jobs.producer().send("s", jobs.job("last"))
        await eventually(lambda: completed(redis, 4 + 2 + 1))
    assert found == {"all": ["J0", "J1", "J2", "last"], "some": ["J2", "last"], "new": ["last"]}


async def groups(redis: Any, many: int) -> bool:
    return await redis.exists("hfxbus:str:s") == 1 and len(await redis.xinfo_groups("hfxbus:str:s")) == many


async def test_HB_D15_a_job_in_hand_is_not_read_again(jobs: Jobs) -> None:
    worker, held = consumer(concurrency=5), Held()
    worker.job("s")(held)
    async with working(jobs, worker):
        await send(jobs, 2)
        await eventually(lambda: len(held.begun) == 2)
        await asyncio.sleep(0.3)  # timing: nothing may happen
        assert held.begun == [("J0", 1), ("J1", 1)]
        held.let()


@pytest.mark.parametrize("streams", ["s", "st"])
async def test_HB_36_no_more_jobs_run_than_the_concurrency(jobs: Jobs, redis: Any, streams: str) -> None:
    gauge, worker = Gauge(), consumer(concurrency=7)

    async def process(job: Attempt) -> None:
        with gauge:
            await asyncio.sleep(0.002)

    for stream in streams:
        worker.job(stream)(process)
        await send(jobs, 100, stream)
    async with working(jobs, worker):
        for stream in streams:
            await eventually(partial(completed, redis, 100, stream))
    assert gauge.most == 7


async def test_HB_36_functions_run_in_threads_as_many_as_the_concurrency(jobs: Jobs, redis: Any) -> None:
    """More than asyncio's own threads; with all of them at a barrier, and never more."""
    worker, barrier, names = consumer(concurrency=40), threading.Barrier(40), set[str]()
    now, most = 0, 0
    lock = threading.Lock()

    @worker.job("s", deadline=None)
    def process(job: Attempt) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        names.add(threading.current_thread().name)
        barrier.wait(PATIENCE)
        with lock:
            now -= 1

    await send(jobs, 120)
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 120))
    assert most == 40
    assert threading.current_thread().name not in names
    assert await dead(redis) == []


async def test_a_result_of_a_thread_is_a_value_of_the_job(jobs: Jobs) -> None:
    worker = consumer()

    @worker.job("s", values=["a", "b", "missing"], result="sum")
    def add(job: Attempt) -> int:
        assert job.values == {"a": b"1", "b": b"2", "missing": None}
        return sum(int(value) for value in job.values.values() if value)

    async with working(jobs, worker):
        sent = await jobs.producer().send("s", {"a": 1, "b": 2}, wait_for=["g"])
        await sent.finished(PATIENCE)
        assert await sent.job.get("sum").pull() == [3]


async def test_any_callable_is_a_processor(jobs: Jobs, redis: Any) -> None:
    """A coroutine that somebody returns is awaited, however it came to be."""
    done = list[str]()

    class Processor:
        async def __call__(self, job: Attempt) -> None:
            await asyncio.sleep(0)
            done.append(job.stream)

        async def method(self, job: Attempt) -> None:
            await self(job)

    worker = consumer()
    worker.job("a")(Processor())
    worker.job("b")(Processor().method)
    worker.job("c")(partial(Processor.method, Processor()))
    worker.job("d")(lambda job: Processor().method(job))
    async with working(jobs, worker):
        for stream in "abcd":
            await send(jobs, 1, stream)
        for stream in "abcd":
            await eventually(partial(completed, redis, 1, stream))
    assert sorted(done) == [*"abcd"]


async def test_HB_35_HB_D09b_a_deadline_frees_the_slot_only_when_the_processor_has_ended(
    jobs: Jobs, redis: Any
) -> None:
    worker, gauge, given_up = consumer(attempts=1), Gauge(), list[float]()

    @worker.job("s", deadline=0.1)
    async def process(job: Attempt) -> None:
        with gauge:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                given_up.append(time.monotonic())
                await asyncio.sleep(0.2)  # timing: it does not hurry

    begun = time.monotonic()
    await send(jobs, 2)
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 2))
    assert gauge.most == 1
    assert len(given_up) == 2
    assert given_up[0] - begun >= 0.09
    assert [each["err"]["code"] for each in await kept(redis)] == ["DEADLINE_TIMEOUT"] * 2
    assert await pending(redis) == []


async def test_HB_35_what_a_thread_returns_after_its_deadline_does_not_count(jobs: Jobs, redis: Any) -> None:
    worker, gauge = consumer(attempts=2), Gauge()
    given_up = list[bool]()

    @worker.job("s", deadline=0.1, result="out")
    def process(job: Attempt) -> int:
        with gauge:
            until(lambda: job.is_given_up)
            given_up.append(job.is_given_up)
        return job.number

    async with working(jobs, worker):
        sent = await jobs.producer().send("s", wait_for=["g"])
        found = await sent.finished(PATIENCE)
        assert found["g"].error["code"] == found["g"].error["errno"] == "DEADLINE_TIMEOUT"
        assert await sent.job.get("out").pull() == [None]
    assert given_up == [True, True]
    assert gauge.most == 1
    [letter] = await dead(redis)
    assert [each["attempt"] for each in letter["errors"]] == [1, 2]


async def test_HB_35_a_late_result_is_not_written(jobs: Jobs, redis: Any) -> None:
    worker = consumer(attempts=1)

    @worker.job("s", deadline=0.05, result="out")
    async def process(job: Attempt) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"
        return "in time"

    async with working(jobs, worker):
        sent = await jobs.producer().send("s", wait_for=["g"])
        assert (await sent.finished(PATIENCE))["g"].error["code"] == "DEADLINE_TIMEOUT"
        assert await sent.job.get("out").pull() == [None]


async def test_HB_35_without_a_deadline_a_job_takes_as_long_as_it_takes(jobs: Jobs) -> None:
    worker = consumer()

    @worker.job("s", deadline=None)
    async def process(job: Attempt) -> None:
        await asyncio.sleep(0.2)  # timing: it takes a while

    async with working(jobs, worker):
        assert (await (await jobs.producer().send("s", wait_for=["g"])).finished(PATIENCE))["g"].error is None


async def test_HB_33_HB_D23_whatever_a_processor_raises_is_reported(jobs: Jobs, redis: Any) -> None:
    """Also what is no ordinary exception, and an error whose code is no text."""

    class Coded(Exception):
        code = 7

    class Odd(Exception):
        code = object()

        def __str__(self) -> str:
            return 'quote " \ud800 \x00'

    raised = [
        ValueError("no"),
        Coded("c"),
        Odd(),
        SystemExit(3),
        GeneratorExit(),
        asyncio.CancelledError("mine"),
        TimeoutError(),
    ]
    worker = consumer(attempts=2)

    @worker.job("s")
    async def process(job: Attempt) -> None:
        raise raised[int(job.id[1:])]

    await send(jobs, len(raised))
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, len(raised)))
    found = {each["job"]: each["err"] for each in await kept(redis)}
    assert found["J0"] == {"name": "ValueError", "message": "no"}
    assert found["J1"] == {"name": "Coded", "message": "c", "code": 7, "errno": 7}
    assert [found[f"J{number}"]["name"] for number in range(len(raised))] == [type(each).__name__ for each in raised]
    assert {letter["attempts"] for letter in await dead(redis)} == {"2"}
    assert await pending(redis) == []


async def test_a_job_that_fails_is_tried_again_and_its_history_is_kept(jobs: Jobs, redis: Any) -> None:
    worker, numbers = consumer(attempts=4), list[int]()

    @worker.job("s")
    async def process(job: Attempt) -> None:
        numbers.append(job.number)
        raise ValueError(f"no {job.number}")

    async with working(jobs, worker):
        sent = await jobs.producer("P").send(
            "s", jobs.job("J1").set("in", {"a": "ü"}).set("raw", b"\xff\x00"), wait_for=["g"]
        )
        found = await sent.finished(PATIENCE)
        assert found["g"].error == {"name": "ValueError", "message": "no 4"}
    assert numbers == [1, 2, 3, 4]
    [letter] = await dead(redis)
    assert letter["values"] == {"in": '{"a":"ü"}', "raw": "\udcff\x00"}
    assert {key: letter[key] for key in ("job", "prd", "grp", "entry", "attempts")} == {
        "job": "J1", "prd": "P", "grp": "hfxbus:csr:g", "entry": sent.entry, "attempts": "4",
    }  # fmt: skip
    assert [(each["attempt"], each["error"]["message"]) for each in letter["errors"]] == [
        (number, f"no {number}") for number in range(1, 5)
    ]
    assert [each["at"] for each in letter["errors"]] == sorted(each["at"] for each in letter["errors"])
    assert len(await kept(redis)) == 1
    assert not await redis.exists("hfxbus:tries:s:g", "hfxbus:wait:s:g")


async def test_Final_ends_a_job_at_once(jobs: Jobs, redis: Any) -> None:
    worker = consumer(attempts=5)

    @worker.job("s")
    async def process(job: Attempt) -> None:
        raise Final("never")

    async with working(jobs, worker):
        found = await (await jobs.producer().send("s", wait_for=["g"])).finished(PATIENCE)
        assert found["g"].error == {
            "name": "Final",
            "message": "never",
            "code": "REJECT_JOB_ERROR",
            "errno": "REJECT_JOB_ERROR",
        }
    assert [letter["attempts"] for letter in await dead(redis)] == ["1"]


@pytest.mark.parametrize("left", ["get", "set", "delete"])
async def test_what_a_failed_processor_had_collected_and_not_pushed_does_not_happen(
    jobs: Jobs, redis: Any, left: str
) -> None:
    worker = consumer(attempts=1)

    @worker.job("s")
    async def process(job: Attempt) -> None:
        if left == "set":
            job.set("out", "half")
        else:
            getattr(job, left)("in")
        raise ValueError("no")

    async with working(jobs, worker):
        sent = await jobs.producer().send("s", {"in": 1}, wait_for=["g"])
        assert (await sent.finished(PATIENCE))["g"].error["message"] == "no"
        assert await jobs.job(sent.job.id).get("in").get("out").pull() == [1, None]
    [letter] = await dead(redis)
    assert letter["values"] == {"in": "1"}


@pytest.mark.parametrize("keys", ["[[" * 50_000, "5", '"in"', "no JSON", "\xff", '["in", 5]', '{"in":1}'])
async def test_a_dead_job_of_a_stranger_is_a_dead_letter(jobs: Jobs, redis: Any, keys: str) -> None:
    worker = consumer(attempts=1)

    @worker.job("s")
    async def process(job: Attempt) -> None:
        raise ValueError("no")

    await redis.xadd("hfxbus:str:s", {"job": "J1", "keys": keys})
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 1))
    assert [letter["job"] for letter in await dead(redis)] == ["J1"]


async def test_an_entry_without_id_or_producer_is_done(jobs: Jobs, redis: Any) -> None:
    worker, ids = consumer(), list[str]()

    @worker.job("s")
    async def process(job: Attempt) -> None:
        ids.append(job.id)

    await redis.xadd("hfxbus:str:s", {"x": "y"})
    await redis.xadd("hfxbus:str:s", {"job": "", "prd": ""})
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 2))
    assert len(ids[0]) == 16


async def test_HB_34_release_lets_another_job_begin(jobs: Jobs, redis: Any) -> None:
    worker, held, begun = consumer(), asyncio.Event(), list[str]()

    @worker.job("s")
    async def process(job: Attempt) -> None:
        begun.append(job.id)
        release = job.release
        release()
        release()
        if job.id == "J0":
            await held.wait()

    await send(jobs, 4)
    async with working(jobs, worker):
        await eventually(lambda: completed(redis, 3))
        assert begun == ["J0", "J1", "J2", "J3"]
        assert len(await pending(redis)) == 1
        held.set()
        await eventually(lambda: completed(redis, 4))


async def test_HB_32_pause_waits_for_what_runs_and_begins_nothing(jobs: Jobs, redis: Any) -> None:
    worker, held = consumer(concurrency=2), Held()
    worker.job("s")(held)
    async with working(jobs, worker):
        await send(jobs, 1)
        await eventually(lambda: held.begun)
        with pytest.raises(PauseTimeout, match="1 jobs of g") as late:
            await worker.pause(0.05)
        assert late.value.code == late.value.errno == "PAUSE_TIMEOUT"
        assert worker.is_paused
        held.let()
        await worker.pause(PATIENCE)
        assert held.ended == ["J0"]
        await send(jobs, 10)
        await asyncio.sleep(0.3)  # timing: nothing may happen
        assert len(held.begun) == 1
        worker.play()
        await eventually(lambda: completed(redis, 11))


async def test_HB_D13_a_read_that_waits_begins_nothing_after_a_pause_and_all_after_it(
    jobs: Jobs, redis: Any, seldom: None
) -> None:
    """A consumer of one job at a time, paused while its read waits: what it reads then begins once it plays."""
    worker, held = consumer(), Held()
    held.let()
    worker.job("s")(held)
    async with working(jobs, worker):
        await send(jobs, 1)
        await eventually(lambda: completed(redis, 1))
        await asyncio.sleep(0.05)  # timing: it reads again
        async with asyncio.timeout(PATIENCE):
            await worker.pause()
            await send(jobs, 3)
            await asyncio.sleep(0.2)  # timing: nothing may happen
            assert len(held.begun) == 1
            await worker.pause()  # as it is already
        worker.play()
        await eventually(lambda: completed(redis, 4))


async def test_a_pause_ends_though_jobs_wait_for_their_turn(jobs: Jobs, redis: Any, seldom: None) -> None:
    """Of several streams more jobs may be read than can run: those that have not begun do not hold a pause up."""
    worker, held = consumer(), Held()
    for stream in "stu":
        worker.job(stream)(held)
        await send(jobs, 1, stream)
    async with working(jobs, worker):
        await eventually(lambda: held.begun)
        pausing = asyncio.create_task(worker.pause(PATIENCE))
        await eventually(lambda: worker.is_paused)
        held.let()
        await pausing
        assert len(held.ended) == 1
        worker.play()
        for stream in "stu":
            await eventually(partial(completed, redis, 1, stream))


async def test_what_falls_due_while_there_is_no_room_begins_as_soon_as_there_is(
    jobs: Jobs, redis: Any, seldom: None
) -> None:
    worker, held, attempts = consumer(backoff=Backoff([0.3])), Held(), list[int]()

    @worker.job("fails")
    async def fails(attempt: Attempt) -> None:
        attempts.append(attempt.number)
        if attempt.number == 1:
            raise ValueError("not yet")

    worker.job("s")(held)
    await send(jobs, 1, "fails")
    async with working(jobs, worker):
        await eventually(lambda: attempts)
        await send(jobs, 1)
        await eventually(lambda: held.begun)
        await asyncio.sleep(0.6)  # timing: it falls due, and cannot begin
        held.let()
        await eventually(lambda: attempts == [1, 2])


async def test_what_falls_due_while_a_read_ahead_waits_begins_as_soon_as_there_is_room(
    jobs: Jobs, redis: Any, seldom: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "BLOCK_SECONDS", 3600)
    worker, held, found = consumer(), Held(), list[str]()

    @worker.job("s")
    async def work(attempt: Attempt) -> None:
        found.append(attempt.id)
        if attempt.id == "held":
            await held(attempt)

    async with working(jobs, worker):
        await send(jobs, 50)  # short ones, so that it reads ahead
        await eventually(lambda: len(found) == 50)
        await jobs.producer().send("s", jobs.job("held"))
        await eventually(lambda: held.begun)
        await redis.zadd("hfxbus:wait:s:g", {"1-1": 0})  # due, though nobody has it
        await redis.publish(jobs.keys.control("s"), "due 0")
        await asyncio.sleep(0.3)  # timing: it looks for what is due, and has no room
        held.let()
        await eventually(partial(_is_seen, redis))


async def _is_seen(redis: Any) -> bool:
    """Return whether what was due was looked at."""
    return not await redis.zcard("hfxbus:wait:s:g")


async def test_a_consumer_that_was_paused_before_it_ran_begins_when_it_plays(jobs: Jobs, redis: Any) -> None:
    worker, held = consumer(), Held()
    held.let()
    worker.job("s")(held)
    await worker.pause()
    await send(jobs, 1)
    async with working(jobs, worker):
        await asyncio.sleep(0.1)  # timing: nothing may happen
        assert held.begun == []
        worker.play()
        await eventually(lambda: completed(redis, 1))


async def test_at_a_stop_jobs_in_hand_may_end(jobs: Jobs, redis: Any) -> None:
    worker, held = consumer(concurrency=5, stop_timeout=3_600), Held()
    worker.job("s")(held)
    await send(jobs, 3)
    async with working(jobs, worker):
        await eventually(lambda: len(held.begun) == 3)
        worker.stop()
        await asyncio.sleep(0.1)  # timing: nothing may happen
        assert worker.running == 3
        held.let()
    assert await completed(redis, 3)
    assert await pending(redis) == []


async def test_at_a_stop_what_does_not_end_is_handed_back_at_once(jobs: Jobs, redis: Any, seldom: None) -> None:
    one, other, held, heir = consumer(concurrency=5, stop_timeout=0.1), consumer(concurrency=5), Held(), Held()
    one.job("s", deadline=None)(held)
    heir.let()
    other.job("s")(heir)
    await send(jobs, 2)
    async with working(jobs, one):
        await eventually(lambda: len(held.begun) == 2)
        one.stop()
    assert held.ended == []
    assert len(await pending(redis)) == 2
    async with working(jobs, other):
        await eventually(lambda: completed(redis, 2))
    assert sorted(heir.begun) == [("J0", 1), ("J1", 1)]  # it is no attempt that has failed


@pytest.mark.parametrize("looks", [False, True])
async def test_at_a_stop_a_thread_is_waited_for_and_has_done_its_job_unless_it_knows_of_it(
    jobs: Jobs, redis: Any, caplog: pytest.LogCaptureFixture, looks: bool
) -> None:
    worker, may_end, begun = consumer(concurrency=5, stop_timeout=0.1), threading.Event(), list[str]()

    @worker.job("s", result="out")
    def process(job: Attempt) -> str:
        begun.append(job.id)
        may_end.wait(PATIENCE)
        return "nothing" if looks and job.is_given_up else "all"

    await send(jobs, 2)
    async with working(jobs, worker):
        await eventually(lambda: len(begun) == 2)
        worker.stop()
        await eventually(lambda: "threads are waited for" in caplog.text)
        may_end.set()
    assert len(await pending(redis)) == (2 if looks else 0)
    assert await jobs.job("J1").get("out").pull() == [None if looks else "all"]


@pytest.mark.parametrize("how", ["cancel", "exit"])
async def test_jobs_are_handed_back_at_once_however_a_consumer_ends(
    jobs: Jobs, redis: Any, redis_url: str, how: str, seldom: None
) -> None:
    one, other, held, heir = consumer(stop_timeout=0.1), consumer(), Held(), Held()
    for stream in "st":
        one.job(stream)(held)
        other.job(stream)(heir)
        await send(jobs, 1, stream)
    heir.let()
    async with Jobs(redis_url) as those:
        task = asyncio.create_task(those.run(one))
        await eventually(lambda: held.begun)
        if how == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    if how == "exit":
        await task
    async with working(jobs, other):
        for stream in "st":
            await eventually(partial(completed, redis, 1, stream))
    assert {number for _, number in heir.begun} == {1}


async def test_a_consumer_that_is_stopped_before_it_runs_ends(jobs: Jobs) -> None:
    worker = consumer()
    worker.job("s")(Held())
    task = asyncio.create_task(jobs.run(worker))
    worker.stop()
    jobs.stop()
    await asyncio.sleep(0)
    worker.stop()
    async with asyncio.timeout(PATIENCE):
        await task


def test_HB_30_options_that_make_no_sense_are_refused() -> None:
    for options in (
        {"concurrency": 0},
        {"attempts": 0},
        {"claim_after": 0},
        {"claim_after": float("nan")},
        {"group": ""},
    ):
        with pytest.raises(WrongCall, match=f"^{next(iter(options))}[=:]"):
            Consumer(**({"group": "g"} | options))
    worker = Consumer("g")
    assert (worker.options.concurrency, worker.options.attempts, worker.options.claim_after) == (1, 3, 60)
    worker.job("s")(print)
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("s", {}, "^stream 's'"),
        ("a*", {}, "^stream: 'a"),
        ("t", {"deadline": 0}, "^deadline=0"),
        ("t", {"deadline": float("nan")}, "^deadline=nan"),
        ("t", {"start": "now"}, "^start='now'"),
        ("t", {"values": "page"}, "^values='page'"),
        ("t", {"values": ["a", 5]}, "^values: .* found 5"),
        ("t", {"result": ""}, "^result: "),
    ]
    for stream, of_stream, told in wrong:
        with pytest.raises(WrongCall, match=told):
            worker.job(stream, **of_stream)(print)


async def test_a_result_that_cannot_be_stored_is_named_where_the_worker_logs(
    jobs: Jobs, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = consumer(attempts=1)

    @worker.job("s", result="out")
    async def process(job: Attempt) -> object:
        return object()

    async with working(jobs, worker):
        await send(jobs, 1)
        await eventually(lambda: completed(redis, 1))
    [letter] = await dead(redis)
    assert "value 'out': expected a JSON value" in letter["errors"][0]["error"]["message"]
    [line] = [each.getMessage() for each in caplog.records if "a processor has failed" in each.getMessage()]
    assert "WrongCall: value 'out'" in line
    assert "J0" in line


async def test_a_consumer_without_processors_is_refused(jobs: Jobs) -> None:
    with pytest.raises(WrongCall, match="no stream"):
        await jobs.run(consumer())


def test_an_attempt_shows_what_processors_need_and_nothing_else(jobs: Jobs) -> None:
    attempt = Attempt(jobs.servers, "s", "g", b"1-1", 1, [b"prd", b"p", b"job", b"j"], None, cast("Runner[Any]", None))
    public = {name for name in dir(attempt) if not name.startswith("_")}
    of_job = {"id", "set", "get", "delete", "push", "pull"}
    of_attempt = {"stream", "group", "entry", "number", "producer", "key", "values", "why", "is_given_up"}
    assert public == of_job | of_attempt | {"progress", "fail", "release"}
