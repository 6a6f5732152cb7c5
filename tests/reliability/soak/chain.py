"""Chain of services: mpush (2) feeds vpush (2) to another server, and mdispatch (2) with monitors (2) and a worker."""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, ReadOnlyError, TimeoutError
from redis.retry import Retry

from penstock.base.errors import PenstockError
from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.replica import Replica
from tests.reliability.soak.links import FaultyProxy
from tests.support.harness import until

HERE, THERE = "here", "there"
IN, ARRIVED, KEPT, DEAD = "soak:in", "soak:arrived", "soak:kept", "soak:track:dead"
WORK, DONE, HAND = "soak:work", "soak:track:done", "soak:hand"
BRANCHES: Final = ("soak:far", "soak:near")
SINKS: Final = (KEPT, DEAD)
"""Lists of this server that may hold messages at the end."""
SERVICES: Final = ("mpush", "vpush", "mdispatch", "monitor")
GENERAL: Final[dict[str, object]] = {"service_expire": 30, "service_renew": 5, "pop_timeout": 5, "stop_timeout": 20}
SETTINGS: Final[dict[str, dict[str, object]]] = {
    "mpush": {
        "redis_namespace": "soak:fan",
        "in_": IN,
        "pending": "soak:fan:pending",
        "out": json.dumps(BRANCHES),
        "ordered": True,
        "lease_expire": 2,
    },
    "vpush": {
        "redis_namespace": "soak:link",
        "in_": BRANCHES[0],
        "pending": "soak:link:pending",
        "out": ARRIVED,
        "lease_expire": 1,
        "link_timeout": 2,
    },
    "mdispatch": {
        "redis_namespace": "soak:track",
        "in_": BRANCHES[1],
        "pending": "soak:track:pending",
        "out": WORK,
        "message_timeout": 5,
        "attempts": 6,
        "backoff": "[0.2]",
        "message_expire": 900,
        "message_capacity": 1_000_000,
        "event_capacity": 20_000,
    },
    "monitor": {"redis_namespace": "soak:watch", "watch": "soak:track", "metrics_port": 0},
    "worker": {"work": WORK, "hand": HAND, "kept": KEPT, "done": DONE},
}
NAMESPACES: Final = {name: str(values.get("redis_namespace", "")) for name, values in SETTINGS.items()}


class ManagedProcess:
    """One process of the chain, restarted when it ends, as by a container runtime; ``proxies`` lead to the servers."""

    def __init__(
        self, name: str, fork_server: ForkServer, log: Path, proxies: dict[str, FaultyProxy], **more: object
    ) -> None:
        self.name, self.proxies = name, proxies
        self.statuses = Counter[int]()
        """Exit statuses, with counts, of the processes that have ended."""
        self.reasons: list[str] = []
        """Last log lines of the processes that failed without being killed."""
        self._fork_server, self._log, self._more = fork_server, log, more
        self._ending = threading.Event()
        self.replica = self._start()
        self._restarter = threading.Thread(target=self._restart_until_ended, daemon=True)
        self._restarter.start()

    def _start(self) -> Replica:
        settings: dict[str, object] = {"redis": self.proxies[HERE].url, **SETTINGS[self.name], **self._more}
        if self.name in SERVICES:
            settings |= GENERAL
        if self.name == "vpush":
            settings["out_redis"] = self.proxies[THERE].url
        replica = Replica(self._fork_server, self.name, self._log, **settings)
        if self.name == "worker":
            replica.module = "tests.reliability.soak.worker"
        return replica.start()

    def _restart_until_ended(self) -> None:
        while not self._ending.wait(0.05):
            if not self.replica.running:
                status = self.replica.wait(1)
                self.statuses[status] += 1
                if status > 0:
                    self.reasons.append(self.log_text()[-2_000:].strip().rpartition("\n")[2])
                if not self._ending.wait(0.2):
                    self.replica = self._start()

    def signal(self, number: int) -> Replica:
        """Send a signal to the current process, and return its replica."""
        replica = self.replica
        with suppress(ProcessLookupError):
            replica.signal(number)
        return replica

    def stop(self) -> int | None:
        """Send SIGTERM; return the exit status of the last process, None if it does not end."""
        self._ending.set()
        self._restarter.join(10)
        replica = self.replica
        if self.name == "worker":
            self.signal(signal.SIGKILL)
            return 0
        until(lambda: not replica.running or '"settings"' in replica.log_text())
        self.signal(signal.SIGTERM)
        try:
            return replica.wait(40)
        except AssertionError:
            return None

    def end(self) -> None:
        """Kill the process for good."""
        self._ending.set()
        self._restarter.join(10)
        if self.replica.running:
            for number in (signal.SIGCONT, signal.SIGKILL):
                self.signal(number)

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")


class Chain:
    """Two servers that write everything to disk, and all processes, each behind its own proxies.

    With ``plain``, the worker reports bare numbers, which are also ids of other messages, so `doneBy: xid` is set:
    without it, a number reported twice would end another message. ``loses`` makes the worker drop messages.
    """

    def __init__(self, fork_server: ForkServer, directory: Path, *, plain: bool = False, loses: int = 0) -> None:
        self._fork_server, self._directory = fork_server, directory
        self._more: dict[str, dict[str, object]] = {"worker": {"plain": plain, "loses": loses}}
        if plain:
            self._more["mdispatch"] = {"done_by": "xid"}
        self._ends = ExitStack()
        self.servers: dict[str, EmbeddedServer] = {}
        self.processes: list[ManagedProcess] = []
        self.locks = {HERE: threading.Lock(), THERE: threading.Lock()}
        """One lock per server, held by a fault that affects the whole server."""

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._ends.close()
            raise
        return self

    def _open(self) -> None:
        for name in (HERE, THERE):
            self.servers[name] = server()
            self._ends.callback(self.servers[name].__exit__)
        for name, many in (("mpush", 2), ("vpush", 2), ("mdispatch", 2), ("monitor", 2), ("worker", 1)):
            for number in range(many):
                self._add(name, number, **self._more.get(name, {}))

    def _add(self, name: str, number: int, **more: object) -> None:
        sides = (HERE, THERE) if name == "vpush" else (HERE,)
        proxies = {side: self._ends.enter_context(FaultyProxy(self.servers[side].port)) for side in sides}
        log = self._directory / f"{name}-{number}.log"
        log.touch()
        process = ManagedProcess(name, self._fork_server, log, proxies, **more)
        self._ends.callback(process.end)
        self.processes.append(process)

    def __exit__(self, *error: Any) -> None:
        self._ends.__exit__(*error)

    def client(self, side: str, timeout: float = 30) -> Any:
        """Return a client that uses no proxy and no retries."""
        return Redis.from_url(self.servers[side].url, retry=Retry(NoBackoff(), 0), socket_timeout=timeout)

    @contextmanager
    def connected(self, side: str) -> Iterator[Any]:
        client = self.client(side)
        try:
            yield client
        finally:
            client.close()

    def execute_until_answered(self, side: str, *words: Any) -> Any:
        """Repeat a command until the server answers or refuses it, for up to 60 s."""
        with self.connected(side) as client:
            end = time.monotonic() + 60
            while True:
                try:
                    return client.execute_command(*words)
                except (ConnectionError, TimeoutError, ReadOnlyError):
                    if time.monotonic() > end:
                        raise
                time.sleep(0.05)

    def deregister_dead(self) -> None:
        """Remove the registrations of dead processes, as if they had expired."""
        alive = {process.replica.pid for process in self.processes if process.replica.running}
        with self.connected(HERE) as redis:
            for service in SERVICES:
                for id in redis.lrange(f"{NAMESPACES[service]}:ids", 0, -1):
                    key = f"{NAMESPACES[service]}:{id.decode()}"
                    if int(redis.hget(key, "pid") or 0) not in alive:
                        redis.delete(key)

    def waiting(self) -> dict[str, int]:
        """Return the number of messages in each list of this server, and in flight."""
        found = {}
        with self.connected(HERE) as redis:
            for key in redis.scan_iter(_type="list", count=10_000):
                name = key.decode()
                if name not in SINKS and not name.endswith(":ids"):
                    found[name] = redis.llen(key)
            for name in ("soak:track:message:deadlines", "soak:track:message:delayed"):
                if count := redis.zcard(name):
                    found[name] = count
        return {name: count for name, count in found.items() if count}


def server() -> EmbeddedServer:
    """Start and return a server that allows DEBUG."""
    found = EmbeddedServer(aof=True, enable_debug_command="yes")
    try:
        return found.start()
    except PenstockError:  # Redis 6.2 has no such option and allows DEBUG
        found.__exit__()
        return EmbeddedServer(aof=True).start()
