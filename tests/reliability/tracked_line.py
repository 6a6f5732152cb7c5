"""A tracked line on a server: mdispatch, monitors, and workers of the test's own, under load."""

import random
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from penstock.keys import pending_of
from tests.harness import until
from tests.reliability.forkserver import Replica
from tests.reliability.jobs import requests
from tests.reliability.stage import Dispatching, Publisher, QueueService, Stage, Watching
from tests.reliability.tracked_worker import KEYS, OUT, RES, later_of, working_of

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
    """One place in the line: whoever is in it is replaced when he dies."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage, self._number = stage, number
        self.killed: set[str] = set()
        self.replica: Replica
        self.start()

    @property
    def name(self) -> str:
        return self.stage.service.name

    def start(self) -> None:
        self.replica = self.stage.start(**({"number": self._number} if self.stage.service is WORKING else {}))

    def kill(self) -> bool:
        """Whether it met something in hand."""
        held = self._held()
        self.replica.kill()
        self.killed |= {self.stage.id_of(self.replica) or ""}
        in_hand = any(map(self.stage.redis.llen, held))
        self.stage.forget(self.replica)
        return in_hand

    def wait_until_busy(self, longest: float = 0.2) -> None:
        """Return once it has something in hand, or after ``longest`` seconds."""
        end = time.monotonic() + longest
        while time.monotonic() < end and not any(map(self.stage.redis.llen, self._held())):
            time.sleep(0.0005)

    def _held(self) -> list[str]:
        if self.stage.service is WORKING:
            return [working_of(self._number)]
        bases = {"mdispatch": ("work:pending", "work:pending:answers"), "monitor": (Watching.pending,)}[self.name]
        id = self.stage.id_of(self.replica)
        return [pending_of(base, id) for base in bases] if id else []


class Line:
    """So many of each."""

    def __init__(self, staged: Callable[..., Stage], server: Any, mdispatch: int, monitors: int, workers: int) -> None:
        self.dispatching: Stage = staged(server, Dispatching(), **TRACKING)
        self.watching: Stage = staged(server, Watching())
        self.working: Stage = staged(server, WORKING)
        self.redis = self.dispatching.redis
        stages = ((self.dispatching, mdispatch), (self.watching, monitors), (self.working, workers))
        self.members = [Member(stage, number) for stage, count in stages for number in range(count)]

    def killed(self, stage: Stage) -> set[str]:
        return {id for member in self.members if member.stage is stage for id in member.killed if id}

    def has_ended(self) -> bool:
        """Whether nothing is on its way."""
        workers = len(self.members)
        lists = ["work:in", OUT, RES, KEYS.done, KEYS.deadlines, KEYS.delayed]
        lists += [each(number) for each in (working_of, later_of) for number in range(workers)]
        if self.redis.exists(*lists):
            return False
        names = ("work:pending*", "watcher:pending:*")
        return not any(next(self.redis.scan_iter(name, count=10_000), None) for name in names)

    def end(self) -> None:
        """Wait until nothing is on its way, and stop them all."""
        until(lambda: self.has_ended() and self.has_ended(), 40, every=0.05)  # it may move between two looks
        self.dispatching.stop()
        self.watching.stop()
        for member in self.members:
            if member.stage is self.working:
                member.replica.kill()


class Load(Publisher):
    """Requests of all kinds, in bursts, as long as the workers keep up."""

    def __init__(self, line: Line, rng: random.Random, *, rate: float) -> None:
        super().__init__(line.dispatching, rng, largest_batch=40)
        self._request = requests(random.Random(rng.random()))
        self._rate = rate
        """Requests a second, at most."""

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
        """How many no worker has taken yet."""
        try:
            return int(self._redis.llen(OUT))
        except RedisError:
            return 0
