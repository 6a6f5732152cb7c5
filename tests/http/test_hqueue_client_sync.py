"""The blocking client of hqueue, and the ends of loops by signals."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.hqueue import NewTask, TaskFailed
from penstock.sync import Queues
from tests.http.queue_service import QueueService, new_name
from tests.support.harness import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture
def queues(service: QueueService) -> Iterator[Queues]:
    with Queues(service.url) as connected:
        yield connected


def test_tasks_are_added_handled_and_their_results_awaited(queues: Queues) -> None:
    queue = queues[new_name()]
    added = queue.add_many([NewTask(b"\0"), *range(150)], attempts=1)
    assert (len(added), queue.info().waiting) == (151, 151)
    seen = list[Any]()
    for task in queue.tasks(batch=20):
        with task:
            seen.append(task.value)
            if task.value == 7:
                raise ValueError("seven")
            task.finish(task.value)
        if len(seen) == 151:
            break
    assert seen == [b"\0", *range(150)]
    assert queue.result(added[1].id) == 0
    status = queue.status(added[8].id)
    assert (status.state, status.error) == ("dead", {"type": "ValueError", "message": "seven"})


def test_heartbeats_keep_a_task_while_the_program_computes(queues: Queues) -> None:
    queue = queues[new_name()]
    added = queue.add("slow")
    for task in queue.tasks(time_to_recover=0.5):
        with task:
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                assert queue.fetch("other") is None
            assert task.progress("half") is False
            assert queue.cancel(added.id) is False
            assert task.progress("more") is True
            assert task.is_cancelled
            task.fail("given up", retry=False)
        break
    with pytest.raises(TaskFailed):
        queue.result(added.id)


def test_an_interrupt_gives_the_task_back(queues: Queues) -> None:
    queue = queues[new_name()]
    queue.add(1)

    def work() -> None:
        for task in queue.tasks(time_to_recover=600):
            with task:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    found = queue.fetch("other", wait=5)
    assert found is not None
    assert found.attempt == 2


def test_a_stop_from_another_thread_ends_a_wait(queues: Queues) -> None:
    queue = queues[new_name()]
    threading.Timer(0.3, queues.stop).start()
    begun = time.monotonic()
    assert [*queue.tasks()] == []
    assert time.monotonic() - begun < 5


def test_queues_are_entered_again(service: QueueService) -> None:
    queues = Queues(service.url)
    for _ in range(2):
        with queues:
            assert queues["a"].info().service == "a"


WORKER = """
import signal, sys
from penstock.{module} import Queues
{body}
"""
BLOCKING = """
with Queues(sys.argv[1], stop_signals=[signal.SIGTERM]) as queues:
    print("ready", flush=True)
    for task in queues[sys.argv[2]].tasks():
        with task:
            print(task.value, flush=True)
"""
ASYNC = """
import asyncio
async def main():
    async with Queues(sys.argv[1], stop_signals=[signal.SIGTERM]) as queues:
        print("ready", flush=True)
        async for task in queues[sys.argv[2]].tasks():
            with task:
                print(task.value, flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize(("module", "body"), [("sync", BLOCKING), ("hqueue", ASYNC)])
def test_a_signal_ends_a_worker_after_the_task_in_hand(
    service: QueueService, queues: Queues, module: str, body: str
) -> None:
    queue = queues[new_name()]
    added = queue.add("tea")
    words = [sys.executable, "-c", WORKER.format(module=module, body=body), service.url, queue.service]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "tea\n"]
        assert queue.result(added.id, timeout=30) is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
