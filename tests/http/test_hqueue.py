"""hqueue over HTTP, as curl sees it: the promises of imicros-queue, and its defects by their numbers."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import redis as sync

from tests.http.queue_service import LATE, Queue, QueueService, client, new_name, penstock, queue_service
from tests.support.harness import until

pytestmark = pytest.mark.slow


@pytest.fixture
def queue(service: QueueService) -> Queue:
    return Queue(service)


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
    assert fetched("", 2) == [(first, 3)], "a worker of another kind under its name, which gets suspects one by one"
    assert queue.status(second)["state"] == "waiting"


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
