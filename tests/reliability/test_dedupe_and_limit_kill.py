"""Replicas of mdedupe and mlimit killed at any time: of equal messages one passes, and what waits is kept."""

import asyncio
import random
import time
from collections import Counter
from typing import Any

import pytest

from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Deduplicating, Fleet, Limiting, QueueService, assert_registry_clean, audited
from tests.reliability.replica import Replica
from tests.support.harness import rounds, until

KINDS = 400
"""Different messages of which each comes again and again."""
WAYS: dict[str, tuple[QueueService, dict[str, Any]]] = {
    "mdedupe by digest": (Deduplicating(), {"by": "digest"}),
    "mdedupe by id": (Deduplicating(), {"by": "id", "duplicates": "again"}),
    "mlimit by field": (Limiting(), {"by": "field", "field": "user", "rate": 200, "burst": 5}),
}


@pytest.fixture
def service() -> QueueService:
    """Return the service of fleets that name none, so that the tests do not run once for each of the suite."""
    return Limiting()


def kill_again_and_again(fleet: Fleet, rng: random.Random, push: Any) -> list[str]:
    """Kill one of two replicas in each round, while ``push`` adds messages; return the ids of those killed."""
    replicas: list[Replica] = [fleet.start(), fleet.start()]
    killed: list[str | None] = []
    for number in rounds():
        push(number)
        time.sleep(rng.uniform(0, 0.12))  # a random time for the kill, not a wait
        which = rng.randrange(2)
        replicas[which].kill()
        killed.append(fleet.id_of(replicas[which]))
        fleet.forget(replicas[which])
        replicas[which] = fleet.start()
    fleet.forget(*(replica for replica in fleet.replicas if not replica.running))
    return [id for id in killed if id]


def is_settled(fleet: Fleet) -> bool:
    return fleet.is_settled() and not fleet.redis.exists(fleet.keys.waiting)


def assert_accounted(fleet: Fleet, killed: list[str]) -> None:
    until(lambda: is_settled(fleet))
    fleet.stop()
    assert asyncio.run(audited(fleet)) == []
    assert_registry_clean(fleet, killed)


@pytest.mark.parametrize("way", [name for name in WAYS if "dedupe" in name])
def test_of_equal_messages_one_passes_whenever_replicas_are_killed(
    way: str, launch: Launch, server: EmbeddedServer, rng: random.Random
) -> None:
    service, settings = WAYS[way]
    fleet = launch(server, service, **settings)
    fleet.redis.flushall()
    pushed = Counter[bytes]()

    def push(_: int) -> None:
        messages = [b"message %d" % rng.randrange(KINDS) for _ in range(300)]
        fleet.push(messages)
        pushed.update(messages)

    killed = kill_again_and_again(fleet, rng, push)
    assert_accounted(fleet, killed)
    assert Counter(fleet.held("work:out")) == Counter(pushed.keys())
    surplus = pushed.total() - len(pushed)
    assert fleet.metric("duplicate") == {"count": surplus}
    if "duplicates" in settings:
        assert Counter(fleet.held("again")) == pushed - Counter(pushed.keys())
    else:
        assert fleet.metric("dropped")["count"] == surplus


def test_messages_that_wait_by_field_are_neither_lost_nor_doubled_whenever_replicas_are_killed(
    launch: Launch, server: EmbeddedServer, rng: random.Random
) -> None:
    service, settings = WAYS["mlimit by field"]
    fleet = launch(server, service, **settings)
    fleet.redis.flushall()
    pushed: list[bytes] = []

    def push(number: int) -> None:
        messages = [b'{"user":%d,"n":%d}' % (rng.randrange(4), 100 * number + each) for each in range(100)]
        fleet.push(messages)
        pushed.extend(messages)

    waited = 0

    def noting(number: int) -> None:
        nonlocal waited
        push(number)
        waited = max(waited, fleet.redis.zcard(fleet.keys.waiting))

    killed = kill_again_and_again(fleet, rng, noting)
    assert_accounted(fleet, killed)
    assert waited, "nothing waited while replicas were killed: the test proves nothing"
    assert Counter(fleet.held("work:out")) == Counter(pushed)
    assert fleet.metric("delivered")["count"] == len(pushed)
    assert fleet.metric("limited")["count"] >= waited
