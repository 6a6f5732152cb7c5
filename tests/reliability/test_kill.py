"""Killed at any time, as by the kernel for want of memory: what one had taken, another delivers."""

import random
import time
from collections import Counter

import pytest

from tests.harness import rounds
from tests.reliability.stage import Publisher, Stage, assert_accounted, assert_registry_clean

LONGEST_PEACE = 0.12
"""Seconds between two kills, at most; a replica is at work within about a third of that."""


@pytest.mark.fast
def test_either_of_two_replicas_killed_again_and_again_under_load_loses_and_doubles_nothing(
    stage: Stage, rng: random.Random
) -> None:
    killed, in_hand = set(), Counter[str]()
    rarely = stage.service.name == "mpush"  # has one in hand for no longer than a script: see test_held.py for more
    with Publisher(stage, rng) as publisher:
        replicas = [stage.start(), stage.start()]
        for _ in rounds(lambda: in_hand or rarely):
            time.sleep(rng.uniform(0, LONGEST_PEACE))  # not a wait for something: the time of the kill is chance
            which = rng.randrange(2)
            replicas[which].kill()
            killed.add(stage.id_of(replicas[which]))
            in_hand.update(stage.pending())
            stage.forget(replicas[which])
            replicas[which] = stage.start()
    stage.forget(*(replica for replica in stage.replicas if not replica.running))
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, publisher.accepted)
    assert_registry_clean(stage, killed=filter(None, killed))
    assert in_hand or rarely, "no kill met a message in hand: the test proves nothing"
