"""hqueue as a process for tests of its client, with a server of its own; tests use queues of different names."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from penstock.base.ports import free_port
from penstock.testing.server import EmbeddedServer
from tests.support.harness import ROOT, Service, until

NAMESPACE = "work"
LATE = 409
"""The answer to an acknowledgement of an attempt that is over."""
_numbers = count(1)
client = httpx.Client(timeout=30)


class QueueService:
    """A service that a test may kill and start again on its port."""

    def __init__(self, redis_url: str, log: Path, **settings: Any) -> None:
        self.redis_url, self.port = redis_url, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        given = {"redis_namespace": NAMESPACE, "listen_port": self.port, "backoff_base": 0.05, **settings}
        self.process = Service("hqueue", log, redis=redis_url, **given)

    def start(self) -> None:
        """Start, and wait until it serves."""
        self.process.start()
        until(self.is_ready)

    def is_ready(self) -> bool:
        self.process.runs()
        try:
            return client.get(f"{self.url}/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        self.process.kill()


@contextmanager
def queue_service(log: Path, **settings: Any) -> Iterator[QueueService]:
    """Yield a service that is ready."""
    with EmbeddedServer() as server:
        service = QueueService(server.url, log, **settings)
        try:
            service.start()
            yield service
        finally:
            service.process.__exit__(None, None, None)


class Queue:
    """One queue, by its paths."""

    def __init__(self, service: QueueService, name: str = "") -> None:
        self.name = name or new_name()
        self.url = f"{service.url}/queues/{self.name}"
        self.old = f"{service.url}/api/queue/{self.name}"

    def add(self, value: Any = None, **more: Any) -> str:
        reply = client.post(f"{self.url}/tasks", json={"value": value, **more})
        assert reply.status_code == 201, reply.text
        id: str = reply.json()["taskId"]
        return id

    def fetch(self, worker: str, **more: Any) -> dict[str, Any] | None:
        reply = client.post(f"{self.url}/fetch", json={"workerId": worker, **more})
        assert reply.status_code in (200, 204), reply.text
        return reply.json() if reply.status_code == 200 else None

    def fetched(self, worker: str, **more: Any) -> dict[str, Any]:
        found = self.fetch(worker, **more)
        assert found is not None
        return found

    def ack(self, **body: Any) -> int:
        return client.post(f"{self.url}/ack", json=body).status_code

    def status(self, id: str, **query: Any) -> Any:
        return client.get(f"{self.url}/tasks/{id}", params=query).json()

    def old_ack(self, worker: str, **more: Any) -> Any:
        return client.post(f"{self.old}/ack", json={"workerId": worker, **more}).json()

    def info(self) -> Any:
        return client.get(f"{self.url}/info").json()


def penstock(*words: str) -> str:
    """Run the command, which has to succeed; return what it prints."""
    command = [sys.executable, "-m", "penstock", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def new_name() -> str:
    """Return the name of a queue that no other test has."""
    return f"queue{next(_numbers)}"
