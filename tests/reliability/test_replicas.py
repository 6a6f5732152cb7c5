"""Tests of several replicas on one input."""

import signal

from tests.reliability.conftest import Suspended
from tests.reliability.fleet import Fleet, assert_accounted, assert_all_settled
from tests.support.harness import until

MESSAGES = [b"message %d" % number for number in range(10_000)]
LATER = [b"later %d" % number for number in range(100)]


def test_a_suspended_replica_whose_registration_was_deleted_stops_when_it_goes_on(fleet: Fleet) -> None:
    """Another one has adopted its messages; what it still does loses and doubles nothing."""
    suspended = fleet.up()
    fleet.waiting()
    id = str(fleet.id_of(suspended))
    suspended.signal(signal.SIGSTOP)
    fleet.push_to_suspended(MESSAGES[:1])
    fleet.forget(suspended)
    fleet.up()
    fleet.push(MESSAGES[1:])
    fleet.wait_until_settled()
    suspended.signal(signal.SIGCONT)
    assert suspended.wait() == 0
    fleet.push(LATER)
    assert_all_settled(fleet, MESSAGES + LATER, killed=[id])


def test_a_replica_suspended_beyond_its_registrations_life_registers_anew(suspended: Suspended) -> None:
    """The fixture suspended it when the suite began, with a message in hand; the server's clock decides."""
    fleet, replica, id = suspended.fleet, suspended.replica, suspended.id
    until(lambda: not fleet.redis.exists(fleet.keys.instance(id)), timeout=40, every=0.1)
    fleet.wait_until_settled()
    assert_accounted(fleet, suspended.messages)
    replica.signal(signal.SIGCONT)
    until(lambda: fleet.id_of(replica) not in (None, id))
    suspended.other.stop()
    fleet.push(LATER)
    assert_all_settled(fleet, suspended.messages + LATER, killed=[id])
