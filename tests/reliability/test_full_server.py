"""Tests of a server out of memory: services, and workers that follow the docs, drain it until it works again."""

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from penstock.base.keys import Keys
from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.fleet import Dispatching, Fleet, QueueService, Watching
from tests.reliability.two_servers import Pushing, TwoServers
from tests.support.harness import ROOT, until
from tests.support.servers import KINDS, started

MESSAGES = 4_000
SIZE = 1_000
TIMES: dict[str, object] = {"attempts": 1, "message_timeout": 600, "message_expire": 3_600}
FAN = QueueService("mpush", "fan:in", "fan:pending", ("fan:out",), namespace="fan")
LINK = Pushing(source="far:in", pending="far:pending", namespace="far")


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    with started(request.param) as server:
        yield server


def scripts() -> list[str]:
    """Return the scripts of docs/tracking.md for workers on a full server: one to take, one to report done."""
    page = (ROOT / "docs" / "tracking.md").read_text().partition("## While the server is full")[2]
    found = re.findall(r'EVAL "([^"]+)"', page)
    assert len(found) == 2
    return found


class Worker(threading.Thread):
    """Worker that takes from ``source`` and settles as the docs say; with ``done_list``, it reports done there."""

    def __init__(self, url: str, source: str, done_list: str = "") -> None:
        super().__init__(daemon=True)
        self._redis: Any = Redis.from_url(url)
        self._source, self._pending, self._done_list = source, f"{source}:worker", done_list
        self._over = threading.Event()
        self.seen: list[bytes] = []

    def run(self) -> None:
        take, done = scripts()
        while not self._over.is_set():
            message = self._redis.eval(take, 2, self._source, self._pending)
            if message is None:
                self._over.wait(0.02)
            elif self._done_list:
                report = json.dumps({"xid": json.loads(message)["meta"]["id"]})
                self._redis.eval(done, 2, self._pending, self._done_list, report)
                self.seen.append(message)
            else:
                self._redis.rpop(self._pending)
                self.seen.append(message)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(30)
        self._redis.close()


def messages(rng: random.Random) -> list[bytes]:
    return [
        json.dumps({"meta": {"id": f"{number}-{rng.random()}"}, "x": "x" * SIZE}).encode() for number in range(MESSAGES)
    ]


def test_a_full_server_is_drained_by_services_and_workers_until_it_works_again_by_itself(
    server: EmbeddedServer, fork_server: ForkServer, tmp_path: Path, rng: random.Random
) -> None:
    with (
        EmbeddedServer() as other,
        Fleet(Dispatching(), server.url, fork_server, tmp_path, TIMES) as hop,
        Fleet(Watching(), server.url, fork_server, tmp_path, {}) as monitor,
        Fleet(FAN, server.url, fork_server, tmp_path, {}) as fan,
        TwoServers(server.url, other.url, fork_server, tmp_path, service=LINK) as link,
    ):
        fleets = [hop, monitor, fan, link]
        all_of_it = {fleet.service.source: messages(rng) for fleet in (hop, fan, link)}
        hop.push(all_of_it["work:in"][: MESSAGES // 2])
        first = hop.up()
        hop.wait_until_settled()
        assert first.stop() == 0
        for fleet in (hop, fan, link):
            fleet.push(all_of_it[fleet.service.source][MESSAGES // 2 if fleet is hop else 0 :])
        memory = hop.redis.info("memory")["used_memory"]
        hop.redis.config_set("maxmemory", memory - 3 * MESSAGES * SIZE)
        with pytest.raises(OutOfMemoryError):
            hop.redis.lpush("some", "more")
        replicas = [fleet.up() for fleet in fleets]
        with Worker(server.url, "work:out", Keys("demo").done) as worker, Worker(server.url, "fan:out") as reader:
            until(lambda: all(fleet.is_settled() for fleet in fleets) and len(worker.seen) == MESSAGES, 120)
            until(lambda: not hop.redis.zcard(Keys("demo").deadlines) and len(reader.seen) == MESSAGES)
        hop.redis.lpush("some", "more")
        assert [replica.running for replica in replicas] == [True] * 4
        for fleet in fleets:
            fleet.stop()
        tracked, copied = Counter(worker.seen), Counter(reader.seen)
        assert (tracked, copied) == (Counter(all_of_it["work:in"]), Counter(all_of_it["fan:in"]))
        assert link.arrived() == all_of_it["far:in"]
        assert int(hop.redis.hget(Keys("demo").metric("done"), "count")) == MESSAGES
        for replica in replicas:
            waits, resumes = (replica.log_text().count(f'"event": "{event}"') for event in ("waiting", "resumed"))
            assert waits == resumes > 0
