"""Tests of vpush replicas killed at any time: another one sends the messages in flight, once and in order."""

import random
import time
from pathlib import Path
from typing import Final

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.fleet import Publisher, assert_registry_clean
from tests.reliability.two_servers import TwoServers, assert_once_in_order
from tests.support.harness import rounds

MIN_IN_FLIGHT: Final = 4
"""Minimum number of kills with messages in flight."""
MAX_INTERVAL: Final = 0.25
"""Seconds between two kills, at most; a standby looks at the lease three times a second."""


def test_any_of_three_replicas_killed_again_and_again_under_load_loses_and_doubles_nothing(
    fork_server: ForkServer, tmp_path: Path, rng: random.Random
) -> None:
    killed, met, active = set(), list[int](), 0
    with (
        EmbeddedServer() as here,
        EmbeddedServer() as there,
        TwoServers(here.url, there.url, fork_server, tmp_path) as fleet,
    ):
        with Publisher(fleet, rng) as publisher:
            replicas = [fleet.start() for _ in range(3)]
            for _ in rounds(lambda: len(met) >= MIN_IN_FLIGHT):
                time.sleep(rng.uniform(0, MAX_INTERVAL))  # a random time for the kill, not a wait
                which = rng.randrange(3)
                was_active = fleet.active() is replicas[which]
                replicas[which].kill()
                killed.add(fleet.id_of(replicas[which]))
                if was_active:
                    active += 1
                    met.extend([*fleet.pending().values()][:1])
                    fleet.let_the_lease_run_out()
                fleet.forget(replicas[which])
                replicas[which] = fleet.start()
        fleet.forget(*(replica for replica in fleet.replicas if not replica.running))
        fleet.wait_until_settled()
        fleet.stop()
        print(f"{len(publisher.accepted)} messages; {active} kills of the active one, {len(met)} with some under way")
        assert_once_in_order(fleet, publisher.accepted)
        assert_registry_clean(fleet, killed=filter(None, killed))
        assert len(met) >= MIN_IN_FLIGHT, "too few kills met messages on their way: the test proves nothing"


def test_a_standby_takes_over_from_a_killed_replica_when_its_lease_has_run_out(
    fork_server: ForkServer, tmp_path: Path, rng: random.Random
) -> None:
    """The test removes neither the lease nor the registration."""
    with (
        EmbeddedServer() as here,
        EmbeddedServer() as there,
        TwoServers(here.url, there.url, fork_server, tmp_path) as fleet,
    ):
        with Publisher(fleet, rng) as publisher:
            fleet.up()
            for _ in range(5):
                fleet.up()
                active = fleet.until_active()
                fleet.until_more_arrives()
                active.kill()
                fleet.until_active(other_than=active)
                fleet.until_more_arrives()
        fleet.wait_until_settled()
        fleet.stop()
        assert_once_in_order(fleet, publisher.accepted)
