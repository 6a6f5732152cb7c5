"""Tests of an active vpush that hangs for longer than its lease, and resumes when another one is active."""

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.fleet import Publisher, assert_registry_clean
from tests.reliability.proxy import Proxy
from tests.reliability.two_servers import TwoServers, assert_once_in_order, numbered
from tests.support.harness import until

MESSAGES = numbered(300)
"""Several batches; a whole window is in flight when the link swallows the first of them."""


@pytest.fixture
def here() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def there() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def fleet(here: EmbeddedServer, there: EmbeddedServer, fork_server: ForkServer, tmp_path: Path) -> Iterator[TwoServers]:
    with TwoServers(here.url, there.url, fork_server, tmp_path) as started:
        yield started


def test_batches_of_a_hanging_replica_that_come_late_are_refused(fleet: TwoServers, there: EmbeddedServer) -> None:
    """They arrive when the next replica has contacted the target but sent nothing: only the fencing token differs."""
    with ExitStack() as ends:
        links = [ends.enter_context(Proxy(there.port)) for _ in range(2)]
        faults = [link.fault("EVALSHA", fleet.service.out, forward=False) for link in links]
        first = fleet.up(out_redis=links[0].url)
        fleet.waiting()
        fleet.push(MESSAGES)
        until(faults[0].met.is_set)
        until(lambda: len(fleet.pending()) and fleet.redis.llen(fleet.service.pending) >= 100)
        first.signal(signal.SIGSTOP)
        second = fleet.up(out_redis=links[1].url)
        until(faults[1].met.is_set)
        second.signal(signal.SIGSTOP)
        faults[0].late()
        until(faults[0].answered.is_set)
        assert fleet.arrived() == []
        first.signal(signal.SIGCONT)
        second.signal(signal.SIGCONT)
        for fault in faults:
            fault.cut()
        fleet.wait_until_settled()
        fleet.stop()
    assert_once_in_order(fleet, MESSAGES)
    assert_registry_clean(fleet)


def test_an_active_replica_suspended_beyond_its_lease_again_and_again_under_load_breaks_no_order(
    fleet: TwoServers, rng: random.Random
) -> None:
    fleet.up()
    fleet.up()
    with Publisher(fleet, rng) as publisher:
        for _ in range(8):
            active = fleet.until_active()
            fleet.until_more_arrives()
            active.signal(signal.SIGSTOP)
            fleet.until_active(other_than=active)
            if rng.random() < 0.5:
                fleet.until_more_arrives()
            active.signal(signal.SIGCONT)
            fleet.until_more_arrives()
    fleet.wait_until_settled()
    fleet.stop()
    assert_once_in_order(fleet, publisher.accepted)
    assert_registry_clean(fleet)


def test_a_lease_lost_while_the_source_says_nothing_is_taken_again(fleet: TwoServers, here: EmbeddedServer) -> None:
    """The run has to end but waits for a reply that never comes: the connection is cut anyway."""
    with Proxy(here.port) as link:
        fleet.up(redis=link.url)
        fleet.waiting()
        fault = link.fault("EVAL", fleet.service.pending, forward=True)
        fleet.push(MESSAGES)
        until(fault.answered.is_set)
        fleet.redis.hincrby(fleet.keys.lease, "token", 1)
        fleet.wait_until_settled(timeout=60)
        fleet.stop()
    assert_once_in_order(fleet, MESSAGES)
