"""Tests of either server going away and coming back, with or without its data."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.fleet import Publisher, assert_registry_clean
from tests.reliability.two_servers import TwoServers, assert_once_in_order, assert_same, numbered
from tests.support.harness import until

RESTARTS: Final = 20
Between = Callable[..., TwoServers]


@pytest.fixture
def between(fork_server: ForkServer, tmp_path: Path) -> Iterator[Between]:
    """Yield ``between(here, there, **settings)``, which returns a fleet of vpush from one server to the other."""
    with ExitStack() as ends:

        def started(here: EmbeddedServer, there: EmbeddedServer, **settings: Any) -> TwoServers:
            return ends.enter_context(TwoServers(here.url, there.url, fork_server, tmp_path, settings))

        yield started


@pytest.mark.parametrize("end", ["here", "there"])
def test_a_server_with_aof_that_restarts_20_times_under_load_loses_and_doubles_nothing(
    between: Between, rng: random.Random, end: str
) -> None:
    with EmbeddedServer(aof=True) as here, EmbeddedServer(aof=True) as there:
        fleet, server = between(here, there), here if end == "here" else there
        replicas = [fleet.up(), fleet.up()]
        with Publisher(fleet, rng) as publisher:
            for _ in range(RESTARTS):
                time.sleep(rng.uniform(0, 0.2))  # a random time for the restart, not a wait
                rng.choice([server.kill, server.stop])()
                server.start()
                fleet.until_more_arrives()
        fleet.wait_until_settled()
        assert all(replica.running for replica in replicas)
        fleet.stop()
        assert_once_in_order(fleet, publisher.accepted, publisher.unsure)
        assert_registry_clean(fleet)


def test_a_target_that_lost_its_data_ends_the_service_until_an_operator_decides(
    between: Between, rng: random.Random
) -> None:
    """Once the operator accepts the loss, all messages that wait at the source arrive once."""
    with EmbeddedServer() as here, EmbeddedServer() as there:
        fleet = between(here, there)
        replica = fleet.up()
        with Publisher(fleet, rng) as publisher:
            until(lambda: fleet.sequence() > 100)
            there.kill()
            there.start()
            assert replica.wait() == 1
        lost = fleet.sequence()
        assert fleet.arrived() == []
        assert f"HDEL {fleet.keys.sequence} source sequence" in replica.log_text()
        assert fleet.start().wait() == 1
        fleet.redis.hdel(fleet.keys.sequence, "source", "sequence")
        fleet.up()
        fleet.wait_until_settled()
        fleet.stop()
        assert_same(fleet.arrived(), publisher.accepted[lost:])
        assert (fleet.sequence(), fleet.ledger()["sequence"]) == (len(fleet.arrived()), str(len(fleet.arrived())))
        assert fleet.taken() == len(publisher.accepted)


def test_a_source_that_forgot_everything_is_served_again_from_its_first_message(
    between: Between, rng: random.Random
) -> None:
    with EmbeddedServer() as here, EmbeddedServer() as there:
        fleet = between(here, there)
        fleet.up()
        for turn in range(5):
            with Publisher(fleet, rng) as publisher:
                fleet.until_more_arrives()
                here.kill()
            here.start()
            new = [b"new %d: %d" % (turn, number) for number in range(200)]
            fleet.push(new)
            fleet.wait_until_settled()
            found = fleet.arrived()
            assert_same(found[-len(new) :], new)
            old = found[: -len(new)]
            assert_same(old, [*publisher.accepted, *publisher.unsure][: len(old)])
            fleet.there.delete(fleet.service.out)
        fleet.stop()
        assert_registry_clean(fleet)


def test_a_source_that_was_set_back_is_served_again_though_some_arrive_twice(between: Between) -> None:
    """As from an old snapshot: its sequence and fencing token are lower than those that the target knows."""
    with EmbeddedServer(save=("3600", "1000000")) as here, EmbeddedServer() as there:
        fleet = between(here, there)
        replica = fleet.up()
        early, late, new = numbered(100), numbered(100, first=100), numbered(100, first=200)
        fleet.push(early)
        fleet.wait_until_settled()
        fleet.redis.save()
        replica.kill()
        fleet.let_the_lease_run_out()
        replica = fleet.up()
        fleet.push(late)
        fleet.wait_until_settled()
        here.kill()
        here.start()
        fleet.push(new)
        fleet.wait_until_settled()
        assert_same(fleet.arrived(), [*early, *late, *new])
        assert "data was lost here" in replica.log_text()
        fleet.stop()
