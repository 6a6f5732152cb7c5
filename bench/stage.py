"""Set-up of the benchmarks: a server, running services, backlogs that appear at once, and a clock."""

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

from penstock.keys import Keys
from penstock.testing.server import EmbeddedServer
from tests.harness import ROOT, Service, until

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


class Stage:
    """The benchmark's own server, and the processes that use it."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.url = server.url
        self.server = server
        self.redis = Redis.from_url(server.url)
        self._log = Path(tempfile.mkdtemp(prefix="penstock-bench-")) / "service.log"

    @contextmanager
    def mpush(self, lists: int, **settings: object) -> Iterator[Service]:
        """Start mpush from ``SOURCE`` to ``lists`` lists; wait until it is registered."""
        with self.service(lists, **settings) as service:
            until(lambda: self.redis.llen(f"{NAMESPACE}:ids"))
            time.sleep(0.2)
            yield service
            service.stop()

    def service(self, lists: int, **settings: object) -> Service:
        own = {"in": SOURCE, "pending": PENDING, "out": subscribers(lists), "redis_namespace": NAMESPACE}
        return Service("mpush", self._log, redis=self.url, **{**own, **settings})

    @contextmanager
    def router(self, out: list[str]) -> Iterator[None]:
        """A running examples/router from ``SOURCE`` to ``out`` that waits for work."""
        own = {"in": SOURCE, "pending": PENDING, "out": out, "redis_namespace": "bench:router"}
        router = Service("router", self._log, redis=self.url, **own)
        router.folder, router.module = ROOT / "examples" / "router", "router"
        with router:
            until(lambda: self.blocked() == 1)
            yield
            router.stop()

    @contextmanager
    def tracking(self, **settings: object) -> Iterator[None]:
        """A running mdispatch, from ``SOURCE`` to ``OUT``, that waits for work."""
        own = {"in": SOURCE, "pending": PENDING, "out": OUT, "redis_namespace": TRACKED, "message_capacity": 10_000_000}
        lasting = {"message_timeout": 600, "message_expire": 3600}
        mdispatch = Service("mdispatch", self._log, redis=self.url, **{**own, **lasting, **settings})
        waits = self.blocked() + (2 if "res" in settings else 1)
        with mdispatch:
            until(lambda: self.blocked() == waits)
            yield
            mdispatch.stop()

    @contextmanager
    def monitor(self) -> Iterator[None]:
        """A running monitor of a namespace that an mdispatch has begun, waiting for work."""
        own = {"redis_namespace": "bench:monitor", "watch": TRACKED, "metrics_port": 0}
        waits = self.blocked() + 1
        with Service("monitor", self._log, redis=self.url, **own) as monitor:
            until(lambda: self.blocked() == waits)
            yield
            monitor.stop()

    @contextmanager
    def vpush(self, out_redis: str, route: str = "", **settings: object) -> Iterator[Service]:
        """A running vpush, from ``SOURCE`` to ``OUT`` on another server, that waits for work; see ``replica``."""
        waits = self.blocked() + 1
        with self.replica(out_redis, route, **settings) as vpush:
            until(lambda: self.blocked() == waits)
            yield vpush
            vpush.stop()

    def replica(self, out_redis: str, route: str = "", **settings: object) -> Service:
        """A vpush whose lists and namespace have the name of its ``route`` behind theirs."""
        lists = {"in": SOURCE + route, "pending": PENDING + route, "out": OUT + route}
        own = {**lists, "out_redis": out_redis, "redis_namespace": TRANSPORT + route}
        return Service("vpush", self._log, redis=self.url, **{**own, **settings})

    @contextmanager
    def beside(self, *command: str, **environment: str) -> Iterator[None]:
        """A process of the benchmark's own that waits for work."""
        waits = self.blocked() + 1
        with subprocess.Popen(command, cwd=ROOT, env=os.environ | environment) as process:
            try:
                until(lambda: self.blocked() == waits)
                yield
            finally:
                process.kill()

    def blocked(self) -> int:
        """Return how many clients wait in a blocking command."""
        return int(self.redis.info("clients")["blocked_clients"])

    def seed(self, messages: int, size: int, first: int = 0) -> None:
        """Keep ``messages`` distinct messages of ``size`` bytes to make backlogs from; they are numbered."""
        self.redis.delete(SEED)
        with self.redis.pipeline(transaction=False) as wire:
            for start in range(0, messages, 1000):
                batch = range(first + start, first + min(start + 1000, messages))
                wire.lpush(SEED, *(b"%09d" % number + b"x" * (size - 9) for number in batch))
                if size * len(wire) > 100_000:
                    wire.execute()
            wire.execute()

    def backlog(self, name: str) -> None:
        """Let the seed's messages appear in ``name`` at once."""
        self.redis.copy(SEED, "bench:backlog")
        self.redis.rename("bench:backlog", name)

    def clear(self, lists: int) -> None:
        """Empty the subscribers' lists, and wait until the server has given their memory back."""
        self.redis.unlink(*subscribers(lists))
        until(lambda: self.redis.info("memory")["lazyfree_pending_objects"] == 0)

    def appear(self, name: str = SOURCE) -> float:
        """Let the seed's messages appear in ``name`` at once; return the time."""
        self.redis.copy(SEED, "bench:backlog")
        begin = time.perf_counter()
        self.redis.rename("bench:backlog", name)
        return begin

    def forget(self, namespace: str, *lists: str) -> None:
        """Remove what tracking has left of messages, and ``lists``, and wait until the server has the memory back."""
        keys = Keys(namespace)
        left = self.redis.scan_iter(f"{namespace}:message:*", count=10_000)
        names = [name for name in left if name.decode() != keys.message_counter]
        with self.redis.pipeline(transaction=False) as wire:
            for place in range(0, len(names), 1000):
                wire.unlink(*names[place : place + 1000])
            wire.unlink(keys.events, *lists)
            wire.execute()
        until(lambda: self.redis.info("memory")["lazyfree_pending_objects"] == 0)

    def arrived(self, messages: int, lists: int) -> bool:
        return self.redis.llen(subscribers(lists)[-1]) >= messages

    def service_seconds(self, messages: int, lists: int) -> float:
        """Return the seconds from a backlog's appearance to the last message's delivery by the running service."""
        self.clear(lists)
        begin = self.appear()
        while not self.arrived(messages, lists):
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
