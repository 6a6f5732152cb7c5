"""Tests of replicas killed at any time, as by the OOM killer: another replica delivers the messages in hand."""

import random
import time
from collections import Counter

from tests.reliability.fleet import Fleet, Publisher, assert_all_settled
from tests.support.harness import rounds

MAX_INTERVAL = 0.12
"""Seconds between two kills, at most; a replica is at work within about a third of that."""


def test_either_of_two_replicas_killed_again_and_again_under_load_loses_and_doubles_nothing(
    fleet: Fleet, rng: random.Random
) -> None:
    killed, in_hand = set(), Counter[str]()
    rarely = fleet.service.name in ("mpush", "mlimit", "mbalance")  # in hand only during a script: see test_held.py
    with Publisher(fleet, rng) as publisher:
        replicas = [fleet.start(), fleet.start()]
        for _ in rounds(lambda: in_hand or rarely):
            time.sleep(rng.uniform(0, MAX_INTERVAL))  # a random time for the kill, not a wait
            which = rng.randrange(2)
            replicas[which].kill()
            killed.add(fleet.id_of(replicas[which]))
            in_hand.update(fleet.pending())
            fleet.forget(replicas[which])
            replicas[which] = fleet.start()
    fleet.forget(*(replica for replica in fleet.replicas if not replica.running))
    assert_all_settled(fleet, publisher.accepted, killed=filter(None, killed))
    assert in_hand or rarely, "no kill met a message in hand: the test proves nothing"
