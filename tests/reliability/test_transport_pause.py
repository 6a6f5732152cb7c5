"""An active vpush that hangs for longer than its lease, and goes on when another one is active."""

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.forkserver import ForkServer
from tests.reliability.proxy import Proxy
from tests.reliability.stage import Publisher, assert_registry_clean
from tests.reliability.two_servers import TwoServers, assert_once_in_order, assert_same, numbered

MESSAGES = numbered(300)
"""Some batches; those of a whole window are on their way when the link swallows the first of them."""


@pytest.fixture
def here() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def there() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def stage(here: EmbeddedServer, there: EmbeddedServer, fork_server: ForkServer, tmp_path: Path) -> Iterator[TwoServers]:
    with TwoServers(here.url, there.url, fork_server, tmp_path) as started:
        yield started


def test_batches_of_a_hanging_replica_that_come_late_are_refused(stage: TwoServers, there: EmbeddedServer) -> None:
    """They come when the next one has met the other server, and has sent nothing: only the token tells them apart."""
    with ExitStack() as ends:
        links = [ends.enter_context(Proxy(there.port)) for _ in range(2)]
        faults = [link.fault("EVALSHA", stage.service.out, forward=False) for link in links]
        first = stage.up(out_redis=links[0].url)
        stage.waiting()
        stage.push(MESSAGES)
        until(faults[0].met.is_set)
        until(lambda: len(stage.pending()) and stage.redis.llen(stage.service.pending) >= 100)
        first.signal(signal.SIGSTOP)
        second = stage.up(out_redis=links[1].url)
        until(faults[1].met.is_set)
        second.signal(signal.SIGSTOP)
        faults[0].late()
        until(faults[0].answered.is_set)
        assert stage.arrived() == []
        first.signal(signal.SIGCONT)
        second.signal(signal.SIGCONT)
        for fault in faults:
            fault.cut()
        stage.wait_until_settled()
        stage.stop()
    assert_once_in_order(stage, MESSAGES)
    assert_registry_clean(stage)


def test_batches_of_a_hanging_replica_that_come_after_those_of_the_next_one_are_refused(
    stage: TwoServers, there: EmbeddedServer
) -> None:
    with Proxy(there.port) as link:
        fault = link.fault("EVALSHA", stage.service.out, forward=False)
        first = stage.up(out_redis=link.url)
        stage.waiting()
        stage.push(MESSAGES)
        until(fault.met.is_set)
        first.signal(signal.SIGSTOP)
        stage.up()
        stage.wait_until_settled()
        fault.late()
        until(fault.answered.is_set)
        assert_same(stage.arrived(), MESSAGES)
        first.signal(signal.SIGCONT)
        fault.cut()
        stage.stop()
    assert_once_in_order(stage, MESSAGES)
    assert_registry_clean(stage)


def test_an_active_replica_suspended_beyond_its_lease_again_and_again_under_load_breaks_no_order(
    stage: TwoServers, rng: random.Random
) -> None:
    stage.up()
    stage.up()
    with Publisher(stage, rng) as publisher:
        for _ in range(8):
            active = stage.until_active()
            stage.until_more_arrives()
            active.signal(signal.SIGSTOP)
            stage.until_active(other_than=active)
            if rng.random() < 0.5:
                stage.until_more_arrives()
            active.signal(signal.SIGCONT)
            stage.until_more_arrives()
    stage.wait_until_settled()
    stage.stop()
    assert_once_in_order(stage, publisher.accepted)
    assert_registry_clean(stage)


def test_a_lease_lost_while_the_source_says_nothing_is_taken_again(stage: TwoServers, here: EmbeddedServer) -> None:
    """The run shall end, and waits for a reply that never comes: the connection is cut all the same."""
    with Proxy(here.port) as link:
        stage.up(redis=link.url)
        stage.waiting()
        fault = link.fault("EVAL", stage.service.pending, forward=True)
        stage.push(MESSAGES)
        until(fault.answered.is_set)
        stage.redis.hincrby(stage.keys.lease, "token", 1)
        stage.wait_until_settled(timeout=60)
        stage.stop()
    assert_once_in_order(stage, MESSAGES)


def test_batches_that_come_late_after_their_own_sender_has_sent_them_again_have_no_effect(
    stage: TwoServers, there: EmbeddedServer
) -> None:
    """The link was silent for longer than ``linkTimeout``; the token is the same, only the numbers tell them apart."""
    with Proxy(there.port) as link:
        fault = link.fault("EVALSHA", stage.service.out, forward=False)
        stage.up(out_redis=link.url)
        stage.waiting()
        stage.push(MESSAGES)
        stage.wait_until_settled()
        assert fault.met.is_set()
        fault.late()
        until(fault.answered.is_set)
        assert_same(stage.arrived(), MESSAGES)
        stage.stop()
    assert_once_in_order(stage, MESSAGES)
