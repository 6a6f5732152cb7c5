"""hqueue over HTTP, as curl sees it: the promises of imicros-queue, and its defects by their numbers."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as sync

from tests.http.queue_service import LATE, Queue, QueueService, client, new_name, queue_service
from tests.support.harness import ROOT, until

pytestmark = pytest.mark.slow


def penstock(*words: str) -> str:
    command = [sys.executable, "-m", "penstock", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueService]:
    with queue_service(tmp_path_factory.mktemp("hqueue") / "log") as service:
        yield service


@pytest.fixture
def queue(service: QueueService) -> Queue:
    return Queue(service)


def test_iq_03_a_worker_that_fetches_again_gets_its_task_with_a_new_lease(queue: Queue) -> None:
    queue.add(1), queue.add(2)
    first = queue.fetched("a")
    again = queue.fetched("a", timeToRecover=90)
    assert again["taskId"] == first["taskId"]
    assert again["taskToken"] == first["taskToken"]
    assert again["leaseEnd"] > first["leaseEnd"]


def test_a_worker_that_asks_for_the_second_time_has_died_and_its_task_dies_after_its_attempts(queue: Queue) -> None:
    """One that starts again within its lease got a task that kills it for ever, always as attempt 1."""
    poison, good = queue.add("poison", attempts=2), queue.add("good")
    given = [queue.fetched("a", timeToRecover=600) for _ in range(5)]
    assert [(each["taskId"], each["attempt"]) for each in given] == [(poison, 1)] * 2 + [(poison, 2)] * 2 + [(good, 1)]
    assert given[0]["taskToken"] == given[1]["taskToken"] != given[2]["taskToken"]
    found = queue.status(poison)
    assert (found["state"], found["reason"], found["attempt"]) == ("dead", "timeout", 2)
    assert queue.ack(taskToken=given[0]["taskToken"]) == LATE
    assert queue.ack(taskToken=given[4]["taskToken"]) == 200


def test_a_process_asks_for_its_tasks_as_often_as_it_likes_and_another_one_has_lost_those_of_the_first(
    queue: Queue,
) -> None:
    first, second = queue.add(1), queue.add(2)

    def fetched(process: str, most: int) -> list[tuple[str, int]]:
        body = {"workerId": "w", "max": most, "timeToRecover": 600}
        reply = client.post(f"{queue.url}/fetch", json=body, headers={"Worker-Process": process})
        return [(each["taskId"], each["attempt"]) for each in reply.json()["tasks"]]

    for _ in range(4):
        assert fetched("a", 2) == [(first, 1), (second, 1)]
    assert fetched("b", 1) == [(first, 2)]
    assert queue.status(second)["attempt"] == 1
    assert fetched("b", 1) == [(first, 2)]
    assert fetched("", 2) == [(first, 3), (second, 2)], "a worker of another kind under its name"


def test_iq_04_another_worker_gets_the_next_task_and_the_queue_is_first_in_first_out(queue: Queue) -> None:
    ids = [queue.add(value) for value in range(3)]
    assert [queue.fetched(worker)["taskId"] for worker in "abc"] == ids
    assert queue.fetch("d") is None


def test_iq_05_iq_06_and_iq_d02_a_late_ack_ends_no_other_task(queue: Queue) -> None:
    first, second = queue.add(1), queue.add(2)
    late = queue.fetched("a", timeToRecover=0.2)
    until(lambda: queue.status(first)["state"] == "waiting")
    assert queue.fetched("b")["taskId"] == first
    assert queue.fetched("a")["taskId"] == second
    assert queue.ack(taskToken=late["taskToken"], result=1) == LATE
    assert [queue.status(id)["state"] for id in (first, second)] == ["held", "held"]


def test_iq_07_the_original_acknowledges_by_worker_and_says_false_without_a_task(queue: Queue) -> None:
    queue.add("x")
    assert httpx.post(f"{queue.old}/fetch", json={"workerId": "w"}).json() == "x"
    acks = [httpx.post(f"{queue.old}/ack", json={"workerId": "w", "result": 1}).json() for _ in range(2)]
    assert acks == [True, False]


@pytest.mark.parametrize("result", [0, False, "", None, [], {}, 1.5, 2**70, {"type": "number", "value": "7"}])
def test_iq_08_iq_17_iq_d07_and_iq_d10_every_result_is_kept_as_it_is_and_comes_with_the_token(
    queue: Queue, result: Any
) -> None:
    id = queue.add("function (){}(globalThis.pwned=true)", token={"process": 5})
    task = queue.fetched("w")
    assert task["value"] == "function (){}(globalThis.pwned=true)"
    assert queue.ack(taskToken=task["taskToken"], result=result) == 200
    found = queue.status(id)
    assert (found["state"], found["result"], found["token"]) == ("done", result, {"process": 5})


def test_counts_are_shown_if_a_record_was_removed_by_hand(service: QueueService, queue: Queue) -> None:
    gone, left = queue.add(1), queue.add(2)
    queue.fetched("a"), queue.fetched("b")
    with sync.Redis.from_url(service.redis_url) as redis:
        records = f"work:queue:/{queue.name}:tasks"
        record = redis.hget(records, gone)
        redis.hdel(records, gone)
        found = httpx.get(f"{queue.url}/info").json()
        redis.hset(records, gone, record)  # for the audit of all queues of this service
    assert (found["inHand"], [each["taskId"] for each in found["held"]]) == (2, [left])


def test_iq_02_an_empty_queue_is_204_and_a_null_value_200(queue: Queue) -> None:
    assert queue.fetch("w") is None
    queue.add(None)
    assert queue.fetched("w")["value"] is None


def test_iq_10_a_task_is_gone_when_its_ttl_is_over_also_if_fetched(queue: Queue) -> None:
    waiting, held = queue.add(1, ttl=0.3, key="a"), queue.add(2, ttl=0.3, key="b")
    task = queue.fetched("w")
    until(lambda: [queue.status(id)["state"] for id in (waiting, held)] == ["expired", "expired"])
    assert queue.ack(taskToken=task["taskToken"]) == LATE
    assert queue.fetch("v") is None


def test_iq_14_rewind_begins_again_behind_an_index(queue: Queue) -> None:
    ids = [queue.add(value) for value in range(4)]
    for _ in ids:
        queue.ack(taskToken=queue.fetched("w")["taskToken"])
    assert httpx.post(f"{queue.url}/rewind", json={"last": 2}).json() == {"rewound": 2}
    assert queue.fetched("w")["taskId"] == ids[2]


def test_tasks_of_one_key_are_done_one_after_the_other(queue: Queue) -> None:
    first, second, other = queue.add(1, key="k"), queue.add(2, key="k"), queue.add(3)
    task = queue.fetched("a")
    assert task["taskId"] == first
    assert queue.fetched("b")["taskId"] == other
    assert queue.status(second)["state"] == "blocked"
    queue.ack(taskToken=task["taskToken"], error={"type": "Busy"}, delay=3)
    assert queue.fetch("a") is None
    assert queue.fetched("a", wait=5)["taskId"] == first


def test_rv_83_an_error_that_is_not_retryable_or_the_last_attempt_ends_the_task(queue: Queue) -> None:
    final = queue.add(1, nonRetryable=["Bad"])
    queue.ack(taskToken=queue.fetched("w")["taskToken"], error={"type": "Bad"})
    tried = queue.add(2, attempts=2, backoff={"initial": 0})
    for _ in range(2):
        queue.ack(taskToken=queue.fetched("w")["taskToken"], error={"type": "Other"})
    assert [(queue.status(id)["state"], queue.status(id)["reason"]) for id in (final, tried)] == [
        ("dead", "failed")
    ] * 2
    assert httpx.post(f"{queue.url}/tasks/{tried}/retry").status_code == 200
    assert queue.fetched("w")["attempt"] == 3


def test_rv_80_each_of_the_other_time_outs_fires_alone(queue: Queue) -> None:
    never = queue.add(1, startTimeout=0.2)
    until(lambda: queue.status(never)["state"] == "dead")
    assert queue.status(never)["reason"] == "queueTimeout"
    slow = queue.add(2, attemptTimeout=0.4, attempts=1)
    task, begun = queue.fetched("w", timeToRecover=60), time.monotonic()
    while httpx.post(f"{queue.url}/heartbeat", json={"taskToken": task["taskToken"]}).status_code == 200:
        assert time.monotonic() - begun < 10
    until(lambda: queue.status(slow)["state"] == "dead")
    assert queue.status(slow)["reason"] == "timeout"


def test_rv_82_progress_reaches_the_next_attempt_and_a_cancellation_the_worker(queue: Queue) -> None:
    id = queue.add(1)
    task = queue.fetched("a", timeToRecover=2)
    beat = {"taskToken": task["taskToken"], "progress": 60}
    assert httpx.post(f"{queue.url}/heartbeat", json=beat).json()["cancelRequested"] is False
    again = queue.fetched("b", wait=20)
    assert (again["progress"], again["attempt"]) == (60, 2)
    assert httpx.delete(f"{queue.url}/tasks/{id}").status_code == 202
    beat = {"taskToken": again["taskToken"]}
    assert httpx.post(f"{queue.url}/heartbeat", json=beat).json()["cancelRequested"] is True
    assert queue.ack(taskToken=again["taskToken"], error="stopped") == 200
    assert queue.status(id)["reason"] == "cancelled"


@pytest.mark.parametrize(
    "token", ["", "1.1.", "1.1.AAAAAAAAAAAAAAAAAAAAAAAA", "x", "1.1.AAAA.B", "\u0661.1.AAAA", "9" * 200]
)
def test_rv_81_a_forged_token_changes_nothing(queue: Queue, token: str) -> None:
    id = queue.add(1)
    queue.fetched("w")
    assert queue.ack(taskToken=token) == LATE
    assert queue.status(id)["state"] == "held"


@pytest.mark.parametrize("recover", [{"timeToRecover": 0}, {"timeToRecover": -1}, {"timeToRecoverMs": 0}])
def test_iq_d09_a_lease_of_zero_or_less_is_refused(queue: Queue, recover: dict[str, float]) -> None:
    reply = httpx.post(f"{queue.url}/fetch", json={"workerId": "w", **recover})
    assert reply.status_code == 422
    assert reply.headers["content-type"] == "application/problem+json"


def test_penstock_audit_adds_up_and_trace_shows_the_life_of_a_task_without_its_contents(
    service: QueueService, queue: Queue
) -> None:
    cancelled, id = queue.add("plaintext"), queue.add("plaintext")
    assert httpx.delete(f"{queue.url}/tasks/{cancelled}").status_code == 204
    queue.ack(taskToken=queue.fetched("w")["taskToken"], result="plaintext")
    penstock("audit", "work", "--redis", service.redis_url)  # its exit status is 0
    traced = json.loads(penstock("trace", "work", id, "--by", "id", "--json", "--redis", service.redis_url))
    assert [event["event"] for event in traced["events"]] == ["registered", "delivered", "done"]
    with sync.Redis.from_url(service.redis_url) as redis:
        assert "plaintext" not in str(redis.xrange("work:events"))


def test_a_batch_is_given_without_a_task_that_is_over(queue: Queue) -> None:
    for value in range(30):
        queue.add(value, ttl=0.4 if value == 20 else 60)
    time.sleep(0.41)  # it is over, and perhaps no sweep has seen that
    tasks = queue.fetched("w", max=100)["tasks"]
    assert {task["value"] for task in tasks} == set(range(30)) - {20}


def test_tasks_of_a_state_are_listed_in_pages(queue: Queue) -> None:
    for value in range(3):
        queue.add(value, delay=60 if value == 1 else 0)
    first = httpx.get(f"{queue.url}/tasks", params={"state": "waiting", "most": 1}).json()
    rest = httpx.get(f"{queue.url}/tasks", params={"state": "waiting", "after": first["next"]}).json()
    assert [task["index"] for page in (first, rest) for task in page["tasks"]] == [1, 3]
    assert "next" not in rest


def test_a_stop_ends_long_polls_at_once(tmp_path: Path) -> None:
    with queue_service(tmp_path / "log") as service, ThreadPoolExecutor() as threads:
        queue = Queue(service)
        id = queue.add(1, delay=60)
        fetching, looking = threads.submit(queue.fetch, "w", wait=20), threads.submit(queue.status, id, wait=20)
        time.sleep(1)
        begun = time.monotonic()
        assert service.process.stop() == 0
        assert time.monotonic() - begun < 10
        assert fetching.result() is None
        assert looking.result()["state"] == "delayed"


def test_iq_11_nothing_that_is_stored_can_be_read_and_forgetting_an_owner_ends_all(tmp_path: Path) -> None:
    master = tmp_path / "master"
    master.write_text("ab" * 32)
    master.chmod(0o400)
    with queue_service(tmp_path / "log", master_key=f"file:{master}") as service:
        queue = Queue(service)
        queue.add({"card": "plaintext-4711"}, token="plaintext-token")
        id = queue.add(b"".hex(), key="plaintext-key")
        task = queue.fetched("w")
        assert task["value"] == {"card": "plaintext-4711"}
        beat = {"taskToken": task["taskToken"], "progress": "plaintext-progress"}
        assert httpx.post(f"{queue.url}/heartbeat", json=beat).status_code == 200
        assert queue.ack(taskToken=task["taskToken"], result="plaintext-result") == 200
        assert queue.status(task["taskId"])["result"] == "plaintext-result"
        with sync.Redis.from_url(service.redis_url) as redis:
            dump = b"".join(redis.dump(key) or b"" for key in redis.scan_iter())
            assert queue.name.encode() in b"".join(redis.scan_iter())
            assert b"plaintext" not in dump
        command = [
            sys.executable,
            "-m",
            "penstock",
            "owner",
            "forget",
            "work",
            "",
            "--yes",
            "--redis",
            service.redis_url,
        ]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        until(lambda: httpx.get(f"{queue.url}/tasks/{id}").status_code == 410)
        assert httpx.post(f"{queue.url}/tasks", json={"value": 1}).status_code == 410


def test_iq_01_and_iq_02_an_owner_sees_its_own_queues_only_and_an_agent_its_service(tmp_path: Path) -> None:
    with queue_service(tmp_path / "log", tokens=True) as service:
        name = new_name()
        agent = ("--right", "fetch", "--service", name)
        rights = {"anna": ("anna", "--right", "admin"), "bob": ("bob", "--right", "admin"), "agent": ("anna", *agent)}
        tokens = {}
        for who, words in rights.items():
            token = penstock("token", "add", "work", *words, "--redis", service.redis_url)
            tokens[who] = {"Authorization": f"Bearer {token.strip()}"}
        base = f"{service.url}/queues"
        assert httpx.post(f"{base}/{name}/tasks", json={"value": 7}).status_code == 401
        added = httpx.post(f"{base}/{name}/tasks", json={"value": 7}, headers=tokens["anna"])
        assert added.status_code == 201
        id = added.json()["taskId"]
        assert httpx.get(f"{base}/{name}/tasks/{id}").status_code == 401
        assert httpx.get(f"{base}/{name}/tasks/{id}", headers=tokens["bob"]).status_code == 404
        for verb, body in (("tasks", {}), ("rewind", {"last": 0})):
            assert httpx.post(f"{base}/{name}/{verb}", json=body, headers=tokens["agent"]).status_code == 403
        fetched = httpx.post(f"{base}/elsewhere/fetch", json={"workerId": "w"}, headers=tokens["agent"])
        assert fetched.json()["taskId"] == id
        stolen = {"taskToken": fetched.json()["taskToken"]}
        assert httpx.post(f"{base}/{name}/ack", json=stolen, headers=tokens["bob"]).status_code == LATE
