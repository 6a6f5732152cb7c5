"""Promises of imicros-queue (IQ) and of its rivals (RV), and defects of the former (IQ-D), by their numbers."""

import json
import statistics
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis as sync

from penstock.base.encoding import decoded
from penstock.base.keys import Keys
from services.hqueue.settings import Settings
from services.hqueue.store import New, Store
from tests.http.contents import contents
from tests.http.hqueue_machine import Piped, result_of
from tests.http.queue_service import LATE, Queue, QueueService, client
from tests.support.clock import Skewed
from tests.support.harness import ROOT, sampled, until

KEYS = Keys("work")
KEEP = 2
"""Seconds that the service keeps a task that has ended."""
QUEUES = 2_000 if sampled(1) else 10_000
"""Many queues; ten thousand in a long run."""
WEEK = 604_800
SETTINGS = {"keep": KEEP}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def redis(service: QueueService) -> Iterator["sync.Redis"]:
    with sync.Redis.from_url(service.redis_url) as redis:
        yield redis


@pytest.fixture
def queue(service: QueueService) -> Queue:
    return Queue(service)


def lease_of(task: dict[str, Any], redis: "sync.Redis") -> float:
    """Return the seconds until the lease is over, by the server's clock."""
    seconds, micros = redis.time()
    return float(task["leaseEnd"]) - seconds - micros / 1e6


# Order, leases and recovery


def test_iq_04_and_iq_d04_eight_workers_do_a_thousand_tasks_once_each(queue: Queue) -> None:
    for first in range(0, 1000, 100):
        body = [{"value": value} for value in range(first, first + 100)]
        assert client.post(f"{queue.url}/tasks", json=body).status_code == 201

    def work(worker: str) -> list[int]:
        done = []
        while task := queue.fetch(worker):
            assert queue.ack(taskToken=task["taskToken"]) == 200
            done.append(task["value"])
        return done

    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(work, "abcdefgh")]
    assert all(several == sorted(several) for several in found)
    assert sorted(value for several in found for value in several) == [*range(1000)]


def test_iq_05_iq_d15_and_iq_d09_a_lease_is_of_the_length_that_its_fetch_says(
    queue: Queue, redis: "sync.Redis"
) -> None:
    for _ in range(4):
        queue.add(1)
    given: tuple[dict[str, float], ...] = (
        {},
        {"timeToRecover": 0.5},
        {"timeToRecoverMs": 500},
        {"timeToRecover": 3600},
    )
    leases = [lease_of(queue.fetched(f"w{place}", **more), redis) for place, more in enumerate(given)]
    assert leases == [pytest.approx(expected, abs=2) for expected in (60, 0.5, 0.5, 3600)]


def test_iq_d15_leases_are_by_the_servers_clock_on_a_host_whose_clock_is_wrong(
    service: QueueService, redis: "sync.Redis", tmp_path: Path
) -> None:
    other = QueueService(service.redis_url, tmp_path / "log")
    settings = {"redis": service.redis_url, "redis_namespace": "work", "listen_port": other.port}
    other.process = Skewed("hqueue", tmp_path / "log", 7200, **settings)
    with other.process:
        until(other.is_ready)
        queue = Queue(other)
        id = queue.add(1, ttl=60, delay=0.01)
        assert lease_of(queue.fetched("w", timeToRecover=20, wait=5), redis) == pytest.approx(20, abs=5)
        record = json.loads(redis.hget(KEYS.queue(f"/{queue.name}", "tasks"), id) or "")
        assert record["ends"] - redis.time()[0] == pytest.approx(60, abs=10)
        assert other.process.clock() - redis.time()[0] > 7000
        assert other.process.stop() == 0


def test_iq_06_by_the_originals_paths_a_worker_whose_lease_is_over_gets_the_next_task(queue: Queue) -> None:
    queue.add("first"), queue.add("second")
    fetch = partial(client.post, f"{queue.old}/fetch")
    assert fetch(json={"workerId": "a", "timeToRecover": 0.2}).json() == "first"
    until(lambda: queue.info()["waiting"] == 2)
    assert queue.old_ack("a", result="late") is False
    assert fetch(json={"workerId": "b"}).json() == "first"
    assert fetch(json={"workerId": "a"}).json() == "second"
    assert [queue.old_ack(worker) for worker in "ba"] == [True, True]


def test_iq_d08_an_ack_and_a_recovery_at_one_time_never_both_win(queue: Queue) -> None:
    won = set()
    with ThreadPoolExecutor(2) as threads:
        for place in range(16):
            id = queue.add(place, attempts=0)
            task = queue.fetched("a", timeToRecover=0.1)
            time.sleep(0.008 * place)
            acked = threads.submit(queue.ack, taskToken=task["taskToken"], result="a")
            again = threads.submit(queue.fetch, "b").result() or queue.fetch("b", wait=0.2)
            assert (acked.result() == 200) == (again is None), "acknowledged, and given to another worker"
            won.add(acked.result())
            if again:
                assert (again["taskId"], queue.ack(taskToken=again["taskToken"], result="b")) == (id, 200)
            assert queue.status(id)["result"] == ("b" if again else "a")
    assert won == {200, LATE}, "one side always won: the test proves nothing"


# What is stored, and for how long


def test_iq_10_and_iq_d01_a_task_lives_for_seven_days_unless_it_says_less(queue: Queue, redis: "sync.Redis") -> None:
    for given, expected in (({}, WEEK), ({"ttl": 5}, 5)):
        id = queue.add(1, **given)
        record = json.loads(redis.hget(KEYS.queue(f"/{queue.name}", "tasks"), id) or "")
        assert record["ends"] - record["added"] == pytest.approx(expected, abs=0.01)
        assert redis.zscore(KEYS.deadlines, f"{id} /{queue.name}") == pytest.approx(record["ends"], abs=0.01)
    assert client.post(f"{queue.url}/tasks", json={"ttl": WEEK + 1}).status_code == 422


def test_iq_d21_and_iq_10_nothing_remains_of_tasks_that_have_ended_however_they_did(
    queue: Queue, redis: "sync.Redis"
) -> None:
    queue.add(1, ttl=0.2, id="expires"), queue.add(3, id="is done", key="k"), queue.add(4, id="dies", key="k")
    queue.add(5, ttl=0.3, key="k")  # expires while it is blocked
    cancelled = queue.add(2, id="is cancelled", token=5)
    assert client.delete(f"{queue.url}/tasks/{cancelled}").status_code == 204
    until(lambda: queue.info()["ended"] == 3)
    for ends in ({"result": 1}, {"error": 1, "retry": False}):
        task = queue.fetched("w")
        beat = {"taskToken": task["taskToken"], "progress": 1}
        assert client.post(f"{queue.url}/heartbeat", json=beat).status_code == 200
        assert queue.ack(taskToken=task["taskToken"], **ends) == 200
    until(lambda: not contents(redis, f"work:queue:/{queue.name}:*"), timeout=KEEP + 30)
    for key in (KEYS.deadlines, KEYS.delayed, KEYS.kept_tasks):
        assert not [member for member in redis.zrange(key, 0, -1) if decoded(member).endswith(f"/{queue.name}")]


def test_iq_d19_a_fetch_of_an_empty_queue_leaves_nothing_and_a_worker_may_have_any_name(
    queue: Queue, redis: "sync.Redis"
) -> None:
    for worker in ("INDEX", "FETCHED", "x" * 128, "\u00fc \n"):
        assert queue.fetch(worker) is None
        assert queue.old_ack(worker) is False
    assert contents(redis, f"work:queue:/{queue.name}:*") == {}
    ids = [queue.add(1), queue.add(2)]
    assert [queue.fetched(worker)["taskId"] for worker in ("INDEX", "FETCHED")] == ids
    found = client.get(f"{queue.old}/info").json()
    assert (found["INDEX"].partition(":")[0], found["FETCHED"].partition(":")[0]) == ("1", "2")
    assert [queue.old_ack(worker) for worker in ("FETCHED", "INDEX")] == [True, True]


def test_iq_d20_a_task_that_a_full_server_refuses_leaves_no_hole(queue: Queue, redis: "sync.Redis") -> None:
    first = queue.add(1)
    redis.config_set("maxmemory", 1)
    try:
        refused = client.post(f"{queue.url}/tasks", json={"value": 2})
    finally:
        redis.config_set("maxmemory", 0)
    assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
    second = queue.add(3)
    assert queue.status(second)["index"] == 2
    tasks = queue.fetched("w", max=10)["tasks"]
    assert [(task["taskId"], task["index"], task["value"]) for task in tasks] == [(first, 1, 1), (second, 2, 3)]


def test_iq_15_thousands_of_queues_cost_what_waits_in_them_and_nothing_when_they_are_empty(
    service: QueueService, redis: "sync.Redis"
) -> None:
    names = [f"many{number}" for number in range(QUEUES)]

    def median_fetch() -> float:
        times = []
        for _ in range(100):
            queue = Queue(service)
            queue.add("x")
            begun = time.perf_counter()
            task = queue.fetched("w")
            times.append(time.perf_counter() - begun)
            queue.ack(taskToken=task["taskToken"])
        return statistics.median(times)

    def measured() -> tuple[set[bytes], int]:
        """Return the keys, but those of other tests' queues and of metrics, and the bytes of data, without events."""
        redis.delete(KEYS.events, KEYS.event_marks, KEYS.metric("events"))
        others = (b"work:queue:/queue", KEYS.metric("").encode())  # tasks of other tests may end at any time
        keys = {key for key in redis.scan_iter(count=1000) if not key.startswith(others)}
        return keys, int(redis.info("memory")["used_memory_dataset"])

    def until_forgotten() -> None:
        until(lambda: not redis.zcard(KEYS.kept_tasks), timeout=KEEP + 60)

    piped = Piped(redis)
    store = Store(piped, KEYS, Settings(redis=service.redis_url, redis_namespace="work", keep=KEEP))
    record = json.dumps({"ends": 600, "attempts": 1, "backoff": {"initial": 1, "factor": 2, "cap": 9}}).encode()
    median_fetch()
    until_forgotten()
    alone = median_fetch()
    until_forgotten()
    keys, memory = measured()
    ids = {}
    for name in names:
        ids[name] = result_of(store.new_id())
        new = New(ids[name], record, b'j"' + name.encode() + b'"', b"", 0.0)
        result_of(store.add(f"/{name}", [new]))
    assert len(piped.execute()) == len(names)
    full_keys, full = measured()
    assert len(full_keys - keys) >= 4 * len(names)
    among = median_fetch()
    print(f"p50 of a fetch {1e3 * alone:.2f} ms, among {QUEUES:,} queues {1e3 * among:.2f} ms; {full - memory:,} bytes")
    for name in names[:20]:
        queue = Queue(service, name)
        assert queue.fetched("w")["value"] == name
        assert queue.old_ack("w") is True
    for name in names[20:]:
        result_of(store.cancel(f"/{name}", ids[name]))
    assert {*piped.execute()} == {b"cancelled"}
    until_forgotten()
    assert measured()[0] == keys
    # The server counts buffers of its clients, too, and some seconds late.
    until(lambda: measured()[1] - memory < (full - memory) / 4)


# What can be asked, and how it is answered


def test_iq_12_the_originals_paths_take_what_curl_sends(service: QueueService, queue: Queue) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}  # as `curl -d` says, whatever it sends
    for value in ("a", None, {"b": [1]}):
        queue.add(value)
        found = client.post(f"{queue.old}/fetch", content=b'{"workerId": "w"}', headers=form)
        assert (found.status_code, found.json()) == (200, value)
        acked = client.post(f"{queue.old}/ack", content=b'{"workerId": "w", "result": 0}', headers=form)
        assert (acked.status_code, acked.text) == (200, "true")
    assert client.post(f"{queue.url}/tasks", json={"value64": b64encode(b"\0\xff").decode()}).status_code == 201
    found = client.get(f"{queue.old}/fetch", params={"workerId": "w", "timeToRecover": "5"})
    assert (found.content, found.headers["content-type"]) == (b"\0\xff", "application/octet-stream")
    assert client.get(f"{queue.old}/ack", params={"workerId": "w"}).text == "true"
    assert client.post(f"{queue.old}/fetch", json={"workerId": "w"}).status_code == 204


def test_iq_13_info_counts_tasks_and_says_who_has_which_until_when(queue: Queue, redis: "sync.Redis") -> None:
    queue.add(1), queue.add(2, key="k"), queue.add(3, key="k"), queue.add(4, delay=60)
    time.sleep(1.1)
    task = queue.fetched("w", timeToRecover=30)
    found = queue.info()
    counts = [found[name] for name in ("index", "waiting", "delayed", "blocked", "inHand", "ended")]
    assert counts == [4, 1, 1, 1, 1, 0]
    assert 0.1 <= found["oldest"] < 30
    (held,) = found["held"]
    assert (held["taskId"], held["index"], held["worker"], held["attempt"]) == (task["taskId"], 1, "w", 1)
    assert held["leaseEnd"] == pytest.approx(task["leaseEnd"], abs=0.01)
    old = client.get(f"{queue.old}/info").json()
    index, _, taken = old.pop("w").partition(":")
    assert (old, index) == ({"INDEX": 4, "FETCHED": 1}, "1")
    assert float(taken) / 1000 == pytest.approx(redis.time()[0], abs=30)


def test_iq_16_each_request_is_one_call_of_one_script(queue: Queue, redis: "sync.Redis") -> None:
    queue.status(queue.add(0)), queue.ack(taskToken=queue.fetched("w")["taskToken"])  # ids reserved, scripts known
    with redis.monitor() as monitor:
        heard = monitor.listen()
        assert queue.status(queue.add(1))["state"] == "waiting"
        assert queue.ack(taskToken=queue.fetched("w")["taskToken"], result=1) == 200
        redis.echo("the end")
        commands = []
        for each in heard:
            if each["command"] == "ECHO the end":
                break
            if queue.name in each["command"] and each["client_type"] != "lua":
                commands.append(each["command"].partition(" ")[0])
    assert commands == ["EVALSHA"] * 4  # add, show, fetch, ack


VALUES: list[Any] = [
    "", "text", "function (){}(globalThis.pwned=true)", "\0\u2028\U0001f600", 0, -1, 2**70, 0.1, 1e300, True, False,
    None, [], [None, [1]], {}, {"type": "number", "value": "7"}, {"type": "string"}, {"type": "Buffer", "data": [1]},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_iq_08_iq_17_iq_d07_iq_d10_and_iq_d11_what_was_given_comes_as_it_was(queue: Queue, value: Any) -> None:
    id = queue.add(value, token=value)
    found = queue.fetched("w")
    assert (found["value"], type(found["value"])) == (value, type(value))
    for outcome in ("error", "result"):
        assert queue.ack(taskToken=found["taskToken"], **{outcome: value}) == 200
        status = queue.status(id)
        assert [(status[name], type(status[name])) for name in (outcome, "token")] == [(value, type(value))] * 2
        if outcome == "error":
            found = queue.fetched("w", wait=20)


def test_iq_17_and_iq_d11_bytes_come_as_bytes_and_nothing_as_null(queue: Queue) -> None:
    content = bytes(range(256))
    assert client.post(f"{queue.url}/tasks", json={"value64": b64encode(content).decode()}).status_code == 201
    assert client.post(f"{queue.url}/tasks", json={}).status_code == 201
    task = queue.fetched("w")
    assert task["value64"] == b64encode(content).decode()
    assert queue.ack(taskToken=task["taskToken"], result64=task["value64"]) == 200
    assert queue.status(task["taskId"])["result64"] == b64encode(content).decode()
    assert queue.fetched("w")["value"] is None


BAD: list[tuple[str, str, Any]] = [
    ("fetch", "{", 400), ("fetch", "[]", 422), ("fetch", "{}", 422), ("fetch", '{"workerId": 7}', 422),
    ("fetch", '{"workerId": "w", "more": 1}', 422), ("fetch", '{"workerId": "w", "timeToRecover": 0}', 422),
    ("fetch", '{"workerId": "w", "timeToRecover": -1}', 422), ("fetch", '{"workerId": "w", "timeToRecoverMs": 0}', 422),
    ("ack", "{}", 422), ("ack", '{"workerId": "nobody"}', 409),
    ("ack", '{"taskToken": "1.1.x"}', 409), ("tasks", '{"value": 1e400}', 400), ("rewind", '{"last": -1}', 422),
    ("heartbeat", '{"taskToken": "1.1.x"}', 409), ("nothing", "{}", 404),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "body", "status"), BAD)
def test_iq_d12_an_error_is_a_problem_document_and_never_a_task(
    queue: Queue, redis: "sync.Redis", verb: str, body: str, status: int
) -> None:
    found = client.post(f"{queue.url}/{verb}", content=body)
    assert (found.status_code, found.headers["content-type"]) == (status, "application/problem+json")
    assert found.json()["status"] == status
    assert not {"value", "taskId", "tasks"} & {*found.json()}
    assert contents(redis, f"work:queue:/{queue.name}:*") == {}


# What its rivals can


def test_rv_81_another_process_acknowledges_by_the_token_alone_and_an_old_one_is_409(
    service: QueueService, queue: Queue
) -> None:
    id = queue.add(1)
    old = queue.fetched("w", timeToRecover=0.1)["taskToken"]
    token = queue.fetched("v", wait=5)["taskToken"]

    def ack(token: str) -> subprocess.CompletedProcess[str]:
        words = ["queue", "ack", queue.name, '{"by": "another"}', "--task-token", token, "--url", service.url]
        return subprocess.run(
            [sys.executable, "-m", "penstock", *words], capture_output=True, text=True, cwd=ROOT, check=False
        )

    assert queue.ack(taskToken=old) == LATE
    assert ack(old).returncode == 1
    assert queue.status(id)["state"] == "held"
    assert ack(token).returncode == 0
    assert (queue.status(id)["state"], queue.status(id)["result"]) == ("done", {"by": "another"})
    assert ack(token).returncode == 1


def test_rv_84_workers_that_wait_cost_nothing_and_get_a_task_as_soon_as_it_is_there(
    queue: Queue, redis: "sync.Redis"
) -> None:
    def commands_a_second() -> float:
        before, begun = redis.info("stats")["total_commands_processed"], time.monotonic()
        time.sleep(2)
        return float(redis.info("stats")["total_commands_processed"] - before) / (time.monotonic() - begun)

    until(lambda: not redis.zcard(KEYS.kept_tasks), timeout=KEEP + 60)  # those of other tests, which end one by one
    workers = [f"w{number}" for number in range(40)]
    with ThreadPoolExecutor(len(workers)) as threads:
        waiting = [threads.submit(queue.fetch, worker, wait=20) for worker in workers]
        until(lambda: commands_a_second() < len(workers), timeout=10)  # on a busy machine they do not come at once
        times = []
        for place in range(len(workers)):
            begun = time.perf_counter()
            queue.add(place)
            until(lambda: sum(each.done() for each in waiting) > place, every=0.001)  # noqa: B023
            times.append(time.perf_counter() - begun)
        found = [each.result() for each in waiting]
    assert sorted(task["value"] for task in found if task) == [*range(len(workers))]
    print(f"a task is with its worker after {1e3 * statistics.median(times):.1f} ms (median)")
    assert statistics.median(times) < 0.5  # 50 ms on a machine that does nothing else


def test_rv_84_a_batch_has_the_oldest_tasks_and_an_empty_queue_is_204_when_the_wait_is_over(queue: Queue) -> None:
    ids = [queue.add(value) for value in range(12)]
    assert [task["taskId"] for task in queue.fetched("w", max=10)["tasks"]] == ids[:10]
    assert [task["taskId"] for task in queue.fetched("v", max=10)["tasks"]] == ids[10:]
    begun = time.monotonic()
    assert queue.fetch("u", wait=0.5, max=10) is None
    assert 0.4 < time.monotonic() - begun < 10
