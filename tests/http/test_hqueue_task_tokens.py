"""Task tokens that are forged, over, replayed or of somebody else: 4xx, and nothing has changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as sync
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.hqueue.task_token import TaskTokens
from tests.http.contents import contents
from tests.http.queue_service import LATE, NAMESPACE, QueueService, new_name, penstock
from tests.support.harness import until

KEPT = ("queue:*", "message:*", "events", "metrics:[^h]*", "tasks", "taskkey")
"""The keys of tasks: others change by themselves."""
SETTINGS = {"tokens": True}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def redis(service: QueueService) -> Iterator["sync.Redis"]:
    with sync.Redis.from_url(service.redis_url) as redis:
        yield redis


def owner(service: QueueService, name: str) -> httpx.Client:
    token = penstock("token", "add", NAMESPACE, name, "--right", "admin", "--redis", service.redis_url)
    return httpx.Client(base_url=f"{service.url}/queues", headers={"authorization": f"Bearer {token.strip()}"})


@pytest.fixture(scope="module")
def anna(service: QueueService) -> Iterator[httpx.Client]:
    with owner(service, "anna") as client:
        yield client


def held(client: httpx.Client, queue: str, worker: str = "w", **more: float) -> dict[str, Any]:
    """Add a task and let a worker have it."""
    assert client.post(f"/{queue}/tasks", json={"value": 1}).status_code == 201
    found: dict[str, Any] = client.post(f"/{queue}/fetch", json={"workerId": worker, **more}).json()
    return found


def stored(redis: "sync.Redis") -> dict[bytes, Any]:
    return {key: value for each in KEPT for key, value in contents(redis, f"{NAMESPACE}:{each}").items()}


def assert_refused(client: httpx.Client, redis: "sync.Redis", queue: str, token: Any) -> None:
    """Show ``token`` in each way."""
    before = stored(redis)
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("ack", {"taskToken": token, "result": "forged"}),
        ("ack", {"taskToken": token, "error": "forged", "retry": False}),
        ("heartbeat", {"taskToken": token, "progress": "forged", "timeToRecover": 9_999}),
    ]
    expected = {LATE} if isinstance(token, str) else {422}
    for verb, body in bodies:
        reply = client.post(f"/{queue}/{verb}", json=body)
        assert reply.status_code in expected, (verb, token, reply.text)
        assert reply.headers["content-type"] == "application/problem+json"
    if isinstance(token, str):
        (found,) = client.post(f"/{queue}/ack", json=[bodies[0][1]]).json()
        assert (found["acknowledged"], found["status"]) == (False, LATE)
    assert stored(redis) == before


def test_tokens_that_were_right_once_or_are_right_elsewhere_are_refused(
    service: QueueService, anna: httpx.Client, redis: "sync.Redis", tmp_path: Path
) -> None:
    queue, other = new_name(), new_name()
    late = held(anna, queue, timeToRecover=0.1)
    until(lambda: anna.get(f"/{queue}/tasks/{late['taskId']}").json()["state"] == "waiting")
    assert_refused(anna, redis, queue, late["taskToken"])  # nobody has the task
    task = anna.post(f"/{queue}/fetch", json={"workerId": "v"}).json()
    assert (task["taskId"], task["attempt"]) == (late["taskId"], 2)
    assert_refused(anna, redis, queue, late["taskToken"])  # another worker has it
    elsewhere = QueueService(service.redis_url, tmp_path / "log", redis_namespace="other")
    with elsewhere.process, owner(service, "bob") as bob, httpx.Client(base_url=f"{elsewhere.url}/queues") as apart:
        until(elsewhere.is_ready)
        tokens = [held(bob, queue)["taskToken"], held(anna, other)["taskToken"]]
        tokens.append(held(apart, queue)["taskToken"])
        for token in tokens:
            assert_refused(anna, redis, queue, token)
        assert_refused(bob, redis, queue, task["taskToken"])
        assert_refused(apart, redis, queue, task["taskToken"])
        assert_refused(anna, redis, other, task["taskToken"])
    assert anna.post(f"/{queue}/ack", json={"taskToken": task["taskToken"], "result": 1}).status_code == 200
    assert_refused(anna, redis, queue, task["taskToken"])  # replayed
    assert anna.post(f"/{queue}/rewind", json={"last": 0}).json() == {"rewound": 1}
    again = anna.post(f"/{queue}/fetch", json={"workerId": "u"}).json()
    assert (again["taskId"], again["attempt"]) == (task["taskId"], 3)
    assert_refused(anna, redis, queue, task["taskToken"])  # replayed to the next attempt
    assert anna.post(f"/{queue}/ack", json={"taskToken": again["taskToken"]}).status_code == 200


def test_parts_of_a_token_and_tokens_for_another_task_or_attempt_are_refused(
    anna: httpx.Client, redis: "sync.Redis"
) -> None:
    queue = new_name()
    task, second = held(anna, queue), held(anna, queue, "v")
    token = task["taskToken"]
    id, _, digest = token.split(".")
    forged = [
        f"{second['taskId']}.1.{digest}", f"{id}.2.{digest}", f"{id}.0.{digest}", f"0{id}.1.{digest}",
        f"{id}.01.{digest}", f"{id}.+1.{digest}", f"{id}.1.{digest}=", f" {token}", f"{token}\n", f"{id}.1.",
        TaskTokens(b"another key").make(f"anna/{queue}", id, 1), f"{id}.1.{digest.swapcase()}",
        f"{id}.{'9' * 60}.{digest}",
        *(token[:length] for length in range(0, len(token), 5)), None, 0, [token], {"token": token}, True,
    ]  # fmt: skip
    for each in forged:
        assert_refused(anna, redis, queue, each)
    assert anna.post(f"/{queue}/ack", json={"taskToken": token}).status_code == 200


def test_no_text_but_the_token_is_a_token(anna: httpx.Client, redis: "sync.Redis") -> None:
    queue = new_name()
    task = held(anna, queue, timeToRecover=3600)
    token: str = task["taskToken"]
    places, letters = st.integers(0, len(token) - 1), st.characters(codec="utf-8")
    changed = st.builds(lambda place, letter: token[:place] + letter + token[place + 1 :], places, letters)
    longer = st.builds(lambda place, more: token[:place] + more + token[place:], places, st.text(min_size=1))
    parts = st.builds("{}.{}.{}".format, st.integers(), st.integers(), st.text(max_size=24))

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(st.one_of(st.text(max_size=120), changed, longer, parts).filter(lambda text: text != token))
    def refused(text: str) -> None:
        assert_refused(anna, redis, queue, text)

    refused()
    assert anna.get(f"/{queue}/tasks/{task['taskId']}").json()["leaseEnd"] == pytest.approx(task["leaseEnd"], abs=0.01)
    assert anna.post(f"/{queue}/ack", json={"taskToken": token, "result": 5}).status_code == 200


@pytest.mark.parametrize(
    "body", [b"\xff\xfe", b'{"taskToken": "\xff"}', b'{"taskToken": "\\ud800"}', b'{"taskToken": ']
)
def test_bytes_that_are_no_text_are_refused(anna: httpx.Client, redis: "sync.Redis", body: bytes) -> None:
    queue = new_name()
    held(anna, queue)
    before = stored(redis)
    for verb in ("ack", "heartbeat"):
        assert 400 <= anna.post(f"/{queue}/{verb}", content=body).status_code < 500
    assert stored(redis) == before
