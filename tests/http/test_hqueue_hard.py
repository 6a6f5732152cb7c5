"""Queues on a server that is full, has lost its last writes, or in which somebody has deleted records."""

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import redis as sync

from penstock.base.keys import Keys
from penstock.base.ports import free_port
from tests.http.queue_service import LATE, Queue, QueueService, client, queue_service
from tests.support.harness import until

KEYS = Keys("work")
DEAD_HOST = f"http://127.0.0.1:{free_port()}"
BODY = 1_000_000
pytestmark = pytest.mark.slow


@pytest.fixture
def service(tmp_path: Path) -> Iterator[QueueService]:
    given: dict[str, Any] = {"webhook_hosts": [DEAD_HOST], "webhook_secret": "a-long-secret", "max_body": BODY}
    with queue_service(tmp_path / "log", keep=1, **given) as service:
        yield service


@pytest.fixture
def redis(service: QueueService) -> Iterator["sync.Redis"]:
    with sync.Redis.from_url(service.redis_url) as redis:
        yield redis


def test_a_full_server_gets_room_from_tasks_that_have_ended(service: QueueService, redis: "sync.Redis") -> None:
    queue, value = Queue(service), "x" * 900_000
    for more in [{"webhook": f"{DEAD_HOST}/"}] * 2 + [{}] * 20:
        queue.add(value, **more)
        assert queue.ack(taskToken=queue.fetched("w")["taskToken"], result=1) == 200
    redis.config_set("maxmemory", "4mb")
    assert client.post(f"{queue.url}/tasks", json={"value": 1}).status_code == 503
    until(lambda: client.post(f"{queue.url}/tasks", json={"value": 1}).status_code == 201, timeout=20)


def test_requests_that_meet_a_key_of_the_wrong_type_hold_up_no_lease_of_other_queues(
    service: QueueService, redis: "sync.Redis"
) -> None:
    wrong, fine, over = Queue(service), Queue(service), Event()
    redis.set(KEYS.queue(f"/{wrong.name}", "values"), "not a hash")

    def ask() -> None:
        while not over.wait(0.005):
            client.post(f"{wrong.url}/fetch", json={"workerId": "w"})

    asking = Thread(target=ask)
    asking.start()
    try:
        id = fine.add(1)
        time.sleep(1)
        fine.fetched("w", timeToRecover=0.5)
        until(lambda: fine.status(id)["state"] == "waiting", timeout=10)
    finally:
        over.set()
        asking.join()


def test_a_fetch_returns_no_more_than_a_body_holds_besides_its_first_task(service: QueueService) -> None:
    queue = Queue(service)
    ids = [queue.add("x" * 400_000) for _ in range(5)]
    first = queue.fetched("w1", max=100)["tasks"]
    assert [task["taskId"] for task in first] == ids[:2]
    assert [task["taskId"] for task in queue.fetched("w1", max=100)["tasks"]] == ids[:2]
    assert [task["taskId"] for task in queue.fetched("w2", max=100)["tasks"]] == ids[2:4]


def test_a_queue_goes_on_after_its_records_were_deleted(service: QueueService, redis: "sync.Redis") -> None:
    """Its README says to delete a key of the wrong type."""
    queue = Queue(service)
    for more in [{}, {}, {"key": "k"}, {"key": "k"}, {"key": "k"}]:
        queue.add("lost", **more)
    queue.fetched("w1")
    redis.delete(KEYS.queue(f"/{queue.name}", "tasks"))
    for more in [{"key": "k"}, {"key": "k"}, {}]:
        queue.add("new", **more)
    got = []
    while task := queue.fetch("w1"):
        got.append(task["value"])
        assert queue.ack(taskToken=task["taskToken"]) == 200
    assert got == ["new"] * 3
    assert queue.info()["waiting"] == queue.info()["blocked"] == 0


@pytest.mark.parametrize("part", ["held", "later"])
def test_a_set_that_disagrees_with_the_records_is_put_right(
    service: QueueService, redis: "sync.Redis", part: str
) -> None:
    """A fetch of such a queue never ended, at 100,000 commands a second."""
    queue = Queue(service)
    id, other = queue.add("waits"), queue.add("too")
    redis.zadd(KEYS.queue(f"/{queue.name}", part), {id: 1, other: 1})
    found = queue.fetched("w1", max=2)["tasks"]
    assert [each["taskId"] for each in found] == [id, other]
    redis.zadd(KEYS.queue(f"/{queue.name}", part), {id: 1})
    assert queue.fetch("w2") is None
    assert queue.ack(taskToken=found[0]["taskToken"]) == 200
    assert not redis.zscore(KEYS.queue(f"/{queue.name}", part), id)


def test_members_that_are_not_due_are_put_right(service: QueueService, redis: "sync.Redis") -> None:
    """They were looked at 50 times a second, for ever; one that is no text ended the service at each start."""
    queue = Queue(service)
    waits, done, later = queue.add(1), queue.add(2), queue.add(3, delay=600)
    held: str = queue.fetched("w", timeToRecover=600)["taskId"]
    assert held == waits
    waits = queue.add(4)
    given = queue.fetched("other")
    assert given["taskId"] == done
    assert queue.ack(taskToken=given["taskToken"]) == 200
    tasks = [f"{id} /{queue.name}".encode() for id in (waits, held, done, later)]
    due = [KEYS.deadlines, KEYS.delayed, KEYS.kept_tasks]
    garbage = [b"x", b"\xff", b" ", b"x /a", b"7 \xff", b"7 /a b"]
    for key in due:
        redis.zadd(key, dict.fromkeys([*tasks, *garbage] if key != KEYS.kept_tasks else [*tasks[:2], *garbage], 1))
    redis.zadd(KEYS.outbox, dict.fromkeys(garbage, 1))
    until(lambda: not any(redis.zcount(key, 0, 10) for key in [*due, KEYS.outbox]))
    assert {*redis.zrange(KEYS.deadlines, 0, -1)} == {*tasks[:2]}
    assert {*redis.zrange(KEYS.delayed, 0, -1)} == {tasks[3]}
    assert [queue.status(id)["state"] for id in (waits, held, later)] == ["waiting", "held", "delayed"]
    service.process.runs()


def test_instances_agree_again_on_the_key_of_task_tokens(service: QueueService, redis: "sync.Redis") -> None:
    """If the server had lost it, an instance that was started later took no token of another one, until both ended."""
    queue = Queue(service)
    queue.add(1)
    token = queue.fetched("w")["taskToken"]
    before: Any = redis.get(KEYS.task_key)

    def beat() -> int:
        return client.post(f"{queue.url}/heartbeat", json={"taskToken": token}).status_code

    redis.set(KEYS.task_key, b"x" * 32)
    until(lambda: beat() == LATE)
    redis.delete(KEYS.task_key)
    until(lambda: redis.get(KEYS.task_key) == b"x" * 32)
    redis.set(KEYS.task_key, before)
    until(lambda: beat() == 200)


def away_for_longer_than_a_lease(service: QueueService, redis: "sync.Redis", how: str) -> None:
    """Let the service or its server be away, for longer than leases of a second and what is taken for a moment."""
    if how == "server":
        redis.client_pause(3_000)
        return
    service.kill() if how == "killed" else service.process.stop()
    time.sleep(3)
    service.start()


@pytest.mark.parametrize("how", ["killed", "stopped", "server"])
def test_a_lease_that_ends_while_nothing_is_served_lasts_until_its_worker_can_say_what_it_has_done(
    service: QueueService, redis: "sync.Redis", how: str
) -> None:
    """The task was timed out in the first moment, and given to another worker although the first one had done it."""
    queue = Queue(service)
    ids = [queue.add(number, attempts=2) for number in range(4)]
    done, kept, short, lost = (queue.fetched(f"w{n}", timeToRecover=1) for n in range(4))
    assert [each["taskId"] for each in (done, kept, short, lost)] == ids
    until(lambda: redis.hget(KEYS.tasks_served, "seen"))
    away_for_longer_than_a_lease(service, redis, how)
    statuses = iter(lambda: client.post(f"{queue.url}/fetch", json={"workerId": "other"}).status_code, None)
    first = next(status for status in statuses if status != 503)
    assert first == 204, "nobody else gets one before its worker could answer"
    assert queue.ack(taskToken=done["taskToken"], result=1) == 200
    beat = {"taskToken": kept["taskToken"], "timeToRecover": 600}
    assert client.post(f"{queue.url}/heartbeat", json=beat).status_code == 200
    again = queue.fetched("w2", timeToRecover=600)
    assert (again["taskToken"], again["attempt"]) == (short["taskToken"], 1)
    given = queue.fetched("other", wait=20, timeToRecover=1)
    assert (given["taskId"], given["attempt"]) == (lost["taskId"], 2), "of a worker that has died meanwhile"
    given_at = time.monotonic()
    assert [queue.status(id)["state"] for id in ids[1:]] == ["held"] * 3
    until(lambda: queue.status(lost["taskId"])["state"] == "dead")
    assert time.monotonic() - given_at < 8, "a lease of afterwards is of its own length"
