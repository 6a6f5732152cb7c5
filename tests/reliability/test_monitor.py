"""Tests of monitors that follow a dead one, or meet a key of the wrong type: each report takes effect once.

``tests/process/test_chaos.py`` kills a monitor and cuts it off at each command.
"""

import asyncio
import random
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
    audited,
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


@pytest.mark.parametrize(
    "key", ["demo:dead", "demo:message:deadlines", "demo:metrics:timeout", "demo:done", "work:out"]
)
def test_a_key_of_the_wrong_type_is_named_and_what_is_due_waits_until_it_is_mended(
    fleet: Fleet, dispatch: Fleet, key: str
) -> None:
    dispatch.push(REPORTS)
    until(lambda: dispatch.redis.zcard(dispatch.keys.deadlines) == len(REPORTS))
    take(dispatch)
    if fleet.redis.exists(key):
        fleet.redis.rename(key, "kept")
    fleet.redis.set(key, "not what it should be")
    monitor = fleet.up()
    until(lambda: f"{key} holds a string" in monitor.log_text())
    until(lambda: f"{key} holds a string" in (fleet.redis.hget(fleet.keys.metric("error"), "last") or b"").decode())
    fleet.redis.delete(key)
    if fleet.redis.exists("kept"):
        fleet.redis.rename("kept", key)
    until(lambda: take(dispatch) and dispatch.redis.llen(dispatch.keys.dead) == len(REPORTS))
    assert dispatch.metric("dead") == {"count": len(REPORTS), "timeout": len(REPORTS)}
    assert dispatch.redis.llen("taken") == 3 * len(REPORTS)
    assert monitor.running
    fleet.stop()
    assert fleet.redis.hget(fleet.keys.metric("error"), "count") == b"1"
    assert asyncio.run(audited(dispatch)) == []
    assert_registry_clean(fleet)


def test_scripts_forgotten_again_and_again_lose_and_double_nothing(
    fleet: Fleet, dispatch: Fleet, rng: random.Random
) -> None:
    fleet.up()
    fleet.up()
    for start in range(0, 5_000, 50):
        dispatch.push(MANY[start : start + 50])
        fleet.redis.script_flush()
        fleet.push(MANY[start : start + 25])  # the others run out of attempts
        time.sleep(rng.uniform(0, 0.01))  # a random time for the flush, not a wait
    under_way = dispatch.keys.deadlines, dispatch.keys.delayed
    until(lambda: take(dispatch) and not dispatch.redis.exists(*under_way), timeout=40)
    fleet.wait_until_settled()
    count = {name: int(dispatch.redis.hget(dispatch.keys.metric(name), "count") or 0) for name in ("done", "dead")}
    late = dispatch.metric("done:late").get("completed", 0)
    assert count["done"] + late + count["dead"] == 5_000
    assert count["dead"] >= 2_500
    assert asyncio.run(audited(dispatch)) == []


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
