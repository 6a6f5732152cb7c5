"""Tests of a request that crashes its reader: after three deaths it is a dead letter, and its neighbours are not."""

import asyncio
import json

import pytest

from tests.reliability.fleet import Dispatching, Fleet, QueueService, assert_registry_clean, audited
from tests.support.harness import until

BEFORE = [b"before %d" % number for number in range(5)]
AFTER = [b"after %d" % number for number in range(5)]


@pytest.fixture
def service() -> QueueService:
    """Return mdispatch that crashes on the request ``poison``."""
    return Dispatching(module="tests.reliability.brittle")


def crash(fleet: Fleet, **settings: object) -> None:
    """Start a replica, wait until it has crashed, and remove its registration and lease."""
    replica = fleet.start(**settings)
    assert replica.wait() == 9
    fleet.forget(replica)
    fleet.redis.delete(fleet.keys.lease)


def letters(fleet: Fleet) -> list[tuple[str, str]]:
    return [(letter["message"], letter["reason"]) for letter in map(json.loads, fleet.held(fleet.keys.dead))]


@pytest.mark.parametrize("settings", [{}, {"ordered": True, "lease_expire": 2}], ids=["", "ordered"])
def test_a_request_that_killed_three_is_a_dead_letter_and_its_neighbours_are_delivered_once(
    fleet: Fleet, settings: dict[str, object]
) -> None:
    fleet.push([*BEFORE, b"poison", *AFTER])
    ids = []
    for _ in range(3):
        assert letters(fleet) == []
        crash(fleet, **settings)
        ids.append(fleet.redis.get(fleet.keys.counter).decode())
    assert fleet.held("work:out") == BEFORE
    survivor = fleet.up(**settings)
    fleet.wait_until_settled()
    assert fleet.held("work:out") == BEFORE + AFTER
    assert letters(fleet) == [("poison", "poison")]
    assert fleet.metric("dead") == {"count": 1, "poison": 1}
    assert {name: fleet.metric(name)["count"] for name in ("taken", "registered", "delivered")} == {
        "taken": 11,
        "registered": 10,
        "delivered": 10,
    }
    assert not fleet.redis.exists(fleet.keys.deaths)
    assert survivor.running
    fleet.stop()
    assert asyncio.run(audited(fleet)) == []
    assert_registry_clean(fleet, killed=ids)


def test_a_letter_of_poison_says_what_is_known(fleet: Fleet) -> None:
    fleet.push([b"poison"])
    for _ in range(3):
        crash(fleet)
    began = fleet.redis.time()[0]
    fleet.up()
    fleet.wait_until_settled()
    (letter,) = map(json.loads, fleet.held(fleet.keys.dead))
    assert began * 1000 <= letter.pop("at") <= (fleet.redis.time()[0] + 1) * 1000
    assert letter == {
        "message": "poison",
        "reason": "poison",
        "error": "3 instances died with it in hand",
        "source": "work:in",
        "queue": "work:out",
        "attempts": 0,
        "service": "4",
    }


def test_a_request_that_killed_twice_and_is_handled_by_the_third_has_a_clean_slate(fleet: Fleet) -> None:
    """As if the bug was fixed in between."""
    fleet.push([b"poison"])
    for _ in range(2):
        crash(fleet)
    assert 259_000 < fleet.redis.ttl(fleet.keys.deaths) <= 259_200
    mended = Dispatching()
    fleet.service = mended
    sound = fleet.up()
    fleet.wait_until_settled()
    assert fleet.held("work:out") == [b"poison"]
    assert not fleet.redis.exists(fleet.keys.deaths)
    fleet.stop()
    fleet.service = Dispatching(module="tests.reliability.brittle")
    fleet.push([b"poison"])
    for _ in range(3):
        assert letters(fleet) == []
        crash(fleet)
    fleet.up()
    until(lambda: letters(fleet) == [("poison", "poison")])
    assert not sound.running
