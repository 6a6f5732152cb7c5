"""Told to stop, at any time: what is in hand is settled, nothing is left behind, and the exit status is 0."""

import random
import signal
import time

import pytest

from tests.harness import rounds
from tests.reliability.stage import Publisher, Stage, assert_accounted, assert_registry_clean


def test_two_replicas_told_to_stop_at_random_times_under_load_leave_nothing_behind(
    stage: Stage, rng: random.Random
) -> None:
    with Publisher(stage, rng) as publisher:
        for _ in rounds():
            replicas = stage.listening(2)
            time.sleep(rng.uniform(0, 0.08))  # not a wait for something: the time of the signal is chance
            for replica in replicas:
                replica.signal(rng.choice([signal.SIGTERM] * 5 + [signal.SIGINT]))
            assert [replica.wait() for replica in replicas] == [0] * len(replicas)
            assert_registry_clean(stage)
    stage.up()
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, publisher.accepted)
    assert_registry_clean(stage)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_replica_that_waits_for_a_message_stops_at_once(stage: Stage, number: int) -> None:
    replica = stage.up(pop_timeout=30)
    stage.waiting()
    replica.signal(number)
    assert replica.wait(timeout=10) == 0
    assert_registry_clean(stage)


def test_a_second_signal_changes_nothing(stage: Stage) -> None:
    replica = stage.up()
    for _ in range(20):
        if replica.running:
            replica.signal(signal.SIGTERM)
    assert replica.wait() == 0
    assert_registry_clean(stage)
