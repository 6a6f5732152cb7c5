"""What strangers write into streams and keys of jobs, and what processors return, stops nobody."""

import asyncio
import json
import sys
import time
from itertools import pairwise
from typing import Any, cast

import pytest

from penstock.base.extras import MissingExtra
from penstock.jobs import Attempt, Jobs, repeating
from penstock.jobs.errors import MAX_MESSAGE, as_error
from penstock.jobs.settlement import MAX_BYTES, Outcomes
from tests.jobs.given import Held, consumer, dead, kept, look_every, working
from tests.support.harness import PATIENCE, eventually


async def test_a_repeated_job_that_cannot_be_read_stops_nothing(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_every(monkeypatch, 0.25)
    worker, begun = consumer(concurrency=5), list[tuple[str, int]]()

    @worker.job("s")
    async def work(job: Attempt) -> None:
        begun.append((job.id, job.number))
        if job.number == 1:
            raise ValueError

    for number, plan in enumerate(("{", "[]", '{"every":1,"values":7}', '{"sent":"x","values":{"":{}}}')):
        await redis.hset("hfxbus:repeated:s", f"{number}", plan)
        await redis.zadd("hfxbus:repeats:s", {f"{number}": 1})
    async with working(jobs, worker):
        await jobs.producer().send("s", jobs.job("j"))
        await eventually(lambda: len(begun) == 2)
        await asyncio.sleep(0.5)  # timing: nothing more may happen
    assert begun == [("j", 1), ("j", 2)]
    assert not await dead(redis)


async def test_cron_without_croniter_is_an_error_that_says_what_to_install(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await jobs.repeats.set("nightly", "s", cron="* * * * *")
    await redis.zadd("hfxbus:repeats:s", {"nightly": 1})
    monkeypatch.setattr("structlog.is_configured", lambda: False)  # as a test of a command may leave it
    monkeypatch.setitem(sys.modules, "croniter", None)
    with pytest.raises(MissingExtra, match=r"croniter is not installed: pip install 'penstock\[jobs\]'"):
        await jobs.repeats.set("weekly", "s", cron="0 0 * * 0")
    worker = consumer()
    worker.job("s")(_nothing)
    async with working(jobs, worker):
        await eventually(lambda: "pip install 'penstock[jobs]'" in caplog.text)
    assert "cannot repeat a job stream='s' name='nightly'" in caplog.text
    monkeypatch.undo()
    worker = consumer()
    worker.job("s")(_nothing)
    async with working(jobs, worker):
        await eventually(lambda: kept(redis))
    assert [each["job"] for each in await kept(redis)] == ["nightly@1.000"]


@pytest.mark.parametrize("begun", [1_000_000.1234567, 1_000_000.0004, 1_000_000.9])
@pytest.mark.parametrize("every", [0.1, 0.3, 1, 7.7])
def test_a_repeated_job_is_due_at_each_time_once_whatever_the_clock_says(begun: float, every: float) -> None:
    """A consumer whose clock is behind counts from when the job was due, in ms."""
    due = [begun]
    for _ in range(200):
        due.append(float(f"{repeating.next_time({'every': every, 'begun': begun}, due[-1]):.3f}"))
    assert all(0.9 * every < later - earlier < 1.1 * every for earlier, later in pairwise(due))


async def test_a_consumer_whose_clock_is_behind_sends_what_is_repeated_once(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = consumer(concurrency=5)
    worker.job("s")(_nothing)
    begun = time.time() // 1 + 0.0004999
    plan = {"every": 0.5, "begun": begun}
    await redis.hset("hfxbus:repeated:s", "r", json.dumps(plan))
    await redis.zadd("hfxbus:repeats:s", {"r": f"{begun + 0.5:.3f}"})
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 0.3)
    async with working(jobs, worker):
        await eventually(lambda: _are_kept(redis, 4))
    ids = [each["job"] for each in await kept(redis)]
    assert len(ids) == len(set(ids))


async def _are_kept(redis: Any, many: int) -> bool:
    return len(await kept(redis)) >= many


async def _nothing(job: Attempt) -> None:
    pass


def test_what_came_back_meanwhile_is_not_handed_back_again() -> None:
    """The reply to a hand-back was lost, and the consumer has another attempt at the same job."""
    outcomes, rest = Outcomes(), [""] * 10
    given: dict[str, list[Any]] = {
        "done": ["1", 1, "done", *rest],
        "back": ["2", 2, "back", *rest],
        "unread": ["3", 1, "unread", *rest],
        "few": ["4", "", "J", "P"],
        "kept": ["5", 1, "back", *rest],
    }
    for name, words in given.items():
        outcomes.add(cast(Attempt, name), words, 1, None, None)
    outcomes.drop_hand_backs(lambda attempt: str(attempt) != "kept")
    assert [*map(str, outcomes.attempts)] == ["done", "few", "kept"]
    assert outcomes.words == given["done"] + given["few"] + given["kept"]
    assert outcomes.many == 3


def test_what_is_settled_at_once_has_a_bound() -> None:
    def fitting(size: int) -> int:
        outcomes, attempt = Outcomes(), cast(Attempt, None)
        while outcomes.takes(size):
            outcomes.add(attempt, [b"1-1"], size, None, None)
        return outcomes.many

    assert fitting(10) == 400
    assert fitting(MAX_BYTES + 1) == 1
    assert fitting(MAX_BYTES // 4 + 1) == 3


@pytest.mark.parametrize(
    "keys", ['["\\ud800","in"]', json.dumps(["in", *map(str, range(200_000))]), '["in",1,null,{"a":[]}]']
)
async def test_a_stranger_names_values_that_cannot_be(jobs: Jobs, redis: Any, keys: str) -> None:
    worker = consumer(attempts=1)

    @worker.job("s")
    async def work(job: Attempt) -> None:
        raise ValueError

    await redis.set("hfxbus:job:j:in", "7")
    await redis.set("hfxbus:job:j:1", bytes(2 << 20))
    async with working(jobs, worker):
        await redis.config_resetstat()
        await redis.xadd("hfxbus:str:s", {"prd": "p", "job": "j", "keys": keys})
        await eventually(lambda: _is_dead(redis))
    assert [each["values"] for each in await dead(redis)] == [{"in": "7"}]
    stats = await redis.info("commandstats")
    assert int(stats.get("cmdstat_mget", {}).get("calls", 0)) == 0
    [letter] = [each async for each in jobs.dead("s")]
    async with asyncio.timeout(PATIENCE):
        assert await jobs.retry(letter)


async def _is_dead(redis: Any) -> bool:
    return bool(await redis.exists("hfxbus:dead:s"))


def test_an_error_is_no_longer_than_its_reader_needs() -> None:
    class Strange(Exception):
        code = 7
        errno = object()

        def __str__(self) -> str:
            raise KeyError

    assert len(as_error(ValueError("x" * 50_000_000))["message"]) < MAX_MESSAGE + 100
    assert json.loads(json.dumps(as_error(Strange()))) == {
        "name": "Strange", "message": "its text cannot be had: KeyError", "code": 7, "errno": 7,
    }  # fmt: skip


async def test_a_job_that_is_cancelled_in_its_second_attempt_leaves_nothing(
    jobs: Jobs, redis: Any, seldom: None
) -> None:
    worker, held = consumer(), Held()

    @worker.job("s")
    async def work(job: Attempt) -> None:
        if job.number == 1:
            raise ValueError
        await held(job)

    async with working(jobs, worker):
        sent = await jobs.producer().send("s")
        await eventually(lambda: held.begun)
        assert await jobs.cancel("s", sent.entry) == ["g"]
        await eventually(lambda: _has_no_tries(redis))


async def _has_no_tries(redis: Any) -> bool:
    return not await redis.exists("hfxbus:tries:s:g")


async def test_a_job_of_a_dead_consumer_is_claimed_behind_many_that_wait(jobs: Jobs, redis: Any) -> None:
    await redis.xgroup_create("hfxbus:str:s", "hfxbus:csr:g", "0", mkstream=True)
    entries = [await redis.xadd("hfxbus:str:s", {"prd": "p", "job": f"{number}"}) for number in range(2_001)]
    await redis.xreadgroup("hfxbus:csr:g", "killed", {"hfxbus:str:s": ">"}, count=3_000)
    await redis.zadd("hfxbus:wait:s:g", {entry: time.time() + 3_600 for entry in entries[:-1]})
    await redis.xclaim("hfxbus:str:s", "hfxbus:csr:g", "killed", 0, entries, idle=600_000, justid=True)
    worker, done = consumer(), list[str]()

    @worker.job("s")
    async def work(job: Attempt) -> None:
        done.append(job.id)

    async with working(jobs, worker):
        await eventually(lambda: done == ["2000"])


@pytest.mark.parametrize("id", [b"\xff\x00\n\"'", b"", "\u00e4".encode("latin-1"), b"plain"])
async def test_an_id_of_any_bytes_is_done_or_dead_and_stops_no_other(jobs: Jobs, redis: Any, id: bytes) -> None:
    worker = consumer(concurrency=5, attempts=2)

    @worker.job("s")
    async def work(job: Attempt) -> None:
        if job.key != "good":
            raise ValueError

    async with working(jobs, worker):
        await redis.xadd("hfxbus:str:s", {"prd": id, "job": id, "key": id, "keys": '["in"]'})
        await redis.xadd("hfxbus:str:s", {"prd": id, "job": id, "key": "good"})
        await eventually(lambda: _is_dead(redis))
        sent = await jobs.producer().send("s", {}, key="good", wait_for=["g"])
        assert (await sent.finished(PATIENCE))["g"].error is None
    assert len(await redis.xrange("hfxbus:done:s")) == 3


@pytest.mark.parametrize("fields", [{f"f{number}": "1" for number in range(10_000)}, {"f": bytes(8 << 20)}])
async def test_an_entry_that_is_too_large_is_dead_without_its_fields_and_sent_again(
    jobs: Jobs, redis: Any, fields: dict[str, Any]
) -> None:
    worker = consumer(attempts=1)

    @worker.job("s")
    async def work(job: Attempt) -> None:
        raise ValueError

    async with working(jobs, worker):
        await redis.xadd("hfxbus:str:s", {"prd": "p", "job": "j", **fields})
        await eventually(lambda: _is_dead(redis))
    [letter] = [each async for each in jobs.dead("s")]
    assert letter.fields == ["prd", "p", "job", "j", "keys", "[]"]
    assert await jobs.retry(letter)
