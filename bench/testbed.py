"""Test bed of the benchmarks: a server, running services, backlogs that appear at once, and timing."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from redis import Redis

from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer
from tests.support.harness import ROOT, Service, until

NAMESPACE: Final = "bench:mpush"
TRACKED: Final = "bench:mdispatch"
TRANSPORT: Final = "bench:vpush"
SOURCE: Final = "bench:in"
PENDING: Final = "bench:pending"
OUT: Final = "bench:out"
SEED: Final = "bench:seed"
PYTHON: Final = (sys.executable, "-m")


def subscribers(lists: int) -> list[str]:
    return [f"bench:out{place}" for place in range(lists)]


class Testbed:
    """A server of the benchmark's own, and the processes that use it."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.url = server.url
        self.server = server
        self.redis = Redis.from_url(server.url)
        self.log = Path(tempfile.mkdtemp(prefix="penstock-bench-")) / "service.log"

    @contextmanager
    def mpush(self, lists: int, **settings: object) -> Iterator[Service]:
        """Start mpush from ``SOURCE`` to ``lists`` lists; wait until it is registered."""
        with self.service(lists, **settings) as service:
            until(lambda: self.redis.llen(f"{NAMESPACE}:ids"))
            time.sleep(0.2)
            yield service
            service.stop()

    def service(self, lists: int, **settings: object) -> Service:
        base = {"in": SOURCE, "pending": PENDING, "out": subscribers(lists), "redis_namespace": NAMESPACE}
        return Service("mpush", self.log, redis=self.url, **{**base, **settings})

    @contextmanager
    def router(self, out: list[str]) -> Iterator[None]:
        """Run examples/router from ``SOURCE`` to ``out``; wait until it is idle."""
        base = {"in": SOURCE, "pending": PENDING, "out": out, "redis_namespace": "bench:router"}
        router = Service("router", self.log, redis=self.url, **base)
        router.folder, router.module = ROOT / "examples" / "router", "router"
        with router:
            until(lambda: self.blocked_clients() == 1)
            yield
            router.stop()

    @contextmanager
    def tracking(self, **settings: object) -> Iterator[None]:
        """Run mdispatch from ``SOURCE`` to ``OUT``; wait until it is idle."""
        base = {"in": SOURCE, "pending": PENDING, "out": OUT, "redis_namespace": TRACKED}
        limits = {"message_capacity": 10_000_000, "message_timeout": 600, "message_expire": 3600}
        mdispatch = Service("mdispatch", self.log, redis=self.url, **{**base, **limits, **settings})
        expected = self.blocked_clients() + (2 if "res" in settings else 1)
        with mdispatch:
            until(lambda: self.blocked_clients() == expected)
            yield
            mdispatch.stop()

    @contextmanager
    def monitor(self) -> Iterator[None]:
        """Run a monitor of ``TRACKED``, which an mdispatch has used; wait until it is idle."""
        base = {"redis_namespace": "bench:monitor", "watch": TRACKED, "metrics_port": 0}
        expected = self.blocked_clients() + 1
        with Service("monitor", self.log, redis=self.url, **base) as monitor:
            until(lambda: self.blocked_clients() == expected)
            yield
            monitor.stop()

    @contextmanager
    def vpush(self, out_redis: str, route: str = "", **settings: object) -> Iterator[Service]:
        """Run vpush from ``SOURCE`` to ``OUT`` on another server; wait until it is idle. See ``replica``."""
        expected = self.blocked_clients() + 1
        with self.replica(out_redis, route, **settings) as vpush:
            until(lambda: self.blocked_clients() == expected)
            yield vpush
            vpush.stop()

    def replica(self, out_redis: str, route: str = "", **settings: object) -> Service:
        """Return a vpush with ``route`` appended to the names of its lists and its namespace."""
        lists = {"in": SOURCE + route, "pending": PENDING + route, "out": OUT + route}
        base = {**lists, "out_redis": out_redis, "redis_namespace": TRANSPORT + route}
        return Service("vpush", self.log, redis=self.url, **{**base, **settings})

    @contextmanager
    def run_process(self, *command: str, **environment: str) -> Iterator[None]:
        """Run a process of the benchmark's own; wait until it is blocked in the server."""
        expected = self.blocked_clients() + 1
        with subprocess.Popen(command, cwd=ROOT, env=os.environ | environment) as process:
            try:
                until(lambda: self.blocked_clients() == expected)
                yield
            finally:
                process.kill()

    def blocked_clients(self) -> int:
        """Return the number of clients that wait in a blocking command."""
        return int(self.redis.info("clients")["blocked_clients"])

    def seed(self, messages: int, size: int, first: int = 0) -> None:
        """Store ``messages`` numbered messages of ``size`` bytes to copy backlogs from."""
        self.redis.delete(SEED)
        with self.redis.pipeline(transaction=False) as wire:
            for start in range(0, messages, 1000):
                batch = range(first + start, first + min(start + 1000, messages))
                wire.lpush(SEED, *(b"%09d" % number + b"x" * (size - 9) for number in batch))
                if size * len(wire) > 100_000:
                    wire.execute()
            wire.execute()

    def clear_subscribers(self, lists: int) -> None:
        """Delete the subscribers' lists, and wait until the server has freed their memory."""
        self.redis.unlink(*subscribers(lists))
        until(lambda: self.redis.info("memory")["lazyfree_pending_objects"] == 0)

    def publish_backlog(self, name: str = SOURCE) -> float:
        """Make the messages of the seed appear in ``name`` at once; return the time."""
        self.redis.copy(SEED, "bench:backlog")
        begin = time.perf_counter()
        self.redis.rename("bench:backlog", name)
        return begin

    def delete_records(self, namespace: str, *lists: str) -> None:
        """Delete the records of tracked messages and ``lists``, and wait until the server has freed their memory."""
        keys = Keys(namespace)
        left = self.redis.scan_iter(f"{namespace}:message:*", count=10_000)
        names = [name for name in left if name.decode() != keys.message_counter]
        with self.redis.pipeline(transaction=False) as wire:
            for place in range(0, len(names), 1000):
                wire.unlink(*names[place : place + 1000])
            wire.unlink(keys.events, *lists)
            wire.execute()
        until(lambda: self.redis.info("memory")["lazyfree_pending_objects"] == 0)

    def has_arrived(self, messages: int, lists: int) -> bool:
        return self.redis.llen(subscribers(lists)[-1]) >= messages

    def service_seconds(self, messages: int, lists: int) -> float:
        """Return the seconds from the appearance of a backlog until the running service has delivered all of it."""
        self.clear_subscribers(lists)
        begin = self.publish_backlog()
        while not self.has_arrived(messages, lists):
            time.sleep(0.002)
        return time.perf_counter() - begin


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    """Return the peak memory of a process."""
    kib = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(kib.split()[1]) * 1024
