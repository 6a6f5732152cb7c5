"""Several replicas on one input."""

import signal

from tests.harness import until
from tests.reliability.conftest import Suspended
from tests.reliability.stage import Stage, assert_accounted, assert_registry_clean

MESSAGES = [b"message %d" % number for number in range(10_000)]
LATER = [b"later %d" % number for number in range(100)]


def test_three_replicas_on_one_input_deliver_10000_messages_once(stage: Stage) -> None:
    for _ in range(3):
        stage.up(batch=7)
    for start in range(0, len(MESSAGES), 100):
        stage.push(MESSAGES[start : start + 100])
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, MESSAGES)
    assert_registry_clean(stage)


def test_a_suspended_replica_whose_registration_was_deleted_stops_when_it_goes_on(stage: Stage) -> None:
    """Another one has adopted what it held; what it still does is neither lost nor doubled."""
    suspended = stage.up()
    stage.waiting()
    id = str(stage.id_of(suspended))
    suspended.signal(signal.SIGSTOP)
    stage.push_to_suspended(MESSAGES[:1])
    stage.forget(suspended)
    stage.up()
    stage.push(MESSAGES[1:])
    stage.wait_until_settled()
    suspended.signal(signal.SIGCONT)
    assert suspended.wait() == 0
    stage.push(LATER)
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, MESSAGES + LATER)
    assert_registry_clean(stage, killed=[id])


def test_a_replica_suspended_beyond_its_registrations_life_registers_anew(suspended: Suspended) -> None:
    """By the server's clock: the fixture suspended it when the suite began, with a message in hand."""
    stage, replica, id = suspended.stage, suspended.replica, suspended.id
    until(lambda: not stage.redis.exists(stage.keys.instance(id)), timeout=40, every=0.1)
    stage.wait_until_settled()
    assert_accounted(stage, suspended.messages)
    replica.signal(signal.SIGCONT)
    until(lambda: stage.id_of(replica) not in (None, id))
    suspended.other.stop()
    stage.push(LATER)
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, suspended.messages + LATER)
    assert_registry_clean(stage, killed=[id])
