"""``ordered``: one active replica by lease, so that every list has all messages in the order they came."""

import json
import random
import signal
import time

from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.forkserver import Replica
from tests.reliability.proxy import Proxy
from tests.reliability.stage import Publisher, Stage, assert_accounted, assert_registry_clean


def active(stage: Stage) -> Replica | None:
    """The one that holds the lease."""
    owner = (stage.redis.hget(stage.keys.lease, "owner") or b"").decode()
    return next((each for each in stage.replicas if each.running and stage.id_of(each) == owner), None)


def until_active(stage: Stage, other_than: Replica | None = None, timeout: float = 60) -> Replica:
    """Wait until one is active, not ``other_than``."""
    until(lambda: active(stage) not in (None, other_than), timeout)
    found = active(stage)
    assert found
    return found


def assert_in_order(stage: Stage, messages: list[bytes]) -> None:
    for out in stage.service.outs:
        assert stage.held(out) == messages, out
    assert_accounted(stage, messages)


def turns(stage: Stage) -> int:
    """How many times one became active, each time with a token of its own, larger than all before."""
    spoken = [json.loads(line) for replica in stage.replicas for line in replica.said().splitlines()]
    tokens = [(line["timestamp"], line["token"]) for line in spoken if line["event"] == "active"]
    assert [token for _, token in sorted(tokens)] == sorted({token for _, token in tokens})
    return len(tokens)


def test_order_holds_when_the_active_replica_is_killed_again_and_again(stage: Stage, rng: random.Random) -> None:
    settings: dict[str, object] = {"ordered": True, "lease_expire": 2, "batch": 10}
    stage.up(**settings)
    stage.up(**settings)
    killed = []
    with Publisher(stage, rng) as publisher:
        for _ in range(4):
            leader = until_active(stage)
            stage.until_more_is_taken()
            time.sleep(rng.uniform(0, 0.1))  # not a wait for something: the time of the kill is chance
            killed.append(str(stage.id_of(leader)))
            leader.kill()
            stage.forget(leader)
            stage.up(**settings)
            until_active(stage, other_than=leader)
    stage.wait_until_settled()
    stage.stop()
    assert_in_order(stage, publisher.accepted)
    assert turns(stage) >= 3
    assert_registry_clean(stage, killed=killed)


def test_an_active_replica_that_hangs_is_replaced_and_fenced_off_when_it_goes_on(
    stage: Stage, rng: random.Random
) -> None:
    settings: dict[str, object] = {"ordered": True, "lease_expire": 2, "batch": 10}
    first, _ = stage.up(**settings), stage.up(**settings)
    with Publisher(stage, rng) as publisher:
        first = until_active(stage)
        stage.until_more_is_taken()
        first.signal(signal.SIGSTOP)
        second = until_active(stage, other_than=first)
        stage.until_more_is_taken()
        first.signal(signal.SIGCONT)
        stage.until_more_is_taken()
        assert second.stop() == 0
        assert until_active(stage) is first
        stage.until_more_is_taken()
    stage.wait_until_settled()
    stage.stop()
    assert_in_order(stage, publisher.accepted)
    assert turns(stage) >= 3
    assert_registry_clean(stage)


def test_what_a_hanging_replica_takes_is_delivered_by_the_one_that_replaced_it(stage: Stage) -> None:
    """Its wait goes on in the server; the message that ends it lies in the pending list that both share."""
    settings: dict[str, object] = {"ordered": True, "lease_expire": 2, "pop_timeout": 30}
    first = stage.up(**settings)
    stage.waiting()
    second = stage.up(**settings | {"pop_timeout": 5})
    first.signal(signal.SIGSTOP)
    assert until_active(stage, other_than=first) is second
    stage.waiting(2)
    stage.push([b"only"])
    stage.wait_until_settled()
    first.signal(signal.SIGCONT)
    stage.stop()
    assert_in_order(stage, [b"only"])
    assert_registry_clean(stage)


def test_a_move_that_comes_late_is_refused_once_another_replica_is_active(stage: Stage, server: EmbeddedServer) -> None:
    """It was on its way when its sender hung; the token that goes with it is an old one."""
    settings: dict[str, object] = {"ordered": True, "lease_expire": 2}
    messages = [b"message %d" % number for number in range(20)]
    with Proxy(server.port) as proxy:
        first = stage.up(**settings, redis=proxy.url)
        stage.waiting()
        fault = proxy.fault("EVAL", stage.service.outs[0], forward=False)
        stage.push(messages[:10])
        until(fault.met.is_set)
        first.signal(signal.SIGSTOP)
        second = stage.up(**settings)
        stage.wait_until_settled()
        stage.waiting()
        second.signal(signal.SIGSTOP)
        stage.push_to_suspended(messages[10:])
        fault.late()
        until(fault.answered.is_set)
        assert stage.held(stage.service.outs[0]) == messages[:10]
        first.signal(signal.SIGCONT)
        second.signal(signal.SIGCONT)
        fault.cut()
        stage.wait_until_settled()
        stage.stop()
    assert_in_order(stage, messages)
    assert_registry_clean(stage)


def test_a_standby_takes_over_at_once_when_the_active_one_is_stopped(stage: Stage, rng: random.Random) -> None:
    """Long before the lease would have run out."""
    settings: dict[str, object] = {"ordered": True, "lease_expire": 3_600}
    stage.up(**settings)
    stage.up(**settings)
    with Publisher(stage, rng) as publisher:
        for _ in range(3):
            leader = until_active(stage)
            stage.until_more_is_taken()
            assert leader.stop() == 0
            assert until_active(stage, timeout=10) is not leader
            stage.up(**settings)
    stage.wait_until_settled()
    stage.stop()
    assert_in_order(stage, publisher.accepted)
    assert turns(stage) == 4
    assert_registry_clean(stage)


def test_standbys_stop_at_once(stage: Stage) -> None:
    settings: dict[str, object] = {"ordered": True, "lease_expire": 3_600}
    stage.up(**settings)
    leader = until_active(stage)
    standby = stage.up(**settings)
    assert standby.stop(timeout=10) == 0
    assert stage.ids() == [stage.id_of(leader)]
    stage.stop()
    assert_registry_clean(stage)
