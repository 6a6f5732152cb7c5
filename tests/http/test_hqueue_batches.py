"""Arrays of acknowledgements, which are one call of a script: each for itself."""

from typing import Any

import httpx
import pytest
import redis as sync

from penstock.base.keys import Keys
from tests.http.queue_service import NAMESPACE, QueueService, new_name

pytestmark = pytest.mark.slow


@pytest.fixture
def url(service: QueueService) -> str:
    return f"{service.url}/queues/{new_name()}"


def post(url: str, what: str, body: Any) -> Any:
    reply = httpx.post(f"{url}/{what}", json=body)
    assert reply.status_code in (200, 201), reply.text
    return reply.json()


def fetched(url: str, most: int) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = post(url, "fetch", {"workerId": "w", "timeToRecover": 60, "max": most})["tasks"]
    return tasks


def test_each_acknowledgement_of_an_array_is_answered_for_itself_in_its_place(url: str) -> None:
    post(url, "tasks", [{"value": number, "attempts": 2} for number in range(4)])
    first, second, third, fourth = (task["taskToken"] for task in fetched(url, 4))
    found = post(
        url,
        "ack",
        [
            {"taskToken": first, "result": 1},
            {"taskToken": first[:-1] + ("a" if first[-1] != "a" else "b"), "result": 2},
            {"taskToken": second, "error": {"type": "Busy"}, "delay": 60},
            {"taskToken": first, "result": 3},
            {"taskToken": third, "error": "no", "retry": False},
        ],
    )
    assert [each.get("state") or each["status"] for each in found] == ["done", 409, "delayed", 409, "dead"]
    assert [each["acknowledged"] for each in found] == [True, False, True, False, True]
    shown = [httpx.get(f"{url}/tasks/{token.partition('.')[0]}").json() for token in (first, second, third, fourth)]
    assert [task["state"] for task in shown] == ["done", "delayed", "dead", "held"]
    assert shown[0]["result"] == 1


def test_an_array_ends_the_task_that_a_worker_fetched_last_and_then_the_one_before(url: str) -> None:
    ids = [task["taskId"] for task in post(url, "tasks", [{"value": 1}, {"value": 2}])]
    assert [task["taskId"] for task in fetched(url, 2)] == ids
    found = post(url, "ack", [{"workerId": "w", "result": number} for number in range(3)])
    assert [each.get("state") or each["status"] for each in found] == ["done", "done", 409]
    assert [httpx.get(f"{url}/tasks/{id}").json()["result"] for id in ids] == [1, 0]


def test_nothing_is_kept_of_the_error_of_an_attempt_before_the_one_that_succeeds(
    service: QueueService, url: str
) -> None:
    post(url, "tasks", {"value": 1, "backoff": {"initial": 0, "factor": 1, "cap": 0}})
    post(url, "ack", {"taskToken": fetched(url, 1)[0]["taskToken"], "error": "once"})
    [again] = fetched(url, 1)
    assert again["attempt"] == 2
    post(url, "ack", [{"taskToken": again["taskToken"], "result": 7}])
    with sync.Redis.from_url(service.redis_url) as redis:
        values = redis.hkeys(Keys(NAMESPACE).queue(f"/{url.rpartition('/')[2]}", "values"))
    id = str(again["taskId"]).encode()
    assert sorted(values) == [id, id + b":result"]
