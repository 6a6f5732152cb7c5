"""The client of hqueue with the service: tasks from hand to hand, and what happens when something fails."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from penstock.base.errors import WrongCall
from penstock.hqueue import LeaseLost, NewTask, Queue, Queues, TaskFailed
from tests.http.queue_answers import Hanging
from tests.http.queue_service import QueueService, new_name

SECONDS = 30
"""Longest wait for what must happen."""
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def logging_without_structlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client log as in a program that has not configured structlog, which other tests may have."""
    monkeypatch.setattr("structlog.is_configured", lambda: False)


@pytest.fixture
async def queues(service: QueueService) -> AsyncIterator[Queues]:
    async with asyncio.timeout(2 * SECONDS), Queues(service.url) as connected:
        yield connected


@pytest.fixture
def queue(queues: Queues) -> Queue:
    return queues[new_name()]


async def taken(queue: Queue, seconds: float = SECONDS) -> Any:
    """Return the next task for another worker; fail if none comes within ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := await queue.fetch("other", wait=min(20, max(0, round(end - time.monotonic(), 3)))):
            return found
    raise TimeoutError("no task came")


VALUES: list[Any] = [
    None,
    False,
    0,
    "",
    [],
    {},
    1.5,
    2**70,
    "ü\U0001f600\0",
    {"a": [None, {"b": ""}]},
    b"",
    b"\0\xff" * 1000,
]


async def test_values_and_results_of_all_kinds_come_as_they_were_given(queue: Queue) -> None:
    added = await queue.add_many(VALUES)
    assert [each.index for each in added] == [*range(1, len(VALUES) + 1)]
    for each, value in zip(added, VALUES, strict=True):
        task = await queue.fetch("w")
        assert task is not None
        assert (task.id, task.value, type(task.value), task.attempt) == (each.id, value, type(value), 1)
        assert await queue.ack(task.task_token, value) == "done"
        result = await queue.result(each.id)
        assert (result, type(result)) == (value, type(value))
    assert await queue.fetch("w") is None


async def test_a_worker_gets_its_task_again_until_it_is_acknowledged(queue: Queue) -> None:
    await queue.add_many([1, 2])
    first, again = await queue.fetch("w"), await queue.fetch("w")
    assert first is not None
    assert again is not None
    assert (first.id, first.task_token) == (again.id, again.task_token)
    assert "token" not in repr(first)
    (other,) = await queue.fetch_many("v", 10)
    assert other.value == 2
    with pytest.raises(LeaseLost):
        await queue.ack(first.task_token[:-1] + "x", 1)
    assert await queue.ack(first.task_token, 1) == "done"
    with pytest.raises(LeaseLost, match="another worker may have the task") as raised:
        await queue.ack(first.task_token, 1)
    assert (raised.value.status, raised.value.repeated) == (409, False)


async def test_results_are_awaited_while_workers_handle_tasks(queues: Queues, queue: Queue) -> None:
    async def work() -> None:
        async for task in queue.tasks():
            with task:
                if task.value != 3:
                    task.finish({"double": task.value * 2})

    working = asyncio.create_task(work())
    added = await queue.add_many(range(5), token={"from": "test"})
    found = await asyncio.gather(*(queue.result(each.id, timeout=SECONDS) for each in added))
    assert found == [{"double": 0}, {"double": 2}, {"double": 4}, None, {"double": 8}]
    status = await queue.status(added[0].id)
    assert (status.state, status.attempt, status.token, status.has_ended) == ("done", 1, {"from": "test"}, True)
    queues.stop()
    await working


async def test_an_exception_is_reported_and_the_task_tried_again_by_a_loop_that_goes_on(
    queues: Queues, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await queue.add_many(["fails", "works"], backoff={"initial": 0.01}, attempts=2)
    seen = list[Any]()
    async for task in queue.tasks():
        seen.append((task.value, task.attempt))
        with task:
            if task.value == "fails":
                raise ValueError("no tea")
        if len(seen) == 3:
            break
    assert Counter(seen) == Counter({("fails", 1): 1, ("works", 1): 1, ("fails", 2): 1})
    assert await queue.result(second.id) is None
    with pytest.raises(TaskFailed, match=r"is dead after 2 attempts \(failed\): no tea$") as raised:
        await queue.result(first.id)
    assert raised.value.error == {"type": "ValueError", "message": "no tea"}
    assert "ValueError: no tea" in caplog.text
    await queue.retry(first.id)
    assert (await taken(queue)).value == "fails"


async def test_types_of_errors_that_are_final_and_failures_without_a_retry_end_a_task(queue: Queue) -> None:
    added = await queue.add_many([1, 2], non_retryable=["KeyError"])
    seen = 0
    async for task in queue.tasks():
        with task:
            if task.value == 1:
                raise KeyError("x")
            task.fail({"type": "Mine", "message": "never"}, retry=False)
        seen += 1
        if seen == 2:
            break
    for each in added:
        with pytest.raises(TaskFailed, match="after 1 attempts"):
            await queue.result(each.id)
    assert [status.id for status in await queue.statuses("dead")] == [each.id for each in added]
    status = await queue.status(added[1].id)
    assert (status.error, status.attempt) == ({"type": "Mine", "message": "never"}, 1)


async def test_an_attempt_that_failed_comes_again_after_the_delay_that_its_worker_says(queue: Queue) -> None:
    await queue.add(1)
    async for task in queue.tasks():
        with task:
            task.fail("later", delay=0.5)
        break
    begun = time.monotonic()
    again = await taken(queue)
    assert again.attempt == 2
    assert 0.3 < time.monotonic() - begun < 10


async def test_outcomes_belong_to_the_with_and_are_given_once(queue: Queue) -> None:
    added = await queue.add(1)
    async for task in queue.tasks():
        with pytest.raises(WrongCall, match="call them inside `with task:`"):
            task.finish(1)
        with task:
            task.finish(1)
            with pytest.raises(WrongCall, match="one outcome"):
                task.fail("x")
            with pytest.raises(WrongCall, match="handled once"):
                task.__enter__()
        with pytest.raises(WrongCall, match="call them inside `with task:`"):
            task.finish(2)
        with pytest.raises(WrongCall, match="handled once"):
            task.__enter__()
        break
    assert await queue.result(added.id) == 1


async def test_a_loop_without_with_is_an_error_and_its_task_goes_back(queue: Queue) -> None:
    await queue.add(1)

    async def work() -> None:
        async for _ in queue.tasks():
            pass

    with pytest.raises(WrongCall, match="expected `with task:` around its handling"):
        await work()
    assert (await taken(queue, 5)).value == 1


async def some_of_a_batch(queue: Queue) -> int:
    """Handle tasks until some of a batch are in hand; return how many were handled."""
    seen = 0
    async with aclosing(queue.tasks(batch=20, time_to_recover=600)) as tasks:
        async for task in tasks:
            with task:
                pass
            seen += 1
            if len((await queue.info()).held) > 1:
                break
    return seen


async def test_what_goes_back_has_not_been_tried(queue: Queue) -> None:
    """At ``attempts=1`` it was dead."""
    await queue.add_many(range(40), attempts=1)
    seen = await some_of_a_batch(queue)
    info = await queue.info()
    assert (info.waiting, info.ended, info.held) == (40 - seen, seen, ())
    assert not await queue.statuses("dead")
    while task := await queue.fetch("other"):
        assert await queue.ack(task.task_token) == "done"
    assert len(await queue.statuses("done")) == 40


async def test_tasks_of_an_answer_that_never_came_go_back_at_a_stop(service: QueueService) -> None:
    """All but the first were leased until their time was over."""
    transport = Hanging()
    async with Queues(service.url, transport=transport) as queues:
        queue, seen = queues[new_name()], 0
        await queue.add_many(range(40), attempts=1)

        async def work() -> None:
            nonlocal seen
            async for task in queue.tasks(batch=20, time_to_recover=600):
                with task:
                    seen += 1

        working = asyncio.create_task(work())
        await transport.hangs.wait()
        assert len((await queue.info()).held) > 1
        queues.stop()
        await working
        info = await queue.info()
        assert (info.waiting, info.ended, info.held) == (40 - seen, seen, ())


async def test_a_cancelled_task_that_goes_back_is_dead(queue: Queue) -> None:
    added = await queue.add(1)
    (task,) = await queue.fetch_many("w", 1)
    await queue.cancel(added.id)
    assert await queue.release(task.task_token) == "dead"
    assert (await queue.status(added.id)).reason == "cancelled"
    with pytest.raises(LeaseLost):
        await queue.release(task.task_token)


async def test_heartbeats_keep_a_slow_task(queue: Queue) -> None:
    added = await queue.add(1)
    async for task in queue.tasks(time_to_recover=0.5):
        with task:
            for _ in range(10):
                await asyncio.sleep(0.2)
                assert await queue.fetch("other") is None
            task.finish("slow")
        break
    assert await queue.result(added.id) == "slow"
    assert (await queue.status(added.id)).attempt == 1


async def test_an_outcome_does_not_count_once_another_worker_has_the_task(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    added = await queue.add(1, attempts=5)
    async for task in queue.tasks():
        with task:
            await queue.release(task.task_token)
            other = await taken(queue)
            with pytest.raises(LeaseLost, match="another worker may have the task"):
                await task.progress("late")
            assert task.is_lost
            task.finish("late")
        break
    assert await queue.ack(other.task_token, "other") == "done"
    assert await queue.result(added.id) == "other"
    assert caplog.text.count("lease lost") == 1


async def test_the_next_attempt_finds_what_the_one_before_has_reported(queue: Queue) -> None:
    added = await queue.add(1, backoff={"initial": 0.01})
    async for task in queue.tasks():
        with task:
            if task.attempt == 1:
                assert task.last_progress is None
                assert await task.progress({"line": 7}) is False
                assert (await queue.status(added.id)).progress == {"line": 7}
                raise ValueError
            assert task.last_progress == {"line": 7}
        if task.attempt == 2:
            break
    assert await queue.result(added.id) is None


async def test_a_worker_hears_that_its_task_is_wanted_no_more(queue: Queue) -> None:
    waiting = await queue.add("waiting", delay=60)
    assert await queue.cancel(waiting.id) is True
    with pytest.raises(TaskFailed, match="cancelled"):
        await queue.result(waiting.id)
    added = await queue.add_many(["asks", "is told"])
    seen = list[Any]()
    async for task in queue.tasks(time_to_recover=0.5):
        with task:
            assert await queue.cancel(task.id) is False
            if task.value == "asks":
                assert await task.progress() is True
            while not task.is_cancelled:
                await asyncio.sleep(0.01)
            task.fail("wanted no more", retry=False)
        seen.append(task.value)
        if len(seen) == 2:
            break
    for each in added:
        with pytest.raises(TaskFailed):
            await queue.result(each.id)


async def test_a_stop_ends_a_wait_at_once_and_takes_no_task(
    queues: Queues, queue: Queue, service: QueueService
) -> None:
    async def work() -> None:
        async for task in queue.tasks(time_to_recover=600):
            pytest.fail(f"{task} came after the stop")

    working = asyncio.create_task(work())
    await asyncio.sleep(0.3)
    begun = time.monotonic()
    queues.stop()
    await working
    assert time.monotonic() - begun < 3
    async with Queues(service.url) as others:
        await others[queue.service].add(1)
        assert (await taken(others[queue.service], 5)).attempt == 1


async def test_a_loop_that_is_cancelled_while_a_task_is_on_its_way_gives_it_back(
    queue: Queue, service: QueueService
) -> None:
    for number in range(20):
        async with Queues(service.url) as others:

            async def work(other: Queue) -> None:
                async for task in other.tasks(time_to_recover=600):
                    with task:
                        await asyncio.sleep(SECONDS)

            working = asyncio.create_task(work(others[queue.service]))
            await asyncio.sleep(0.05)
            await queue.add(number, attempts=0)
            await asyncio.sleep(0.001 * (number % 4))
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        task = await taken(queue, 5)
        assert task.value == number
        await queue.ack(task.task_token)


async def test_tasks_of_one_key_are_handled_in_order_by_several_loops(queues: Queues, queue: Queue) -> None:
    await queue.add_many([NewTask([key, number], key=key) for number in range(20) for key in "abc"])
    seen = list[Any]()

    async def work() -> None:
        async for task in queue.tasks(batch=4):
            with task:
                await asyncio.sleep(0.001)
                seen.append(task.value)
            if len(seen) == 60:
                queues.stop()

    await asyncio.gather(*(work() for _ in range(4)))
    for key in "abc":
        assert [number for each, number in seen if each == key] == [*range(20)]


async def test_a_queue_says_what_it_has_and_goes_back(queue: Queue) -> None:
    added = await queue.add_many([1, 2, 3])
    await queue.add(4, delay=60)
    task = await queue.fetch("w")
    assert task is not None
    info = await queue.info()
    assert (info.service, info.index, info.waiting, info.delayed, info.blocked) == (queue.service, 4, 2, 1, 0)
    (held,) = info.held
    assert (held.id, held.index, held.worker, held.attempt) == (added[0].id, 1, "w", 1)
    assert info.oldest is not None
    assert (info.in_hand, info.ended) == (1, 0)
    await queue.ack(task.task_token, 1)
    info = await queue.info()
    assert (info.in_hand, info.held, info.ended) == (0, (), 1)
    assert await queue.rewind(0) == 1
    assert (await taken(queue)).value == 1
    with pytest.raises(WrongCall, match="expected waiting"):
        await queue.statuses("gone")


async def test_more_tasks_are_listed_than_one_answer_has_with_the_names_that_their_producer_gave(queue: Queue) -> None:
    names = [f"task {number}" for number in range(1_002)]
    await queue.add_many([NewTask(None, id=name) for name in names])
    assert [status.name for status in await queue.statuses(most=10_000)] == names
