"""What a dead run left in its pending list is delivered once, first and in order."""

import signal

import pytest

from penstock.keys import pending_of
from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.conftest import Staged
from tests.reliability.proxy import Proxy
from tests.reliability.stage import Stage, assert_accounted, assert_registry_clean

LEFT = [b"left %d" % number for number in range(10_000)]
LATER = [b"later %d" % number for number in range(100)]


BARE: dict[str, object] = {"redis_namespace": ""}


@pytest.mark.parametrize(
    ("id", "settings"),
    [(None, BARE), (None, {}), (None, {"ordered": True}), ("7", {}), ("7", {"ordered": True})],
    ids=["bare", "bare, now with a namespace", "shared", "a dead run's", "a dead run's, now ordered"],
)
def test_10000_messages_of_a_dead_run_are_delivered_once_and_first_and_in_order(
    stage: Stage, id: str | None, settings: dict[str, object]
) -> None:
    if settings is BARE and not stage.service.may_be_bare:
        pytest.skip(f"{stage.service.name} needs a namespace")
    if id:
        stage.redis.set(stage.keys.counter, id)
        stage.redis.zadd(stage.keys.owners, {id: stage.redis.time()[0]})
    stage.redis.lpush(pending_of(stage.service.pending, id), *LEFT)
    stage.push(LATER)
    stage.start(**settings)
    stage.wait_until_settled()
    for out in stage.service.outs:
        assert stage.held(out) == LEFT + LATER
    stage.stop()
    if settings is not BARE:
        assert_accounted(stage, LEFT + LATER)
        assert_registry_clean(stage, killed=[id] if id else [])


def test_the_lists_of_several_dead_runs_are_adopted_the_oldest_first(stage: Stage) -> None:
    now = stage.redis.time()[0]
    ids = ["2", "9", "10", "11"]
    stage.redis.set(stage.keys.counter, "11")
    for place, id in enumerate(ids):
        stage.redis.zadd(stage.keys.owners, {id: now})
        stage.redis.lpush(pending_of(stage.service.pending, id), *LEFT[place * 100 : (place + 1) * 100])
    stage.up()
    stage.wait_until_settled()
    for out in stage.service.outs:
        assert stage.held(out) == LEFT[: len(ids) * 100]


def test_a_run_that_lives_adopts_what_one_that_dies_later_has_left(stage: Stage) -> None:
    """At its next renewal, without a message that wakes it."""
    stage.up()
    stage.waiting()
    stage.redis.zadd(stage.keys.owners, {"77": stage.redis.time()[0]})
    stage.redis.lpush(pending_of(stage.service.pending, "77"), *LATER)
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, LATER)
    assert_registry_clean(stage, killed=["77"])


def test_a_run_told_to_stop_while_it_adopts_finishes_what_it_has_adopted(
    staged: Staged, server: EmbeddedServer
) -> None:
    with Proxy(server.port) as proxy:
        stage = staged(server)
        stage.redis.flushall()
        orphan = pending_of(stage.service.pending, "77")
        stage.redis.zadd(stage.keys.owners, {"77": stage.redis.time()[0]})
        stage.redis.lpush(orphan, *LATER)
        adoption = proxy.fault(orphan, stage.keys.owners, forward=False)
        replica = stage.start(redis=proxy.url)
        until(adoption.met.is_set)
        replica.signal(signal.SIGTERM)
        adoption.over()
        assert replica.wait() == 0
        assert_accounted(stage, LATER)
        assert_registry_clean(stage, killed=["77"])


def test_a_run_that_lives_keeps_what_it_holds(stage: Stage) -> None:
    """Its pending list is no orphan while its registration is there."""
    living = stage.up()
    stage.waiting()
    id = str(stage.id_of(living))
    held = pending_of(stage.service.pending, id)
    stage.redis.set(stage.service.outs[0], "not a list")
    stage.push(LATER)
    until(lambda: stage.redis.llen(held))
    stage.up()
    until(lambda: stage.redis.hget(stage.keys.metric("error"), "count"))
    assert stage.redis.llen(held)
    stage.redis.delete(stage.service.outs[0])
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, LATER)
    assert_registry_clean(stage)
