"""Outcomes of tasks reach who asked for them, in a list or by a webhook: IQ-D06 and RV-85."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import httpx
import pytest
import redis as sync

from penstock.base.ports import free_port
from penstock.webhook import ID, owner_secret, verify
from tests.http import queue_service
from tests.http.queue_service import QueueService
from tests.support.harness import until

pytestmark = pytest.mark.slow
ROOT_SECRET = "root-of-all-secrets"


class Got(NamedTuple):
    """A webhook as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers[ID]

    def outcome(self, owner: str = "", root: str = ROOT_SECRET) -> Any:
        return verify(self.headers, self.body, owner_secret(root, owner))


class Receiver:
    """A server that answers each webhook with what ``answer`` returns for how often it came: status and headers."""

    def __init__(self, port: int) -> None:
        self.got: list[Got] = []
        self.answer: Callable[[int], tuple[int, dict[str, str]]] = lambda _: (204, {})
        self.url = f"http://127.0.0.1:{port}"
        counts = Counter[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["content-length"]))
                got = Got(handler.path, {name.lower(): value for name, value in handler.headers.items()}, body)
                self.got.append(got)
                counts[got.id] += 1
                status, headers = self.answer(counts[got.id])
                handler.send_response(status)
                for name, value in headers.items():
                    handler.send_header(name, value)
                handler.end_headers()

            def log_message(handler, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiving(port: int) -> Iterator[Receiver]:
    receiver = Receiver(port)
    try:
        yield receiver
    finally:
        receiver.close()


PORT = free_port()
OTHER_PORT = free_port()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueService]:
    hosts = [f"http://127.0.0.1:{PORT}", f"http://127.0.0.1:{OTHER_PORT}"]
    log = tmp_path_factory.mktemp("hqueue") / "log"
    given = {"webhook_hosts": hosts, "webhook_secret": f"{ROOT_SECRET} the-former-one", "webhook_timeout": 2}
    with queue_service.queue_service(log, **given) as service:
        yield service


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(PORT) as receiver:
        yield receiver


class Queue(queue_service.Queue):
    """One queue, by its paths, and what lies in the server."""

    def __init__(self, service: QueueService) -> None:
        super().__init__(service)
        self.redis = sync.Redis.from_url(service.redis_url)

    def end(self, **outcome: Any) -> None:
        """Fetch a task and end it."""
        assert self.ack(taskToken=self.fetched("w")["taskToken"], **outcome) == 200

    def replies(self, name: str) -> list[Any]:
        return [json.loads(each) for each in self.redis.lrange(f"work:replies:/{name}", 0, -1)]

    def is_delivered(self, id: str) -> bool:
        return bool(self.status(id).get("delivery") == "done")


@pytest.fixture
def queue(service: QueueService) -> Iterator[Queue]:
    queue = Queue(service)
    yield queue
    queue.redis.close()


def test_every_outcome_comes_to_the_list_once(queue: Queue) -> None:
    done = queue.add(value=1, replyTo="inbox", token={"order": 7}, id="mine")
    queue.end(result=0)
    dead = queue.add(replyTo="inbox", attempts=1)
    queue.end(error={"type": "Broken"})
    expired = queue.add(replyTo="inbox", ttl=0.1)
    cancelled = queue.add(replyTo="inbox", delay=60)
    assert httpx.delete(f"{queue.url}/tasks/{cancelled}").status_code == 204
    until(lambda: len(queue.replies("inbox")) == 4, 10)
    until(lambda: all(map(queue.is_delivered, (done, dead, expired, cancelled))), 10)
    found = {each["taskId"]: each for each in queue.replies("inbox")}
    wanted = {"deliveryId": f"{done}.0", "service": queue.name, "state": "done", "id": "mine", "attempt": 1}
    assert wanted.items() <= found[done].items()
    assert (found[done]["result"], found[done]["token"]) == (0, {"order": 7})
    assert (found[dead]["state"], found[dead]["reason"], found[dead]["error"]) == ("dead", "failed", {"type": "Broken"})
    assert (found[expired]["state"], found[cancelled]["reason"]) == ("expired", "cancelled")
    assert queue.redis.zcard("work:message:outbox") == 0


def test_a_revived_task_says_its_next_outcome_too(queue: Queue) -> None:
    id = queue.add(replyTo="revived", attempts=1)
    queue.end(error="no")
    until(lambda: len(queue.replies("revived")) == 1, 10)
    assert httpx.post(f"{queue.url}/tasks/{id}/retry").status_code == 200
    assert "delivery" not in queue.status(id)
    queue.end(result="yes")
    until(lambda: len(queue.replies("revived")) == 2, 10)
    assert [each["deliveryId"] for each in queue.replies("revived")] == [f"{id}.1", f"{id}.0"]


def test_an_outcome_waits_while_its_list_is_something_else(queue: Queue) -> None:
    queue.redis.set("work:replies:/taken", "a string")
    id = queue.add(replyTo="taken")
    queue.end(result=1)
    other = queue.add(replyTo="free")
    queue.end(result=2)
    until(lambda: queue.is_delivered(other), 10)
    assert queue.status(id)["delivery"] == "waiting"
    assert queue.redis.get("work:replies:/taken") == b"a string"
    queue.redis.delete("work:replies:/taken")
    until(lambda: queue.is_delivered(id), 20)
    assert [each["result"] for each in queue.replies("taken")] == [1]


def test_a_webhook_does_not_wait_for_a_list_that_is_something_else(queue: Queue, receiver: Receiver) -> None:
    queue.redis.set("work:replies:/other", "a string")
    id = queue.add(replyTo="other", webhook=f"{receiver.url}/done")
    queue.end(result=1)
    until(lambda: len(receiver.got) == 1, 10)
    queue.redis.delete("work:replies:/other")
    until(lambda: queue.is_delivered(id), 20)
    assert [each["result"] for each in queue.replies("other")] == [1]
    assert len(receiver.got) == 1


def test_a_webhook_is_signed_with_the_owners_secret_and_the_former_one(queue: Queue, receiver: Receiver) -> None:
    id = queue.add(value=1, webhook=f"{receiver.url}/done?order=7", token="t")
    queue.end(result={"page": 7})
    until(lambda: queue.is_delivered(id), 10)
    [got] = receiver.got
    assert got.path == "/done?order=7"
    assert got.id == f"{id}.0"
    outcome = got.outcome()
    assert (outcome["taskId"], outcome["state"], outcome["result"], outcome["token"]) == (id, "done", {"page": 7}, "t")
    assert got.outcome(root="the-former-one") == outcome


def test_rv_85_a_receiver_that_is_away_and_then_refuses_gets_the_outcome_once_it_accepts(queue: Queue) -> None:
    both = queue.add(webhook=f"http://127.0.0.1:{OTHER_PORT}/", replyTo="both")
    queue.end(result="kept")
    until(lambda: len(queue.replies("both")) == 1, 10)
    time.sleep(0.7)
    assert queue.status(both)["delivery"] == "waiting"
    with receiving(OTHER_PORT) as late:
        late.answer = lambda times: (503, {"retry-after": "0"}) if times == 1 else (200, {})
        until(lambda: queue.is_delivered(both), 20)
        assert [got.id for got in late.got] == [f"{both}.0"] * 2
        assert late.got[1].outcome()["result"] == "kept"
    assert len(queue.replies("both")) == 1
    metrics = queue.redis.hgetall("work:metrics:outcomes")
    assert int(metrics[b"failed"]) >= 2
    assert int(metrics[b"sent"]) >= 1


def test_a_receiver_that_is_gone_for_good_or_redirects_gets_no_second_webhook_at_once(
    queue: Queue, receiver: Receiver
) -> None:
    receiver.answer = lambda _: (410, {})
    gone = queue.add(webhook=f"{receiver.url}/gone")
    queue.end()
    until(lambda: queue.status(gone).get("delivery") == "failed", 10)
    receiver.answer = lambda _: (302, {"location": f"{receiver.url}/elsewhere"})
    sent = queue.add(webhook=f"{receiver.url}/redirects")
    queue.end()
    until(lambda: len(receiver.got) == 2, 10)
    assert {got.path for got in receiver.got} == {"/gone", "/redirects"}
    assert queue.status(sent)["delivery"] == "waiting"


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:1/",
        "https://127.0.0.1/",
        "http://127.0.0.1.example.com:PORT/",
        "http://127.0.0.1:PORT@example.com/",
        "http://name:password@127.0.0.1:PORT/",
        "file:///etc/passwd",
        "/relative",
        "http://[::1",
        "",
    ],
)
def test_nothing_is_posted_to_hosts_that_the_operator_does_not_name(queue: Queue, url: str) -> None:
    reply = httpx.post(f"{queue.url}/tasks", json={"webhook": url.replace("PORT", str(PORT))})
    assert reply.status_code == 422
    assert "webhook" in reply.json()["detail"]


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "a b", "x" * 201, "ü"])
def test_a_list_has_a_plain_name(queue: Queue, name: str) -> None:
    assert httpx.post(f"{queue.url}/tasks", json={"replyTo": name}).status_code == 422


def test_outcomes_survive_the_death_of_the_service(tmp_path: Path) -> None:
    with queue_service.queue_service(
        tmp_path / "log", webhook_hosts=[f"http://127.0.0.1:{PORT}"], webhook_secret=ROOT_SECRET
    ) as one:
        queue = Queue(one)
        ids = [queue.add(value=number, webhook=f"http://127.0.0.1:{PORT}/kept", replyTo="all") for number in range(20)]
        for _ in ids:
            queue.end()
        one.kill()
        with receiving(PORT) as receiver:
            one.start()
            until(lambda: all(map(queue.is_delivered, ids)), 60)
            # Services of other tests may still try to deliver to this port.
            assert {got.id for got in receiver.got if got.path == "/kept"} == {f"{id}.0" for id in ids}
        assert sorted(each["taskId"] for each in queue.replies("all")) == sorted(ids)
        queue.redis.close()


def test_an_instance_that_may_not_post_or_open_leaves_outcomes_to_one_that_may(
    tmp_path: Path, receiver: Receiver
) -> None:
    """While instances get other settings one by one, the first to take an outcome ended its delivery for good."""
    (tmp_path / "master").write_text("ab" * 32)
    (tmp_path / "master").chmod(0o400)
    key: dict[str, Any] = {"master_key": f"file:{tmp_path}/master"}
    here: dict[str, Any] = {"webhook_hosts": [f"http://127.0.0.1:{PORT}"], "webhook_secret": ROOT_SECRET}
    with queue_service.queue_service(tmp_path / "log", **key, **here) as new:
        others = [
            ({**key}, "no host"),
            ({**key, **here, "webhook_hosts": ["https://a"]}, "other host"),
            (here, "no key"),
        ]
        with ExitStack() as stack:
            for given, name in others:
                other = QueueService(new.redis_url, tmp_path / name, **given)
                stack.enter_context(other.process)
                until(other.is_ready)
            queue = Queue(new)
            ids = []
            for _ in range(10):
                ids.append(queue.add(webhook=f"{receiver.url}/left", replyTo="left"))
                queue.end(result=1)
            until(lambda: all(map(queue.is_delivered, ids)), 60)
        assert {got.outcome()["taskId"] for got in receiver.got if got.path == "/left"} == {*ids}
        assert sorted(each["taskId"] for each in queue.replies("left")) == ids
        queue.redis.close()


def test_an_outcome_that_no_instance_may_post_waits_until_its_end(tmp_path: Path) -> None:
    with queue_service.queue_service(
        tmp_path / "log", webhook_hosts=[f"http://127.0.0.1:{PORT}"], webhook_secret=ROOT_SECRET, webhook_patience=3
    ) as service:
        queue = Queue(service)
        id = queue.add(webhook=f"http://127.0.0.1:{PORT}/nobody")
        service.process.stop()
        other = QueueService(service.redis_url, tmp_path / "other", webhook_patience=3)
        with other.process:
            until(other.is_ready)
            queue.url = f"{other.url}/queues/{queue.name}"
            queue.end()
            until(lambda: "webhook refused" in other.process.log_text())
            assert queue.status(id)["delivery"] == "waiting"
            until(lambda: queue.status(id)["delivery"] == "failed")
        queue.redis.close()


def test_a_sealed_outcome_has_no_contents_in_the_list_and_all_in_the_webhook(
    tmp_path: Path, receiver: Receiver
) -> None:
    master = tmp_path / "master"
    master.write_text("ab" * 32)
    master.chmod(0o400)
    given = {"webhook_hosts": [f"http://127.0.0.1:{PORT}"], "webhook_secret": ROOT_SECRET}
    with queue_service.queue_service(tmp_path / "log", master_key=f"file:{master}", **given) as service:
        queue = Queue(service)
        id = queue.add(value="plain", webhook=f"{receiver.url}/plain-path", replyTo="sealed", token="plain-token")
        queue.end(result="plain-result")
        until(lambda: queue.is_delivered(id), 10)
        [reply] = queue.replies("sealed")
        assert reply["state"] == "done"
        assert "plain" not in json.dumps(reply)
        dump = b"".join(queue.redis.dump(key) or b"" for key in queue.redis.scan_iter())
        assert b"plain" not in dump
        # Services of other tests may still try to deliver to this port.
        [outcome] = [got.outcome() for got in receiver.got if got.path == "/plain-path"]
        assert (outcome["result"], outcome["token"]) == ("plain-result", "plain-token")
        queue.redis.close()
