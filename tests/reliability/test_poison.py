"""A request that kills whoever reads it goes to the dead letters after the third death; its neighbours do not."""

import asyncio
import json

import pytest

from tests.harness import until
from tests.reliability.stage import Dispatching, QueueService, Stage, assert_registry_clean, audited

BEFORE = [b"before %d" % number for number in range(5)]
AFTER = [b"after %d" % number for number in range(5)]


@pytest.fixture
def service() -> QueueService:
    """Its replicas die of the request ``poison``."""
    return Dispatching(module="tests.reliability.brittle")


def death(stage: Stage, **settings: object) -> None:
    """One that is started and dies, and is forgotten."""
    replica = stage.start(**settings)
    assert replica.wait() == 9
    stage.forget(replica)
    stage.redis.delete(stage.keys.lease)


def letters(stage: Stage) -> list[tuple[str, str]]:
    return [(letter["message"], letter["reason"]) for letter in map(json.loads, stage.held(stage.keys.dead))]


@pytest.mark.parametrize("settings", [{}, {"ordered": True, "lease_expire": 2}], ids=["", "ordered"])
def test_a_request_that_killed_three_is_a_dead_letter_and_its_neighbours_are_delivered_once(
    stage: Stage, settings: dict[str, object]
) -> None:
    stage.push([*BEFORE, b"poison", *AFTER])
    ids = []
    for _ in range(3):
        assert letters(stage) == []
        death(stage, **settings)
        ids.append(stage.redis.get(stage.keys.counter).decode())
    assert stage.held("work:out") == BEFORE
    survivor = stage.up(**settings)
    stage.wait_until_settled()
    assert stage.held("work:out") == BEFORE + AFTER
    assert letters(stage) == [("poison", "poison")]
    assert stage.metric("dead") == {"count": 1, "poison": 1}
    assert {name: stage.metric(name)["count"] for name in ("taken", "registered", "delivered")} == {
        "taken": 11,
        "registered": 10,
        "delivered": 10,
    }
    assert not stage.redis.exists(stage.keys.deaths)
    assert survivor.running
    stage.stop()
    assert asyncio.run(audited(stage)) == []
    assert_registry_clean(stage, killed=ids)


def test_a_letter_of_poison_says_what_is_known(stage: Stage) -> None:
    stage.push([b"poison"])
    for _ in range(3):
        death(stage)
    began = stage.redis.time()[0]
    stage.up()
    stage.wait_until_settled()
    (letter,) = map(json.loads, stage.held(stage.keys.dead))
    assert began * 1000 <= letter.pop("at") <= (stage.redis.time()[0] + 1) * 1000
    assert letter == {
        "message": "poison",
        "reason": "poison",
        "error": "3 instances died with it in hand",
        "source": "work:in",
        "queue": "work:out",
        "attempts": 0,
        "service": "4",
    }


def test_a_request_that_killed_twice_and_is_handled_by_the_third_has_a_clean_slate(stage: Stage) -> None:
    """As when what it died of was mended in between."""
    stage.push([b"poison"])
    for _ in range(2):
        death(stage)
    assert 259_000 < stage.redis.ttl(stage.keys.deaths) <= 259_200
    mended = Dispatching()
    stage.service = mended
    sound = stage.up()
    stage.wait_until_settled()
    assert stage.held("work:out") == [b"poison"]
    assert not stage.redis.exists(stage.keys.deaths)
    stage.stop()
    stage.service = Dispatching(module="tests.reliability.brittle")
    stage.push([b"poison"])
    for _ in range(3):
        assert letters(stage) == []
        death(stage)
    stage.up()
    until(lambda: letters(stage) == [("poison", "poison")])
    assert not sound.running


def test_trouble_with_the_server_is_no_death(stage: Stage) -> None:
    """An instance that comes back to a request it had in hand has not died of it."""
    stage.service = Dispatching()
    stage.redis.zadd(stage.keys.owners, {"77": stage.redis.time()[0]})
    stage.redis.lpush("work:pending:77", "suspect")
    stage.redis.set("work:out", "not a list")
    replica = stage.start()
    until(lambda: "work:out holds a string" in replica.said())
    tries = calls(stage)
    until(lambda: calls(stage) >= tries + 5)
    stage.redis.delete("work:out")
    stage.wait_until_settled()
    assert stage.held("work:out") == [b"suspect"]
    assert letters(stage) == []
    assert not stage.redis.exists(stage.keys.deaths)


def calls(stage: Stage) -> int:
    """Of scripts, so far."""
    found = stage.redis.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))
