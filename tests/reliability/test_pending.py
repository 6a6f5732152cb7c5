"""Tests of recovery: messages in the pending list of a dead instance are delivered once, first and in order."""

import signal

import pytest

from penstock.base.keys import pending_of
from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Fleet, assert_accounted, assert_all_settled, assert_registry_clean
from tests.reliability.proxy import Proxy
from tests.support.harness import until

LEFT = [b"left %d" % number for number in range(10_000)]
LATER = [b"later %d" % number for number in range(100)]


BARE: dict[str, object] = {"redis_namespace": ""}


@pytest.mark.parametrize(
    ("id", "settings"),
    [(None, BARE), (None, {}), (None, {"ordered": True}), ("7", {}), ("7", {"ordered": True})],
    ids=["bare", "bare, now with a namespace", "shared", "a dead run's", "a dead run's, now ordered"],
)
def test_10000_messages_of_a_dead_run_are_delivered_once_and_first_and_in_order(
    fleet: Fleet, id: str | None, settings: dict[str, object]
) -> None:
    if settings is BARE and not fleet.service.can_lack_namespace:
        pytest.skip(f"{fleet.service.name} needs a namespace")
    if id:
        fleet.redis.set(fleet.keys.counter, id)
        fleet.redis.zadd(fleet.keys.owners, {id: fleet.redis.time()[0]})
    fleet.redis.lpush(pending_of(fleet.service.pending, id), *map(fleet.service.packed, LEFT))
    fleet.push(LATER)
    fleet.start(**settings)
    fleet.wait_until_settled()
    for out in fleet.service.outs:
        assert fleet.held(out) == LEFT + LATER
    fleet.stop()
    if settings is not BARE:
        assert_accounted(fleet, LEFT + LATER)
        assert_registry_clean(fleet, killed=[id] if id else [])


def test_a_run_that_lives_adopts_what_one_that_dies_later_has_left(fleet: Fleet) -> None:
    """It does so at its next heartbeat, without a message to wake it."""
    fleet.up()
    fleet.waiting()
    fleet.redis.zadd(fleet.keys.owners, {"77": fleet.redis.time()[0]})
    fleet.redis.lpush(pending_of(fleet.service.pending, "77"), *map(fleet.service.packed, LATER))
    assert_all_settled(fleet, LATER, killed=["77"])


def test_an_instance_stopped_while_it_adopts_finishes_the_adopted_messages(
    launch: Launch, server: EmbeddedServer
) -> None:
    with Proxy(server.port) as proxy:
        fleet = launch(server)
        fleet.redis.flushall()
        orphan = pending_of(fleet.service.pending, "77")
        fleet.redis.zadd(fleet.keys.owners, {"77": fleet.redis.time()[0]})
        fleet.redis.lpush(orphan, *map(fleet.service.packed, LATER))
        adoption = proxy.fault(orphan, fleet.keys.owners, forward=False)
        replica = fleet.start(redis=proxy.url)
        until(adoption.met.is_set)
        replica.signal(signal.SIGTERM)
        adoption.over()
        assert replica.wait() == 0
        assert_accounted(fleet, LATER)
        assert_registry_clean(fleet, killed=["77"])
