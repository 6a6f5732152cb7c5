"""Tests that the audit misses a message removed from a pending list, also after the death of its holder."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.base.keys import pending_of
from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Balancing, Dispatching, Fleet, QueueService, Watching, audited
from tests.support.harness import until

HELD = 5
POLICY = {
    "messageTimeout": 10,
    "messageExpire": 60,
    "messageCapacity": 100,
    "attempts": 3,
    "backoff": "[1]",
    "eventCapacity": 100,
    "replyExpire": 60,
    "pending": "work:pending",
    "source": "work:in",
    "out": "work:out",
    "done": "demo:done",
}
"""Policy of the namespace that a monitor watches."""
REMOVALS: dict[str, tuple[Callable[[Any, str], object], int]] = {
    "DEL": (lambda redis, name: redis.delete(name), HELD),
    "RPOP": (lambda redis, name: redis.rpop(name), 1),
    "LTRIM": (lambda redis, name: redis.ltrim(name, 0, 1), HELD - 2),
    "TTL": (lambda redis, name: redis.pexpire(name, 1), HELD),
}
"""Ways to remove messages, each with the number that it removes."""


@dataclass(frozen=True)
class Sending(QueueService):
    """vpush from one database of a server to another."""

    name: str = "vpush"
    outs: tuple[str, ...] = ("work:there",)
    can_lack_namespace: bool = False

    def settings(self) -> dict[str, object]:
        return super().settings() | {"out": self.outs[0]}


@dataclass(frozen=True)
class Obstacle:
    """A key of the wrong type that keeps ``service`` from settling messages."""

    service: QueueService
    key: str
    elsewhere: bool = False
    """True if the key is in the other database."""


HOLDERS = [
    Obstacle(QueueService("mpush"), "work:out1"),
    Obstacle(Dispatching(), "work:out"),
    Obstacle(Balancing(), "work:out"),
    Obstacle(Watching(), "demo:metrics:done"),
    Obstacle(Sending(), "work:there", elsewhere=True),
]


@pytest.fixture(params=HOLDERS, ids=lambda each: each.service.name)
def obstacle(request: pytest.FixtureRequest) -> Obstacle:
    given: Obstacle = request.param
    return given


@pytest.fixture
def service(obstacle: Obstacle) -> QueueService:
    return obstacle.service


def prepare(fleet: Fleet) -> None:
    """Empty the server; for a monitor, add a namespace to watch."""
    fleet.redis.flushall()
    if isinstance(fleet.service, Watching):
        fleet.redis.hset("demo:policy", mapping=POLICY)


class BlockedHolder:
    """A service that holds ``HELD`` messages and cannot settle them."""

    def __init__(self, launch: Launch, server: EmbeddedServer, obstacle: Obstacle) -> None:
        there = f"{server.url.rpartition('/')[0]}/9"
        more = {"out_redis": there} if obstacle.elsewhere else {}
        self.fleet: Fleet = launch(server, obstacle.service, **more)
        prepare(self.fleet)
        self._obstacle = obstacle
        self.replica = self.fleet.up()
        self.fleet.waiting()
        self._at_obstacle("SET", obstacle.key, "in the way")
        self.fleet.push([b'{"xid":"message %d"}' % number for number in range(HELD)])
        until(lambda: self.fleet.redis.exists(self.fleet.keys.held), 20)
        shared = obstacle.service.name == "vpush"
        self.pending = pending_of(obstacle.service.pending, None if shared else self.fleet.id_of(self.replica))
        while waiting := self.fleet.redis.rpop(obstacle.service.source):
            self.fleet.redis.lpush(self.pending, waiting)
        until(lambda: self.fleet.redis.hget(self.fleet.keys.held, self.pending) == b"%d" % HELD, 20)
        assert self.problems() == []

    def _at_obstacle(self, *command: str) -> None:
        with self.fleet.redis.client() as client:
            if self._obstacle.elsewhere:
                client.execute_command("SELECT", 9)
            client.execute_command(*command)
            client.execute_command("SELECT", 0)

    def kill(self) -> None:
        self.replica.signal(signal.SIGKILL)
        self.replica.wait()
        self.fleet.forget(self.replica)

    def mend(self) -> None:
        self._at_obstacle("DEL", self._obstacle.key)

    def remove(self, removal: str) -> str:
        """Remove messages; return the start of the audit's message about it."""
        remove, gone = REMOVALS[removal]
        remove(self.fleet.redis, self.pending)
        until(lambda: self.fleet.redis.llen(self.pending) == HELD - gone)
        return f"{self.pending}: {gone} message{'s were' if gone > 1 else ' was'} taken and not settled, and gone"

    def problems(self) -> list[str]:
        return asyncio.run(audited(self.fleet))

    def assert_missed(self, words: str) -> None:
        problems = self.problems()
        assert [problem for problem in problems if problem.startswith(words)], problems

    def accept(self, gone: int) -> None:
        self.fleet.redis.hset(self.fleet.keys.accepted, self.pending, gone)


@pytest.mark.parametrize("removal", REMOVALS)
def test_a_message_that_is_removed_from_a_pending_list_is_missed(
    launch: Launch, server: EmbeddedServer, obstacle: Obstacle, removal: str
) -> None:
    """While its holder lives, after its death, and once another instance has adopted and settled the rest."""
    holder = BlockedHolder(launch, server, obstacle)
    words = holder.remove(removal)
    holder.assert_missed(words)
    holder.kill()
    holder.assert_missed(words)
    holder.mend()
    holder.fleet.up()
    holder.fleet.wait_until_settled()
    holder.assert_missed(words)
    holder.accept(REMOVALS[removal][1])
    assert holder.problems() == []


def test_what_a_wait_has_moved_is_counted_though_its_process_does_nothing_any_more(
    launch: Launch, server: EmbeddedServer, obstacle: Obstacle
) -> None:
    """The server counts it after the BLMOVE, on the same connection."""
    if obstacle.elsewhere:
        pytest.skip("vpush waits without moving, and takes by script")
    fleet = launch(server, obstacle.service)
    prepare(fleet)
    replica = fleet.up()
    fleet.waiting()
    fleet.redis.set(obstacle.key, "in the way")  # for mpush, an out list that its script checks
    replica.signal(signal.SIGSTOP)
    fleet.push([b'{"xid":"message"}'])
    until(lambda: fleet.redis.hvals(fleet.keys.held) == [b"1"])
    pending = pending_of(obstacle.service.pending, fleet.id_of(replica))
    replica.signal(signal.SIGKILL)
    replica.wait()
    fleet.redis.delete(pending)
    (problem, *_) = asyncio.run(audited(fleet))
    assert problem.startswith(f"{pending}: 1 message was taken and not settled, and gone")
