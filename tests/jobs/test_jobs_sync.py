"""Jobs without async: the same names, blocking."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, assert_type

import pytest
from redis import Redis

from penstock.base.errors import WrongCall
from penstock.core.backoff import Backoff
from penstock.jobs import DeadJob, FinishTimeout, PauseTimeout, Rejected
from penstock.sync import Consumer, Jobs
from penstock.sync.jobs import Attempt, Producer
from tests.support.harness import PATIENCE, until

AT_ONCE = Backoff((), 0, 0)


@pytest.fixture
def jobs(here: Redis, redis_url: str) -> Iterator[Jobs]:
    with Jobs(redis_url, patience=60) as connected:
        yield connected


@pytest.fixture
def producer(jobs: Jobs) -> Producer:
    return jobs.producer()


def until_it_runs(consumer: Consumer) -> None:
    until(lambda: vars(consumer)["_host"].portal is not None)  # which is no part of its types


@contextmanager
def running(jobs: Jobs, *consumers: Consumer) -> Iterator[None]:
    """Run consumers in threads of their own."""
    threads = [threading.Thread(target=jobs.run, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for consumer in consumers:
            until_it_runs(consumer)
            consumer.stop()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_jobs_are_sent_done_by_functions_and_awaited(jobs: Jobs, producer: Producer) -> None:
    consumer = Consumer("small", concurrency=2)

    @consumer.job("resize", result="size", values=["raw"])
    def resize(job: Attempt) -> list[int]:
        [width] = job.get("width", int).pull()
        job.progress({"percent": 50})
        job.set("copy", job.values["raw"]).push()
        return [width // 2]

    with running(jobs, consumer):
        job = producer.job("J1").set("width", 10).set("raw", b"\xff")
        sent = producer.send("resize", job, wait_for=["small"])
        assert (sent.job.id, sent.stream) == ("J1", "resize")
        done = sent.finished(PATIENCE)
        assert done["small"].error is None
        assert sent.result("small", "size", list[int]) == [5]
        assert sent.progress("small") == {"percent": 50}
        assert_type(jobs.job("J1").get("copy", bytes).delete("copy").pull(), list[Any])
        assert jobs.job("J1").get("copy").pull() == [None]
        assert jobs.producer(producer.id).finished("resize", "J1", ["small"], PATIENCE)["small"].job == "J1"


def test_as_many_functions_run_at_a_time_as_the_concurrency_says(jobs: Jobs, producer: Producer) -> None:
    """The threads that asyncio has by default are four more than cores."""
    together, consumer = threading.Barrier(40, timeout=PATIENCE), Consumer("small", concurrency=40, attempts=1)

    @consumer.job("resize")
    def resize(_: Attempt) -> None:
        together.wait()

    with running(jobs, consumer):
        sent = [producer.send("resize", wait_for=["small"]) for _ in range(40)]
        assert [each.finished(PATIENCE)["small"].error for each in sent] == [None] * 40


def test_a_job_that_fails_is_dead_and_sent_again(jobs: Jobs, producer: Producer) -> None:
    consumer, numbers = Consumer("small", attempts=2, backoff=AT_ONCE), list[int]()

    @consumer.job("resize")
    def resize(job: Attempt) -> None:
        numbers.append(job.number)
        if len(numbers) <= 2:
            raise StopIteration("no more")

    with running(jobs, consumer):
        sent = producer.send("resize", {"in": 1}, wait_for=["small"])
        with pytest.raises(Rejected, match="StopIteration"):
            sent.finished(PATIENCE, reject=True)
        dead = assert_type([*jobs.dead("resize")], list[DeadJob])
        assert [(each.job, each.attempts) for each in dead] == [(sent.job.id, 2)]
        retried = jobs.retry(dead[0])
        assert retried
        until(lambda: numbers == [1, 2, 1])
    assert not [*jobs.dead("resize", job=sent.job.id)]


def test_what_a_function_returns_after_its_deadline_does_not_count(jobs: Jobs, producer: Producer) -> None:
    consumer, seen, late = Consumer("small", attempts=1_000, backoff=AT_ONCE), list[int](), threading.Event()

    @consumer.job("resize", deadline=0.2, result="out")
    def resize(job: Attempt) -> int:
        seen.append(job.number)
        if job.number == 1:
            until(lambda: job.is_given_up)
            late.set()
        return job.number

    with running(jobs, consumer):
        sent = producer.send("resize", wait_for=["small"])
        assert sent.finished(PATIENCE)["small"].error is None
        assert late.is_set()
        assert sent.result("small", "out") == seen[-1] > 1
    assert seen == [*range(1, len(seen) + 1)]  # 1 and 2, unless the machine stalls


def test_a_consumer_and_a_stream_are_paused_from_other_threads(jobs: Jobs, producer: Producer) -> None:
    consumer, may_end, begun = Consumer("small"), threading.Event(), threading.Event()

    @consumer.job("resize")
    def resize(_: Attempt) -> None:
        begun.set()
        may_end.wait(PATIENCE)

    with running(jobs, consumer):
        first = producer.send("resize", wait_for=["small"])
        assert begun.wait(PATIENCE)
        assert (consumer.running, consumer.is_paused) == (1, False)
        with pytest.raises(PauseTimeout):
            consumer.pause(0.1)
        may_end.set()
        consumer.pause(PATIENCE)
        assert first.finished(PATIENCE)
        second = producer.send("resize", wait_for=["small"])
        with pytest.raises(FinishTimeout):
            second.finished(0.3)
        consumer.play()
        assert second.finished(PATIENCE)
        jobs.pause("resize")
        third = producer.send("resize", wait_for=["small"])
        with pytest.raises(FinishTimeout):
            third.finished(0.3)
        jobs.play("resize")
        assert third.finished(PATIENCE)


def test_a_pause_before_the_run_holds(jobs: Jobs, producer: Producer) -> None:
    consumer = Consumer("small")
    consumer.job("resize")(lambda _: None)
    consumer.pause()
    assert consumer.is_paused
    sent = producer.send("resize", wait_for=["small"])
    with running(jobs, consumer):
        with pytest.raises(FinishTimeout):
            sent.finished(0.3)
        consumer.play()
        assert sent.finished(PATIENCE)


def test_a_stop_before_the_run_is_not_forgotten(jobs: Jobs) -> None:
    consumer = Consumer("small")
    consumer.job("resize")(lambda _: None)
    jobs.stop()
    jobs.run(consumer)


def test_jobs_are_cancelled_and_repeated(jobs: Jobs, producer: Producer, here: Redis) -> None:
    here.xgroup_create("hfxbus:str:resize", "hfxbus:csr:small", "0", mkstream=True)
    later = producer.send("resize", {"in": 1}, delay=600, wait_for=["small"])
    now = producer.send("resize", {"in": 1}, wait_for=["small"])
    assert later.due is not None
    assert later.due > time.time()
    assert jobs.cancel("resize", job=later.job.id) == jobs.cancel("resize", now.entry) == ["small"]
    for sent in (later, now):
        assert sent.finished(PATIENCE)["small"].error["code"] == "CANCELLED"
    due = jobs.repeats.set("nightly", "resize", {"full": True}, every=3_600)
    assert jobs.repeats.all("resize")["nightly"]["due"] == pytest.approx(due, abs=0.01)
    assert jobs.repeats.remove("nightly", "resize")
    assert jobs.repeats.all("resize") == {}


def test_completions_are_heard(jobs: Jobs, producer: Producer) -> None:
    consumer = Consumer("small")
    consumer.job("resize")(lambda _: None)
    with running(jobs, consumer), producer.completions("resize") as heard:
        sent = jobs.producer().send("resize")
        assert heard.get(PATIENCE).job == sent.job.id
        with pytest.raises(TimeoutError):
            heard.get(0.1)


def test_some_jobs_of_a_batch_fail(jobs: Jobs, producer: Producer) -> None:
    consumer, sizes = Consumer("small", attempts=1), list[int]()

    @consumer.batch("resize", 10, values=["in"])
    def resize(batch: list[Attempt]) -> None:
        sizes.append(len(batch))
        for job in batch:
            if job.values["in"] == b"3":
                job.fail(ValueError("three"))

    sent = [producer.send("resize", {"in": number}, wait_for=["small"]) for number in range(8)]
    with running(jobs, consumer):
        errors = [each.finished(PATIENCE)["small"].error for each in sent]
    assert [error and error["message"] for error in errors] == [None] * 3 + ["three"] + [None] * 4
    assert sum(sizes) == 8


def test_two_servers_are_routed_as_in_async(here: Redis, redis_url: str) -> None:
    with Jobs(redis_url, redis_url, routes={"resize": 1}, prefix="two") as jobs:
        consumer = Consumer("small", route="resize")
        consumer.job("resize", result="out")(lambda job: job.get("in").pull())
        with running(jobs, consumer):
            sent = jobs.producer().send("resize", {"in": 7}, wait_for=["small"])
            assert sent.result("small", "out", timeout=PATIENCE) == [7]
    assert here.exists("two:str:resize")


def test_wrong_calls_are_named(jobs: Jobs, producer: Producer) -> None:
    consumer = Consumer("small")

    async def coroutine(_: Attempt) -> None: ...

    with pytest.raises(WrongCall, match="is a function"):
        consumer.job("resize")(coroutine)
    with pytest.raises(WrongCall, match="no stream has a processor"):
        jobs.run(consumer)
    consumer.job("resize")(lambda _: None)
    with running(jobs, consumer):
        until_it_runs(consumer)
        with pytest.raises(WrongCall, match="runs already"):
            jobs.run(consumer)
