"""Tests of ``ordered``: one active replica by lease, so that every list has all messages in the order of arrival."""

import json
import random
import signal
import time

from penstock.testing.server import EmbeddedServer
from tests.reliability.fleet import Fleet, Publisher, assert_accounted, assert_registry_clean
from tests.reliability.proxy import Proxy
from tests.reliability.replica import Replica
from tests.support.harness import until


def active(fleet: Fleet) -> Replica | None:
    """Return the replica that holds the lease, or None."""
    owner = (fleet.redis.hget(fleet.keys.lease, "owner") or b"").decode()
    return next((each for each in fleet.replicas if each.running and fleet.id_of(each) == owner), None)


def until_active(fleet: Fleet, other_than: Replica | None = None, timeout: float = 60) -> Replica:
    """Wait until a replica other than ``other_than`` is active, and return it."""
    until(lambda: active(fleet) not in (None, other_than), timeout)
    found = active(fleet)
    assert found
    return found


def assert_in_order(fleet: Fleet, messages: list[bytes]) -> None:
    for out in fleet.service.outs:
        assert fleet.held(out) == messages, out
    assert_accounted(fleet, messages)


def activations(fleet: Fleet) -> int:
    """Return how often a replica became active; assert that each fencing token is larger than all before."""
    events = [json.loads(line) for replica in fleet.replicas for line in replica.log_text().splitlines()]
    tokens = [(line["timestamp"], line["token"]) for line in events if line["event"] == "active"]
    assert [token for _, token in sorted(tokens)] == sorted({token for _, token in tokens})
    return len(tokens)


def test_order_holds_when_the_active_replica_is_killed_again_and_again(fleet: Fleet, rng: random.Random) -> None:
    settings: dict[str, object] = {"ordered": True, "lease_expire": 2, "batch": 10}
    fleet.up(**settings)
    fleet.up(**settings)
    killed = []
    with Publisher(fleet, rng) as publisher:
        for _ in range(4):
            leader = until_active(fleet)
            fleet.until_more_is_taken()
            time.sleep(rng.uniform(0, 0.1))  # a random time for the kill, not a wait
            killed.append(str(fleet.id_of(leader)))
            leader.kill()
            fleet.forget(leader)
            fleet.up(**settings)
            until_active(fleet, other_than=leader)
    fleet.wait_until_settled()
    fleet.stop()
    assert_in_order(fleet, publisher.accepted)
    assert activations(fleet) >= 3
    assert_registry_clean(fleet, killed=killed)


def test_an_active_replica_that_hangs_is_replaced_and_fenced_off_when_it_goes_on(
    fleet: Fleet, rng: random.Random
) -> None:
    settings: dict[str, object] = {"ordered": True, "lease_expire": 2, "batch": 10}
    first, _ = fleet.up(**settings), fleet.up(**settings)
    with Publisher(fleet, rng) as publisher:
        first = until_active(fleet)
        fleet.until_more_is_taken()
        first.signal(signal.SIGSTOP)
        second = until_active(fleet, other_than=first)
        fleet.until_more_is_taken()
        first.signal(signal.SIGCONT)
        fleet.until_more_is_taken()
        assert second.stop() == 0
        assert until_active(fleet) is first
        fleet.until_more_is_taken()
    fleet.wait_until_settled()
    fleet.stop()
    assert_in_order(fleet, publisher.accepted)
    assert activations(fleet) >= 3
    assert_registry_clean(fleet)


def test_what_a_hanging_replica_takes_is_delivered_by_the_one_that_replaced_it(fleet: Fleet) -> None:
    """Its BLMOVE stays blocked in the server; the message that ends it goes to the pending list that both share."""
    settings: dict[str, object] = {"ordered": True, "lease_expire": 2, "pop_timeout": 30}
    first = fleet.up(**settings)
    fleet.waiting()
    second = fleet.up(**settings | {"pop_timeout": 5})
    first.signal(signal.SIGSTOP)
    assert until_active(fleet, other_than=first) is second
    fleet.waiting(2)
    fleet.push([b"only"])
    fleet.wait_until_settled()
    first.signal(signal.SIGCONT)
    fleet.stop()
    assert_in_order(fleet, [b"only"])
    assert_registry_clean(fleet)


def test_a_move_that_comes_late_is_refused_once_another_replica_is_active(fleet: Fleet, server: EmbeddedServer) -> None:
    """It was in flight when its sender was suspended; it carries an old fencing token."""
    settings: dict[str, object] = {"ordered": True, "lease_expire": 2}
    messages = [b"message %d" % number for number in range(20)]
    with Proxy(server.port) as proxy:
        first = fleet.up(**settings, redis=proxy.url)
        fleet.waiting()
        fault = proxy.fault("EVAL", fleet.service.outs[0], forward=False)
        fleet.push(messages[:10])
        until(fault.met.is_set)
        first.signal(signal.SIGSTOP)
        second = fleet.up(**settings)
        fleet.wait_until_settled()
        fleet.waiting()
        second.signal(signal.SIGSTOP)
        fleet.push_to_suspended(messages[10:])
        fault.late()
        until(fault.answered.is_set)
        assert fleet.held(fleet.service.outs[0]) == messages[:10]
        first.signal(signal.SIGCONT)
        second.signal(signal.SIGCONT)
        fault.cut()
        fleet.wait_until_settled()
        fleet.stop()
    assert_in_order(fleet, messages)
    assert_registry_clean(fleet)


def test_a_standby_takes_over_at_once_when_the_active_one_is_stopped(fleet: Fleet, rng: random.Random) -> None:
    """It does not wait for the lease to expire."""
    settings: dict[str, object] = {"ordered": True, "lease_expire": 3_600}
    fleet.up(**settings)
    fleet.up(**settings)
    with Publisher(fleet, rng) as publisher:
        for _ in range(3):
            leader = until_active(fleet)
            fleet.until_more_is_taken()
            assert leader.stop() == 0
            assert until_active(fleet, timeout=10) is not leader
            fleet.up(**settings)
    fleet.wait_until_settled()
    assert activations(fleet) == 4
    fleet.stop()  # the standby, if it is stopped last, may become active for a moment
    assert_in_order(fleet, publisher.accepted)
    assert_registry_clean(fleet)


def test_standbys_stop_at_once(fleet: Fleet) -> None:
    settings: dict[str, object] = {"ordered": True, "lease_expire": 3_600}
    fleet.up(**settings)
    leader = until_active(fleet)
    standby = fleet.up(**settings)
    assert standby.stop(timeout=60) == 0
    assert fleet.ids() == [fleet.id_of(leader)]
    fleet.stop()
    assert_registry_clean(fleet)
