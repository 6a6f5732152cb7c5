"""Monitors that are killed, or cut off, or meet a wrong key: what workers said has its effect once, if late."""

import asyncio
import random
import signal
import time

import pytest

from penstock.keys import pending_of
from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.conftest import Staged
from tests.reliability.forkserver import Replica
from tests.reliability.proxy import Fault, Proxy
from tests.reliability.stage import Dispatching, QueueService, Stage, Watching, assert_registry_clean, audited

WORDS = [b"%d" % number for number in range(10**9, 10**9 + 100)]
"""Requests, and what workers say when they are done with them."""
MANY = [b"%d" % number for number in range(10**9, 10**9 + 10_000)]


@pytest.fixture
def service() -> QueueService:
    return Watching()


@pytest.fixture
def dispatch(staged: Staged, stage: Stage, server: EmbeddedServer) -> Stage:
    """mdispatch of the namespace that the monitors watch, which has told its policy."""
    dispatch = staged(server, Dispatching())
    dispatch.up(message_timeout=1, message_expire=100, backoff="0.1")
    dispatch.waiting()
    return dispatch


def register(dispatch: Stage, messages: list[bytes]) -> None:
    """Have ``messages`` tracked, and taken by workers."""
    dispatch.push(messages)
    until(lambda: dispatch.redis.zcard(dispatch.keys.deadlines) == len(messages))
    dispatch.redis.delete("work:out")


def take(dispatch: Stage) -> bool:
    """Have workers take all that was delivered; return True."""
    while dispatch.redis.rpoplpush("work:out", "taken"):
        pass
    return True


def assert_done(dispatch: Stage, stage: Stage, count: int) -> None:
    """So many messages are done, none twice, and nothing of them is left."""
    stage.wait_until_settled()
    assert dispatch.redis.hget(dispatch.keys.metric("done"), "count") == b"%d" % count
    assert not dispatch.redis.exists(dispatch.keys.metric("done:unknown"), dispatch.keys.deadlines)
    assert asyncio.run(audited(dispatch)) == []


def meet(stage: Stage, proxy: Proxy, request: str, *, forward: bool) -> tuple[Replica, Fault]:
    """A monitor whose request is stuck: the one that takes a word, or the transaction that carries it out."""
    if request == "take":
        fault = proxy.fault("BLMOVE", stage.service.source, forward=forward)
        replica = stage.up(redis=proxy.url)
        until(fault.met.is_set)
    else:
        replica = stage.up(redis=proxy.url)
        stage.waiting(2)
        fault = proxy.fault("EVAL", stage.service.source, forward=forward)
    stage.push(WORDS[:50])
    until((fault.answered if forward else fault.met).is_set)
    return replica, fault


@pytest.mark.parametrize("killed", [False, True], ids=["cut off", "killed"])
@pytest.mark.parametrize("forward", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("what", ["take", "settle"])
def test_what_workers_said_has_its_effect_once_if_its_monitor_fails_at_the_worst_moment(
    stage: Stage, dispatch: Stage, server: EmbeddedServer, what: str, forward: bool, killed: bool
) -> None:
    dispatch.stop()
    dispatch.up(message_timeout=100, message_expire=1000)
    register(dispatch, WORDS)
    ids = []
    with Proxy(server.port) as proxy:
        replica, fault = meet(stage, proxy, what, forward=forward)
        if killed:
            ids.append(str(stage.id_of(replica)))
            replica.kill()
            stage.forget(replica)
        fault.cut()
        if killed:
            stage.up()
        stage.wait_until_settled()
        stage.push(WORDS[50:])
        assert_done(dispatch, stage, len(WORDS))
        stage.stop()
    assert_registry_clean(stage, killed=ids)


def test_10000_words_that_a_dead_monitor_has_left_are_carried_out_once(stage: Stage, dispatch: Stage) -> None:
    dispatch.stop()
    dispatch.up(message_timeout=100, message_expire=1000)
    register(dispatch, MANY)
    stage.redis.set(stage.keys.counter, 7)
    stage.redis.zadd(stage.keys.owners, {"7": stage.redis.time()[0]})
    stage.redis.lpush(pending_of(stage.service.pending, "7"), *MANY)
    stage.up()
    stage.up()
    assert_done(dispatch, stage, len(MANY))
    stage.stop()
    assert_registry_clean(stage, killed=["7"])


def test_a_monitor_that_lives_adopts_what_one_that_dies_later_has_left(stage: Stage, dispatch: Stage) -> None:
    register(dispatch, WORDS[:1])
    stage.up()
    stage.waiting(2)
    stage.redis.zadd(stage.keys.owners, {"77": stage.redis.time()[0]})
    stage.redis.lpush(pending_of(stage.service.pending, "77"), "nobody's")
    until(lambda: dispatch.metric("done:unknown") == {"count": 1})
    stage.stop()
    assert_registry_clean(stage, killed=["77"])


@pytest.mark.parametrize(
    "key", ["demo:dead", "demo:message:deadlines", "demo:metrics:timeout", "demo:done", "work:out"]
)
def test_a_key_of_the_wrong_type_is_named_and_what_is_due_waits_until_it_is_mended(
    stage: Stage, dispatch: Stage, key: str
) -> None:
    dispatch.push(WORDS)
    until(lambda: dispatch.redis.zcard(dispatch.keys.deadlines) == len(WORDS))
    take(dispatch)
    if stage.redis.exists(key):
        stage.redis.rename(key, "kept")
    stage.redis.set(key, "not what it should be")
    monitor = stage.up()
    until(lambda: f"{key} holds a string" in monitor.said())
    until(lambda: f"{key} holds a string" in (stage.redis.hget(stage.keys.metric("error"), "last") or b"").decode())
    stage.redis.delete(key)
    if stage.redis.exists("kept"):
        stage.redis.rename("kept", key)
    until(lambda: take(dispatch) and dispatch.redis.llen(dispatch.keys.dead) == len(WORDS))
    assert dispatch.metric("dead") == {"count": len(WORDS), "timeout": len(WORDS)}
    assert dispatch.redis.llen("taken") == 3 * len(WORDS)
    assert monitor.running
    stage.stop()
    assert stage.redis.hget(stage.keys.metric("error"), "count") == b"1"
    assert asyncio.run(audited(dispatch)) == []
    assert_registry_clean(stage)


def test_scripts_forgotten_again_and_again_lose_and_double_nothing(
    stage: Stage, dispatch: Stage, rng: random.Random
) -> None:
    stage.up()
    stage.up()
    for start in range(0, 5_000, 50):
        dispatch.push(MANY[start : start + 50])
        stage.redis.script_flush()
        stage.push(MANY[start : start + 25])  # of the others the attempts run out
        time.sleep(rng.uniform(0, 0.01))  # not a wait for something: the time of the flush is chance
    under_way = dispatch.keys.deadlines, dispatch.keys.delayed
    until(lambda: take(dispatch) and not dispatch.redis.exists(*under_way), timeout=40)
    stage.wait_until_settled()
    count = {name: int(dispatch.redis.hget(dispatch.keys.metric(name), "count") or 0) for name in ("done", "dead")}
    late = dispatch.metric("done:late").get("completed", 0)
    assert count["done"] + late + count["dead"] == 5_000
    assert count["dead"] >= 2_500
    assert asyncio.run(audited(dispatch)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("tracked", [True, False], ids=["tracked", "nothing there"])
def test_a_monitor_stops_at_once_whether_there_is_something_to_watch_or_not(
    stage: Stage, request: pytest.FixtureRequest, number: int, tracked: bool
) -> None:
    if tracked:
        request.getfixturevalue("dispatch")
    monitor = stage.up()
    if tracked:
        stage.waiting(2)
    monitor.signal(number)
    assert monitor.wait(timeout=10) == 0
    assert_registry_clean(stage)


def test_a_monitor_that_is_there_first_works_as_soon_as_there_is_something_to_watch(
    stage: Stage, request: pytest.FixtureRequest
) -> None:
    stage.up()
    dispatch: Stage = request.getfixturevalue("dispatch")
    dispatch.push(WORDS[:2])
    until(lambda: dispatch.redis.llen("work:out") == 2)
    began = time.monotonic()
    stage.push(WORDS[:1])
    until(lambda: dispatch.redis.hget(dispatch.keys.metric("done"), "count") == b"1")
    assert time.monotonic() - began < 5
    until(lambda: take(dispatch) and dispatch.redis.hget(dispatch.keys.metric("timeout"), "count") == b"1")
