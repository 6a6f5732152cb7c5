"""With a master key no contents of a task can be read in the files of the server, in MONITOR or in logs."""

import asyncio
import json
import os
import socket
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis as sync
from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.sealing.keyring import Keyring
from penstock.sealing.master import FileKey
from penstock.testing.server import EmbeddedServer
from tests.http.queue_service import NAMESPACE, Queue, QueueService, client, penstock, queue_service
from tests.support.harness import until
from tests.support.sealing import key_file

KEYS = Keys(NAMESPACE)
SIZES = (0, 16, 1_000, 70_000, 1_000_000)
WHERE = ("value", "token", "progress", "error", "result")
NAMED = "name-that-is-not-sealed"
pytestmark = pytest.mark.slow


def secret_of(where: str) -> str:
    """Return a text that is in what a client gives as ``where``, and nowhere else."""
    return f"plaintext-{where}-4711"


def given_as(where: str, size: int) -> Any:
    """Return what a client gives: an error has a type, which is compared with those that are final."""
    content = content_of(where, size)
    return {"type": content, "message": content} if where == "error" and size == 16 else content


def content_of(where: str, size: int) -> str:
    return f"{secret_of(where)} " * (size // len(secret_of(where)) + 1) if size else ""


def forms_of(secret: bytes) -> list[bytes]:
    """Return how ``secret`` may look in a file or in what MONITOR shows: also as base64, with any bytes around it."""
    texts = [secret.hex().encode(), secret.hex().upper().encode(), repr(secret)[2:-1].encode()]
    for shift in range(3):
        inner = secret[shift:]
        inner = inner[: len(inner) // 3 * 3]
        texts += [b64encode(inner), urlsafe_b64encode(inner)]
    return [secret, *texts]


class Monitor:
    """What MONITOR shows from ``with`` to its end."""

    def __init__(self, port: int) -> None:
        self.shown: bytes | bytearray = b""
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> "Monitor":
        self._socket.sendall(b"MONITOR\r\n")
        self._thread.start()
        until(lambda: b"OK" in self.shown)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        parts = bytearray()
        with suppress(OSError):
            while found := self._socket.recv(1 << 20):
                parts += found
                self.shown = parts if len(parts) < 100 else b"OK"
        self.shown = bytes(parts)


@contextmanager
def sealed_service(tmp_path: Path, master: bytes) -> Iterator[tuple[QueueService, EmbeddedServer]]:
    with EmbeddedServer(aof=True, rdbcompression="no") as server:
        key = key_file(tmp_path / "master", master)
        service = QueueService(server.url, tmp_path / "log", master_key=f"file:{key}", logger_level="debug")
        try:
            service.start()
            yield service, server
        finally:
            service.process.__exit__(None, None, None)


def use(queue: Queue) -> None:
    """Add tasks of all sizes, one of them twice; end them with results, errors and progress."""
    for size in SIZES:
        given = {where: given_as(where, size) for where in WHERE}
        final = [secret_of("final")]
        id = queue.add(
            given["value"], token=given["token"], id=f"{NAMED}-{size}", backoff={"initial": 0}, nonRetryable=final
        )
        for ends in ("error", "result"):
            task = queue.fetched("w", timeToRecover=60)
            assert (task["taskId"], task["value"]) == (id, given["value"])
            beat = {"taskToken": task["taskToken"], "progress": given["progress"]}
            assert client.post(f"{queue.url}/heartbeat", json=beat).status_code == 200
            assert queue.ack(taskToken=task["taskToken"], **{ends: given[ends]}) == 200
            if ends == "error":
                assert queue.status(id)["error"] == given["error"]
        found = queue.status(id)
        assert {name: found[name] for name in ("result", "token", "progress")} == {
            name: given[name] for name in ("result", "token", "progress")
        }


def end_for_good(queue: Queue) -> None:
    """End tasks with errors of a type that is final, and of one that is not; acknowledge in each way."""
    final = {"type": secret_of("final")}
    for ends in ({"workerId": "w"}, {}):
        id = queue.add(1, nonRetryable=["other", secret_of("final")])
        for error, state in (({"type": secret_of("error")}, "delayed"), (final, "dead")):
            task = queue.fetched("w", wait=20)
            assert queue.ack(**(ends or {"taskToken": task["taskToken"]}), error=error) == 200
            assert queue.status(id)["state"] == state
            assert queue.status(id)["error"] == error


async def data_keys(url: str, master: bytes) -> list[bytes]:
    """Return the data keys in plain."""
    key = FileKey([master])
    async with Redis.from_url(url) as redis:
        records = await Keyring(redis, KEYS, key).owners()
    return [
        await key.unwrap(wrapped, f"dek|{record.owner}|{epoch}".encode())
        for record in records
        for epoch, wrapped in record.wrapped.items()
    ]


def found_in(places: Mapping[str, bytes], secrets: Mapping[str, bytes]) -> list[str]:
    return [
        f"{name} in {place}"
        for name, secret in secrets.items()
        for place, content in places.items()
        if any(form in content for form in forms_of(secret))
    ]


def test_iq_11_no_plaintext_and_no_key_is_in_the_servers_files_its_commands_or_the_logs(tmp_path: Path) -> None:
    master = os.urandom(32)
    with sealed_service(tmp_path, master) as (service, server), sync.Redis.from_url(server.url) as redis:
        queue = Queue(service)
        with Monitor(server.port) as monitor:
            use(queue)
            old = queue.add(content_of("value", 16))
            master_file = f"file:{tmp_path}/master"
            penstock("owner", "rotate", NAMESPACE, "", "--master", master_file, "--redis", server.url)
            use(Queue(service))
            end_for_good(Queue(service))
            task = queue.fetched("w")
            assert (task["taskId"], task["value"]) == (old, content_of("value", 16))
        redis.save()
        files = [path for path in server.directory.rglob("*") if path.is_file()]
        places = {path.name: path.read_bytes() for path in files}
        assert any("aof" in name for name in places)
        assert any(name.endswith(".rdb") for name in places)
        places["MONITOR"] = bytes(monitor.shown)
        places["log"] = service.process.log.read_bytes()
        places["events"] = str(redis.xrange(KEYS.events)).encode()
        places["listing"] = penstock("queue", "dead", queue.name, "--url", service.url, "--json").encode()
        places["page"] = client.get(f"{queue.url}/tasks").content
        secrets = {where: secret_of(where).encode() for where in (*WHERE, "final")} | {"master key": master}
        plain = asyncio.run(data_keys(service.redis_url, master))
        assert len(plain) == 2
        secrets |= {f"data key {place}": key for place, key in enumerate(plain, 1)}
        assert found_in(places, secrets) == []
        seen = found_in(places, {"name": NAMED.encode()})
        assert {"name in MONITOR", "name in page"} < {*seen}, "the scan would find what is not sealed"
        assert any("aof" in each for each in seen)
        penstock("owner", "forget", NAMESPACE, "", "--yes", "--redis", server.url)
        until(lambda: client.get(f"{queue.url}/tasks/{old}").status_code == 410)
        assert client.post(f"{queue.url}/tasks", json={"value": 1}).status_code == 410


def test_iq_d12_iq_d13_and_iq_d14_contents_that_were_changed_in_the_server_are_dead_with_the_reason_and_keep_nobody(
    tmp_path: Path,
) -> None:
    """Their worker got 500 until they expired, a week later."""
    with sealed_service(tmp_path, os.urandom(32)) as (service, server), sync.Redis.from_url(server.url) as redis:
        queue = Queue(service)
        values = KEYS.queue(f"/{queue.name}", "values")
        other = queue.add("other", delay=600)
        sealed: Any = redis.hget(values, other)
        changes = [sealed[:-1] + bytes([sealed[-1] ^ 1]), sealed, sealed[:-1], b"j1", b"", None]
        ids = [queue.add("changed", token="of its client") for _ in changes]
        good = queue.add("good")
        for id, wrong in zip(ids, changes, strict=True):
            if wrong is None:
                redis.hdel(values, id)
            else:
                redis.hset(values, id, wrong)
        assert queue.fetched("w")["taskId"] == good
        for id in ids:
            found = queue.status(id)
            assert (found["state"], found["reason"], found["attempt"]) == ("dead", "unopenable", 1)
            assert (found["error"]["type"], found["token"]) == ("Unopenable", "of its client")
        assert service.process.log_text().count("cannot be opened") >= len(ids)
        old = queue.add("changed, too")
        redis.hset(values, old, sealed)
        assert client.get(f"{queue.old}/fetch", params={"workerId": "v"}).status_code == 204
        assert queue.status(old)["reason"] == "unopenable"
        penstock("audit", NAMESPACE, "--redis", server.url)


def test_iq_d12_a_batch_holds_what_can_be_opened(tmp_path: Path) -> None:
    with sealed_service(tmp_path, os.urandom(32)) as (service, server), sync.Redis.from_url(server.url) as redis:
        for is_sealed in (True, False):
            queue = Queue(service)
            first, second, third = (queue.add(each) for each in ("first", "second", "third"))
            values = KEYS.queue(f"/{queue.name}", "values")
            sealed: Any = redis.hget(values, second)
            redis.hset(values, second, sealed[:-1] + bytes([sealed[-1] ^ 1]) if is_sealed else b"j1")
            found = queue.fetched("w", max=3)["tasks"]
            assert [(each["taskId"], each["value"]) for each in found] == [(first, "first"), (third, "third")]
            (*_, line) = [line for line in service.process.log_text().splitlines() if "cannot be opened" in line]
            assert json.loads(line)["task"] == second
            assert [each["taskId"] for each in queue.info()["held"]] == [first, third]
            assert queue.status(second)["reason"] == "unopenable"


def test_tasks_from_before_there_was_a_key_are_dead_and_a_sealed_one_is_left_to_an_instance_with_keys(
    tmp_path: Path,
) -> None:
    """A worker got ciphertext of the second, and nothing behind the first for a week."""
    with sealed_service(tmp_path, os.urandom(32)) as (service, server):
        queue, other = Queue(service), QueueService(server.url, tmp_path / "other")
        with other.process:
            until(other.is_ready)
            keyless = Queue(other, queue.name)
            plain, sealed = keyless.add("plain", token=1), queue.add("sealed", attempts=2, backoff={"initial": 0})
            assert keyless.fetched("w")["taskId"] == plain
            assert keyless.fetch("v") is None
            found = queue.status(sealed)
            assert (found["state"], found["attempt"]) == ("delayed", 1)
            given = queue.fetched("v", wait=20)
            assert (given["taskId"], given["value"], given["attempt"]) == (sealed, "sealed", 2)
            assert keyless.ack(workerId="w", release=True) == 200
            assert queue.fetch("u") is None
            found = queue.status(plain)
            assert (found["state"], found["reason"]) == ("dead", "unopenable")
            assert plain in penstock("queue", "dead", queue.name, "--url", service.url)
            lost = queue.add("nobody opens it", attempts=2)
            until(lambda: keyless.fetch("w") is None and keyless.status(lost)["state"] == "dead")
            assert keyless.status(lost)["reason"] == "unopenable"


def test_types_that_are_final_are_known_of_tasks_that_a_former_version_has_stored(tmp_path: Path) -> None:
    with sealed_service(tmp_path, os.urandom(32)) as (service, server), sync.Redis.from_url(server.url) as redis:
        queue = Queue(service)
        id, records = queue.add(1), KEYS.queue(f"/{queue.name}", "tasks")
        redis.hset(records, id, json.dumps(json.loads(redis.hget(records, id) or "") | {"nonRetryable": ["Final"]}))
        assert queue.ack(taskToken=queue.fetched("w")["taskToken"], error={"type": "Final"}) == 200
        assert queue.status(id)["state"] == "dead"


def test_what_is_no_content_any_more_is_dead_in_a_service_without_keys_too(tmp_path: Path) -> None:
    """It was put into the answer as it was, which nobody could read then."""
    with queue_service(tmp_path / "log") as service, sync.Redis.from_url(service.redis_url) as redis:
        queue = Queue(service)
        values = KEYS.queue(f"/{queue.name}", "values")
        ids = [queue.add(each) for each in range(5)]
        for id, wrong in zip(ids, (b"j{", b"x1", b"", b"jNaN"), strict=False):
            redis.hset(values, id, wrong)
        assert queue.fetched("w")["taskId"] == ids[-1]
        assert [queue.status(id).get("reason") for id in ids] == [*["unopenable"] * 4, None]


def test_iq_d13_keys_that_cannot_be_read_are_an_error_and_in_the_log(tmp_path: Path) -> None:
    with sealed_service(tmp_path, os.urandom(32)) as (service, server), sync.Redis.from_url(server.url) as redis:
        redis.set(KEYS.owner_keys(""), "no hash")
        queue = Queue(service)
        for verb, body in (("tasks", {"value": 1}), ("fetch", {"workerId": "w"})):
            found = client.post(f"{queue.url}/{verb}", json=body)
            assert (found.status_code, found.headers["content-type"]) == (503, "application/problem+json")
        until(lambda: f"{KEYS.owner_keys('')} holds a string, expected a hash" in service.process.log_text())
        redis.delete(KEYS.owner_keys(""))
        until(lambda: client.post(f"{queue.url}/tasks", json={"value": 1}).status_code == 201)
