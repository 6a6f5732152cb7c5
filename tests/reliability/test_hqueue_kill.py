"""kill -9 of two instances of hqueue, of workers and of the server in turn: every task ends exactly once."""

import asyncio
import json
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

import httpx
import redis as sync

from penstock.base.ports import free_port
from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from penstock.tracking.events import TrackedEvent
from tests.reliability.queue_events import ENDS, KEYS, events_of
from tests.reliability.queue_worker import outcome_of
from tests.reliability.replica import Replica
from tests.support.commandline import penstock
from tests.support.harness import rounds, until
from tests.support.importers import is_ready

QUEUE: Final = "numbers"
RECORDS: Final = KEYS.queue(f"/{QUEUE}", "tasks")
VICTIMS: Final = ("hqueue", "worker", "server", "client", "hqueue", "worker")
MOST_WAITING: Final = 60
"""Tasks that wait for workers, at most; then no more are added until they are done."""


class Producer(threading.Thread):
    """Adds numbers until it is left, each until an instance has answered; their names keep them from being doubled."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__()
        self._urls, self._left = urls, threading.Event()
        self.count = 0
        self.ids = dict[int, str]()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self.join()

    def run(self) -> None:
        with httpx.Client(timeout=10) as client:
            while not self._left.wait(0.01):
                bodies = [body_of(number) for number in range(self.count, self.count + 4)]
                found = self._asked(client, "POST", "tasks", json=bodies)
                self.ids |= {self.count + place: each["taskId"] for place, each in enumerate(found)}
                self.count += len(bodies)
                while not self._left.is_set() and self._asked(client, "GET", "info")["waiting"] > MOST_WAITING:
                    time.sleep(0.02)

    def _asked(self, client: httpx.Client, method: str, verb: str, **more: Any) -> Any:
        while True:
            with suppress(httpx.TransportError):
                reply = client.request(method, f"{random.choice(self._urls)}/queues/{QUEUE}/{verb}", **more)
                if reply.status_code in (200, 201):
                    return reply.json()
                assert reply.status_code == 503, reply.text
            time.sleep(0.02)


def body_of(number: int) -> dict[str, Any]:
    """Return a task; one of 10 fails at each of its two attempts, and a third of all have one of three keys."""
    more: dict[str, Any] = {"attempts": 2 if number % 10 == 3 else 0, "backoff": {"initial": 0.01, "cap": 0.01}}
    if number % 3 == 0:
        more["key"] = f"key {number % 9}"
    return {"value": number, "id": f"number {number}", **more}


class Site:
    """A server, two instances, three workers by bare HTTP and one with the client; ``kill`` one kind of them."""

    def __init__(self, fork_server: ForkServer, directory: Path, server: EmbeddedServer) -> None:
        self.server, self.journal = server, directory / "journal"
        self.journal.touch()
        self._ports = ports = free_port(), free_port()
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        common = {"redis": server.url, "redis_namespace": KEYS.namespace, "event_capacity": 1_000_000}
        self.instances = [
            Replica(fork_server, "hqueue", directory / f"log{place}", listen_port=port, **common)
            for place, port in enumerate(ports)
        ]
        self.workers = [self._worker(fork_server, directory, f"w{place}", client=0) for place in range(3)]
        self.clients = [self._worker(fork_server, directory, "client", client=1)]

    def _worker(self, fork_server: ForkServer, directory: Path, who: str, client: int) -> Replica:
        given = {"urls": self.urls, "queue": QUEUE, "who": who, "journal": self.journal, "client": client}
        worker = Replica(fork_server, "queue_worker", directory / who, **given)
        worker.module = "tests.reliability.queue_worker"
        return worker

    @property
    def processes(self) -> list[Replica]:
        return [*self.instances, *self.workers, *self.clients]

    def kill(self, victim: str, rng: random.Random) -> None:
        """Kill one at a random moment, and start it again."""
        time.sleep(rng.uniform(0, 0.05))
        if victim == "server":
            self.server.kill()
            self.server.start()
            return
        one = rng.choice({"hqueue": self.instances, "worker": self.workers, "client": self.clients}[victim])
        one.kill()
        one.start()

    def counted(self, *metrics: str) -> int:
        with sync.Redis.from_url(self.server.url) as redis:
            return sum(int(redis.hget(KEYS.metric(name), "count") or 0) for name in metrics)

    def ended(self) -> int:
        """Return how many tasks have ended."""
        return self.counted(*ENDS)

    def is_over(self) -> bool:
        """Return whether all tasks have ended, and both instances serve."""
        assert all(process.running for process in self.processes), [each.log_text()[-500:] for each in self.processes]
        with sync.Redis.from_url(self.server.url) as redis:
            places = [KEYS.queue(f"/{QUEUE}", part) for part in ("ready", "held", "later", "behind")]
            return not redis.exists(*places) and all(map(is_ready, self._ports))


def test_every_task_ends_once_whoever_is_killed(fork_server: ForkServer, tmp_path: Path, rng: random.Random) -> None:
    with ExitStack() as started:
        server = started.enter_context(EmbeddedServer(aof=True))
        site = Site(fork_server, tmp_path, server)
        for process in site.processes:
            started.enter_context(process)
        with Producer(site.urls) as producer:
            for place in rounds(lambda: site.counted("timeout")):
                wanted = site.ended() + 8
                until(lambda wanted=wanted: site.ended() >= wanted)  # type: ignore[misc]
                site.kill(VICTIMS[place % len(VICTIMS)], rng)
        until(site.is_over)
        with sync.Redis.from_url(server.url) as redis:
            records = {id.decode(): json.loads(text) for id, text in redis.hgetall(RECORDS).items()}
        account(site, producer, records)
        events = asyncio.run(events_of(server.url))
        account_events(producer, records, events)
        audit = asyncio.run(penstock("audit", KEYS.namespace, redis=server.url))
        assert audit.status == 0, audit.text
        attempts = Counter(event.event for event in events)
        print(f"{producer.count} tasks, {attempts['delivered']} attempts, {attempts['timeout']} leases that ended")
        assert attempts["timeout"], "no kill met a task in hand: the test proves nothing"
        for process in site.instances:
            assert process.stop() == 0


def account(site: Site, producer: Producer, records: dict[str, Any]) -> None:
    """By the records, the answers of the service and the journals of the workers."""
    assert {record["name"]: id for id, record in records.items()} == {
        f"number {number}": id for number, id in producer.ids.items()
    }
    with httpx.Client() as client:
        for number, id in producer.ids.items():
            found = client.get(f"{site.urls[number % 2]}/queues/{QUEUE}/tasks/{id}").json()
            fails = number % 10 == 3
            assert found["state"] == records[id]["state"] == ("dead" if fails else "done"), found
            if "error" in found:
                assert found["error"] == outcome_of(number, 1)["error"]
            assert found.get("result") == (None if fails else {"double": 2 * number})
    acknowledged = Counter(line.split()[0] for line in site.journal.read_text().splitlines() if line.split()[1] in ENDS)
    assert {*acknowledged.values()} == {1}
    for name in {record["key"] for record in records.values() if "key" in record}:
        several = sorted((each["index"], each["ended"]) for each in records.values() if each.get("key") == name)
        assert [ended for _, ended in several] == sorted(ended for _, ended in several), "not in order"


def account_events(producer: Producer, records: dict[str, Any], events: list[TrackedEvent]) -> None:
    """By the events: each task is registered once, and ends once after its last attempt."""
    by_id = dict[str, list[str]]()
    for event in events:
        by_id.setdefault(event.id, []).append(event.event)
    assert {*by_id} == {*producer.ids.values()} == {*records}
    for id, several in by_id.items():
        assert several.count("registered") == 1, (id, several)
        assert [each for each in several if each in ENDS] == [records[id]["state"]], (id, several)
        assert several[-1] == records[id]["state"]
        assert several.count("delivered") == records[id]["attempt"]
