"""A key of the wrong type in one queue: its error is said, and all other queues go on."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis as sync

from penstock.base.keys import Keys
from tests.http.queue_service import QueueService, queue_service
from tests.support.harness import until

KEYS = Keys("work")
MANY = 1_200
"""Tasks that are due and cannot be acted on: more than one look finds."""
pytestmark = pytest.mark.slow


@pytest.fixture
def service(tmp_path: Path) -> Iterator[QueueService]:
    with queue_service(tmp_path / "log", keep=1) as service:
        yield service


def add(service: QueueService, queue: str, many: int = 1, **more: float) -> str:
    reply = httpx.post(f"{service.url}/queues/{queue}/tasks", json=[{"value": 1, **more}] * many)
    assert reply.status_code == 201, reply.text
    id: str = reply.json()[0]["taskId"]
    return id


def test_a_key_of_the_wrong_type_in_one_queue_keeps_no_other_queue_waiting(service: QueueService) -> None:
    wrong, url = KEYS.queue("/broken", "behind"), f"{service.url}/queues/fine"
    with sync.Redis.from_url(service.redis_url) as redis:
        for _ in range(MANY // 100):
            add(service, "broken", 100, ttl=4)
        redis.set(wrong, "not a sorted set")
        until(lambda: f"{wrong} holds a string, expected a zset" in service.process.log_text())
        until(lambda: redis.hget(KEYS.metric("error"), "last") == f"{wrong} holds a string, expected a zset".encode())
        expired, delayed, held = add(service, "fine", ttl=0.2), add(service, "fine", delay=2), add(service, "fine")
        found = httpx.post(f"{url}/fetch", json={"workerId": "w", "timeToRecover": 0.1}).json()
        assert found["taskId"] in (expired, held)
        until(lambda: httpx.get(f"{url}/info").json()["waiting"] == 2, timeout=20)
        until(lambda: httpx.get(f"{url}/tasks/{expired}").status_code == 404, timeout=20)  # its ``keep`` is over, too
        until(lambda: httpx.get(f"{url}/tasks/{delayed}").json()["state"] == "waiting", timeout=20)
        assert httpx.post(f"{service.url}/queues/broken/fetch", json={"workerId": "w"}).status_code == 503
        assert redis.hget(KEYS.metric("expired"), "count") == b"1"
        redis.delete(wrong)
        until(lambda: redis.hget(KEYS.metric("expired"), "count") == b"%d" % (MANY + 1))
        until(lambda: "resumed" in service.process.log_text())
        assert redis.hget(KEYS.metric("error"), "count") == b"1"
        assert service.process.stop() == 0
