"""Tracked line on a server, under load: mdispatch, monitors and test workers."""

import random
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from penstock.base.keys import pending_of
from tests.reliability.fleet import Dispatching, Fleet, Publisher, QueueService, Watching
from tests.reliability.jobs import requests
from tests.reliability.replica import Replica
from tests.reliability.tracked_worker import KEYS, OUT, RES, later_of, working_of
from tests.support.harness import until

TRACKING: dict[str, object] = {
    "res": RES,
    "message_timeout": 1,
    "backoff": [0.1],
    "attempts": 3,
    "message_expire": 20,
    "reply_expire": 300,
    "event_capacity": 1_000_000,
    "accept_late": True,
}
WORKING = QueueService(
    "worker", pending="worker", outs=(), namespace="workers", module="tests.reliability.tracked_worker"
)


class Member:
    """One process of the line; ``start`` replaces a dead one."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet, self._number = fleet, number
        self.killed: set[str] = set()
        self.replica: Replica
        self.start()

    @property
    def name(self) -> str:
        return self.fleet.service.name

    def start(self) -> None:
        self.replica = self.fleet.start(**({"number": self._number} if self.fleet.service is WORKING else {}))

    def kill(self) -> bool:
        """Kill it and return True if it had a message in hand."""
        held = self._held()
        self.replica.kill()
        self.killed |= {self.fleet.id_of(self.replica) or ""}
        in_hand = any(map(self.fleet.redis.llen, held))
        self.fleet.forget(self.replica)
        return in_hand

    def wait_until_busy(self) -> None:
        """Wait until it has a message in hand, at most for a moment."""
        end = time.monotonic() + 0.2
        while time.monotonic() < end and not any(map(self.fleet.redis.llen, self._held())):
            time.sleep(0.0005)

    def _held(self) -> list[str]:
        if self.fleet.service is WORKING:
            return [working_of(self._number)]
        bases = {"mdispatch": ("work:pending", "work:pending:answers"), "monitor": (Watching.pending,)}[self.name]
        id = self.fleet.id_of(self.replica)
        return [pending_of(base, id) for base in bases] if id else []


class Line:
    """A line with the given number of each process."""

    def __init__(self, launch: Callable[..., Fleet], server: Any, mdispatch: int, monitors: int, workers: int) -> None:
        self.dispatching: Fleet = launch(server, Dispatching(), **TRACKING)
        self.watching: Fleet = launch(server, Watching())
        self.working: Fleet = launch(server, WORKING)
        self.redis = self.dispatching.redis
        fleets = ((self.dispatching, mdispatch), (self.watching, monitors), (self.working, workers))
        self.members = [Member(fleet, number) for fleet, count in fleets for number in range(count)]

    def killed(self, fleet: Fleet) -> set[str]:
        return {id for member in self.members if member.fleet is fleet for id in member.killed if id}

    def has_ended(self) -> bool:
        """Return True if no message is in flight."""
        workers = len(self.members)
        lists = ["work:in", OUT, RES, KEYS.done, KEYS.deadlines, KEYS.delayed]
        lists += [each(number) for each in (working_of, later_of) for number in range(workers)]
        if self.redis.exists(*lists):
            return False
        names = ("work:pending*", "watcher:pending:*")
        return not any(next(self.redis.scan_iter(name, count=10_000), None) for name in names)

    def end(self) -> None:
        """Wait until no message is in flight, then stop all processes."""
        until(lambda: self.has_ended() and self.has_ended(), 40, every=0.05)  # a message may move between two checks
        self.dispatching.stop()
        self.watching.stop()
        for member in self.members:
            if member.fleet is self.working:
                member.replica.kill()


class Load(Publisher):
    """Push requests of all kinds in bursts, as fast as the workers keep up."""

    def __init__(self, line: Line, rng: random.Random, *, rate: float) -> None:
        super().__init__(line.dispatching, rng, largest_batch=40)
        self._request = requests(random.Random(rng.random()))
        self._rate = rate
        """Maximum requests a second."""

    def _publish(self) -> None:
        number = 0
        while not self._ended.is_set():
            numbers = range(number, number + self._rng.randint(1, self._largest_batch))
            number = numbers.stop
            self._push([self._request(each) for each in numbers])
            self._ended.wait(len(numbers) / self._rate)
            while not self._ended.is_set() and self._waiting() > 50:
                self._ended.wait(0.02)

    def _waiting(self) -> int:
        """Return the number of requests that no worker has taken."""
        try:
            return int(self._redis.llen(OUT))
        except RedisError:
            return 0
