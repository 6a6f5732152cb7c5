"""Tests of monitors that follow a dead one, stop, or are there first.

``tests/process/test_chaos.py`` kills a monitor and cuts it off at each command.
"""

import signal
import time

import pytest

from penstock.base.keys import pending_of
from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import (
    Dispatching,
    Fleet,
    QueueService,
    Watching,
    assert_done,
    assert_registry_clean,
    register,
)
from tests.support.harness import until

REPORTS = [b"%d" % number for number in range(10**9, 10**9 + 100)]
"""Requests; also the reports of workers that they are done."""
MANY = [b"%d" % number for number in range(10**9, 10**9 + 10_000)]


@pytest.fixture
def service() -> QueueService:
    return Watching()


@pytest.fixture
def dispatch(launch: Launch, fleet: Fleet, server: EmbeddedServer) -> Fleet:
    """Return mdispatch of the namespace that the monitors watch, once it has published its policy."""
    dispatch = launch(server, Dispatching())
    dispatch.up(message_timeout=1, message_expire=100, backoff="0.1")
    dispatch.waiting()
    return dispatch


def take(dispatch: Fleet) -> bool:
    """Take all delivered messages as workers would; return True."""
    while dispatch.redis.rpoplpush("work:out", "taken"):
        pass
    return True


def test_10000_reports_left_by_a_dead_monitor_take_effect_once(fleet: Fleet, dispatch: Fleet) -> None:
    dispatch.stop()
    dispatch.up(message_timeout=100, message_expire=1000)
    register(dispatch, MANY)
    fleet.redis.set(fleet.keys.counter, 7)
    fleet.redis.zadd(fleet.keys.owners, {"7": fleet.redis.time()[0]})
    fleet.redis.lpush(pending_of(fleet.service.pending, "7"), *MANY)
    fleet.up()
    fleet.up()
    assert_done(dispatch, fleet, len(MANY))
    fleet.stop()
    assert_registry_clean(fleet, killed=["7"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("tracked", [True, False], ids=["tracked", "nothing there"])
def test_a_monitor_stops_at_once_whether_there_is_something_to_watch_or_not(
    fleet: Fleet, request: pytest.FixtureRequest, number: int, tracked: bool
) -> None:
    if tracked:
        request.getfixturevalue("dispatch")
    monitor = fleet.up()
    if tracked:
        fleet.waiting(2)
    monitor.signal(number)
    assert monitor.wait(timeout=10) == 0
    assert_registry_clean(fleet)


def test_a_monitor_that_is_there_first_works_as_soon_as_there_is_something_to_watch(
    fleet: Fleet, request: pytest.FixtureRequest
) -> None:
    fleet.up()
    dispatch: Fleet = request.getfixturevalue("dispatch")
    dispatch.push(REPORTS[:2])
    until(lambda: dispatch.redis.llen("work:out") == 2)
    began = time.monotonic()
    fleet.push(REPORTS[:1])
    until(lambda: dispatch.redis.hget(dispatch.keys.metric("done"), "count") == b"1")
    assert time.monotonic() - began < 5
    until(lambda: take(dispatch) and dispatch.redis.hget(dispatch.keys.metric("timeout"), "count") == b"1")
