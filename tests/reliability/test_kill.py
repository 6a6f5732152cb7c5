"""Killed at any time, as by the kernel for want of memory: what one had taken, another delivers."""

import random
import time
from collections import Counter

import pytest

from tests.harness import rounds
from tests.reliability.fleet import Fleet, Publisher, assert_accounted, assert_registry_clean

LONGEST_PEACE = 0.12
"""Seconds between two kills, at most; a replica is at work within about a third of that."""


@pytest.mark.fast
def test_either_of_two_replicas_killed_again_and_again_under_load_loses_and_doubles_nothing(
    fleet: Fleet, rng: random.Random
) -> None:
    killed, in_hand = set(), Counter[str]()
    rarely = fleet.service.name == "mpush"  # has one in hand for no longer than a script: see test_held.py for more
    with Publisher(fleet, rng) as publisher:
        replicas = [fleet.start(), fleet.start()]
        for _ in rounds(lambda: in_hand or rarely):
            time.sleep(rng.uniform(0, LONGEST_PEACE))  # not a wait for something: the time of the kill is chance
            which = rng.randrange(2)
            replicas[which].kill()
            killed.add(fleet.id_of(replicas[which]))
            in_hand.update(fleet.pending())
            fleet.forget(replicas[which])
            replicas[which] = fleet.start()
    fleet.forget(*(replica for replica in fleet.replicas if not replica.running))
    fleet.wait_until_settled()
    fleet.stop()
    assert_accounted(fleet, publisher.accepted)
    assert_registry_clean(fleet, killed=filter(None, killed))
    assert in_hand or rarely, "no kill met a message in hand: the test proves nothing"
