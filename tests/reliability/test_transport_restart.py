"""Either server goes away and comes back, with what it had or without."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.forkserver import ForkServer
from tests.reliability.stage import Publisher, assert_registry_clean
from tests.reliability.two_servers import TwoServers, assert_once_in_order, assert_same, numbered

RESTARTS: Final = 20
Between = Callable[..., TwoServers]


@pytest.fixture
def between(fork_server: ForkServer, tmp_path: Path) -> Iterator[Between]:
    """``between(here, there, **settings)``: vpush from one server to the other."""
    with ExitStack() as ends:

        def started(here: EmbeddedServer, there: EmbeddedServer, **settings: Any) -> TwoServers:
            return ends.enter_context(TwoServers(here.url, there.url, fork_server, tmp_path, settings))

        yield started


@pytest.mark.parametrize("end", ["here", "there"])
def test_a_server_with_aof_that_restarts_20_times_under_load_loses_and_doubles_nothing(
    between: Between, rng: random.Random, end: str
) -> None:
    with EmbeddedServer(aof=True) as here, EmbeddedServer(aof=True) as there:
        stage, server = between(here, there), here if end == "here" else there
        replicas = [stage.up(), stage.up()]
        with Publisher(stage, rng) as publisher:
            for _ in range(RESTARTS):
                time.sleep(rng.uniform(0, 0.2))  # not a wait for something: the time of the restart is chance
                rng.choice([server.kill, server.stop])()
                server.start()
                stage.until_more_arrives()
        stage.wait_until_settled()
        assert all(replica.running for replica in replicas)
        stage.stop()
        assert_once_in_order(stage, publisher.accepted, publisher.unsure)
        assert_registry_clean(stage)


def test_a_target_that_lost_its_data_ends_the_service_until_an_operator_decides(
    between: Between, rng: random.Random
) -> None:
    """He goes on without what was lost: what waits here arrives, all of it and once."""
    with EmbeddedServer() as here, EmbeddedServer() as there:
        stage = between(here, there)
        replica = stage.up()
        with Publisher(stage, rng) as publisher:
            until(lambda: stage.sequence() > 100)
            there.kill()
            there.start()
            assert replica.wait() == 1
        lost = stage.sequence()
        assert stage.arrived() == []
        assert f"HDEL {stage.keys.sequence} source sequence" in replica.said()
        assert stage.start().wait() == 1
        stage.redis.hdel(stage.keys.sequence, "source", "sequence")
        stage.up()
        stage.wait_until_settled()
        stage.stop()
        assert_same(stage.arrived(), publisher.accepted[lost:])
        assert (stage.sequence(), stage.ledger()["sequence"]) == (len(stage.arrived()), str(len(stage.arrived())))
        assert stage.taken() == len(publisher.accepted)


def test_a_target_that_lost_its_data_ends_every_replica(between: Between) -> None:
    with EmbeddedServer() as here, EmbeddedServer() as there:
        stage = between(here, there)
        replicas = [stage.up(), stage.up()]
        stage.push(numbered(100))
        stage.wait_until_settled()
        there.kill()
        there.start()
        stage.push(numbered(100, first=100))
        assert [replica.wait() for replica in replicas] == [1, 1]
        assert stage.arrived() == []


def test_a_source_that_forgot_everything_is_served_again_from_its_first_message(
    between: Between, rng: random.Random
) -> None:
    with EmbeddedServer() as here, EmbeddedServer() as there:
        stage = between(here, there)
        stage.up()
        for turn in range(5):
            with Publisher(stage, rng) as publisher:
                stage.until_more_arrives()
                here.kill()
            here.start()
            new = [b"new %d: %d" % (turn, number) for number in range(200)]
            stage.push(new)
            stage.wait_until_settled()
            found = stage.arrived()
            assert_same(found[-len(new) :], new)
            old = found[: -len(new)]
            assert_same(old, [*publisher.accepted, *publisher.unsure][: len(old)])
            stage.there.delete(stage.service.out)
        stage.stop()
        assert_registry_clean(stage)


def test_a_source_that_was_set_back_is_served_again_though_some_arrive_twice(between: Between) -> None:
    """As from an old snapshot: its sequence and its fencing token are smaller than those that the target knows."""
    with EmbeddedServer(save=("3600", "1000000")) as here, EmbeddedServer() as there:
        stage = between(here, there)
        replica = stage.up()
        early, late, new = numbered(100), numbered(100, first=100), numbered(100, first=200)
        stage.push(early)
        stage.wait_until_settled()
        stage.redis.save()
        replica.kill()
        stage.let_the_lease_run_out()
        replica = stage.up()
        stage.push(late)
        stage.wait_until_settled()
        here.kill()
        here.start()
        stage.push(new)
        stage.wait_until_settled()
        assert_same(stage.arrived(), [*early, *late, *new])
        assert "data was lost here" in replica.said()
        stage.stop()
