"""Tests of a stop at any time: messages in hand are settled, nothing is left behind, and the exit status is 0."""

import random
import signal
import subprocess
import sys
import time

import pytest

from tests.reliability.fleet import Fleet, Publisher, assert_all_settled, assert_registry_clean
from tests.support.harness import rounds


def test_two_replicas_stopped_at_random_times_under_load_leave_nothing_behind(fleet: Fleet, rng: random.Random) -> None:
    with Publisher(fleet, rng) as publisher:
        for _ in rounds():
            replicas = fleet.listening(2)
            time.sleep(rng.uniform(0, 0.08))  # a random time for the signal, not a wait
            for replica in replicas:
                replica.signal(rng.choice([signal.SIGTERM] * 5 + [signal.SIGINT]))
            assert [replica.wait() for replica in replicas] == [0] * len(replicas)
            assert_registry_clean(fleet)
    fleet.up()
    assert_all_settled(fleet, publisher.accepted)


def test_all_replicas_stopped_by_their_registrations_under_load_leave_nothing_behind(
    fleet: Fleet, rng: random.Random
) -> None:
    command = [sys.executable, "-m", "penstock", "stop", fleet.service.namespace, "--all", "--redis", fleet.url]
    with Publisher(fleet, rng) as publisher:
        for _ in rounds():
            replicas = fleet.listening(3)
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            assert said.count("has deregistered") == 3
            assert [replica.wait() for replica in replicas] == [0] * len(replicas)
            assert_registry_clean(fleet)
    fleet.up()
    assert_all_settled(fleet, publisher.accepted)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_replica_that_waits_for_a_message_stops_at_once(fleet: Fleet, number: int) -> None:
    replica = fleet.up(pop_timeout=30)
    fleet.waiting()
    replica.signal(number)
    assert replica.wait(timeout=10) == 0
    assert_registry_clean(fleet)


def test_a_second_signal_changes_nothing(fleet: Fleet) -> None:
    replica = fleet.up()
    for _ in range(20):
        if replica.running:
            replica.signal(signal.SIGTERM)
    assert replica.wait() == 0
    assert_registry_clean(fleet)
