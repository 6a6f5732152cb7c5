"""Killed at any time, as by the kernel for want of memory: what one had taken, another delivers."""

import random
import time

from tests.reliability.stage import Publisher, Stage, assert_accounted, assert_registry_clean

KILLS = 200
LONGEST_PEACE = 0.12
"""Seconds between two kills, at most; a replica is at work within about a third of that."""


def test_either_of_two_replicas_killed_200_times_under_load_loses_and_doubles_nothing(
    stage: Stage, rng: random.Random
) -> None:
    killed, in_hand = set(), 0
    with Publisher(stage, rng) as publisher:
        replicas = [stage.start(), stage.start()]
        for _ in range(KILLS):
            time.sleep(rng.uniform(0, LONGEST_PEACE))  # not a wait for something: the time of the kill is chance
            which = rng.randrange(2)
            replicas[which].kill()
            killed.add(stage.id_of(replicas[which]))
            in_hand += bool(stage.pending())
            stage.forget(replicas[which])
            replicas[which] = stage.start()
    stage.forget(*(replica for replica in stage.replicas if not replica.running))
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, publisher.accepted)
    assert_registry_clean(stage, killed=filter(None, killed))
    if stage.service.name != "mpush":  # which has one in hand for no longer than a script: see test_held.py for more
        assert in_hand, "no kill met a message in hand: the test proves nothing"
