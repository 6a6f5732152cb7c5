"""A key of the wrong type delivers to nobody, says which key it is, and is mended in place."""

from functools import partial

import pytest

from penstock.keys import pending_of
from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.conftest import Staged
from tests.reliability.stage import Stage, Watching, assert_accounted, assert_registry_clean

MESSAGES = [b"message %d" % number for number in range(500)]


def troubles(stage: Stage) -> int:
    return int(stage.redis.hget(stage.keys.metric("error"), "count") or 0)


def has_troubles(stage: Stage, count: int) -> bool:
    return troubles(stage) == count


def until_told(stage: Stage, key: str) -> None:
    """Wait for the error that names ``key``."""
    until(lambda: f"{key} holds a string" in (stage.redis.hget(stage.keys.metric("error"), "last") or b"").decode())
    until(lambda: f"{key} holds a string" in stage.replicas[-1].said())


def assert_mended(stage: Stage) -> None:
    """All that was pushed comes out once, by the process that was there before; the trouble counts once."""
    stage.wait_until_settled()
    assert troubles(stage) == 1
    assert stage.replicas[-1].running
    stage.stop()
    assert_accounted(stage, MESSAGES)
    assert_registry_clean(stage)


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_an_out_list_of_the_wrong_type_keeps_messages_from_all_until_it_is_mended(stage: Stage, which: int) -> None:
    wrong, *right = stage.service.outs[which:] + stage.service.outs[:which]
    stage.redis.set(wrong, "not a list")
    stage.up()
    stage.push(MESSAGES)
    until_told(stage, wrong)
    assert [stage.redis.exists(out) for out in right] == [0] * len(right)
    assert stage.redis.llen(stage.service.source) + sum(stage.pending().values()) == len(MESSAGES)
    stage.redis.delete(wrong)
    assert_mended(stage)


def test_trouble_counts_once_each_time_it_comes(stage: Stage) -> None:
    out = stage.service.outs[0]
    stage.up()
    for sooner in range(3):
        stage.waiting()
        stage.redis.set(out, "not a list")
        stage.push(MESSAGES)
        until(partial(has_troubles, stage, sooner + 1))
        stage.redis.delete(out)
        stage.wait_until_settled()
        assert stage.held(out) == MESSAGES
        stage.redis.delete(*stage.service.outs)
    assert troubles(stage) == 3


def test_an_in_list_of_the_wrong_type_is_told_and_mended(stage: Stage) -> None:
    stage.redis.set(stage.service.source, "not a list")
    stage.up()
    until_told(stage, stage.service.source)
    stage.redis.delete(stage.service.source)
    stage.push(MESSAGES)
    assert_mended(stage)


def test_a_pending_list_of_the_wrong_type_is_told_and_mended(stage: Stage) -> None:
    """It becomes one while the replica waits, with messages of a dead run to be adopted into it."""
    replica = stage.up()
    stage.waiting()
    own = pending_of(stage.service.pending, stage.id_of(replica))
    stage.redis.set(own, "not a list")
    stage.push(MESSAGES)
    until_told(stage, own)
    stage.redis.delete(own)
    assert_mended(stage)


@pytest.mark.parametrize("id", [None, "7"], ids=["bare", "of a dead run"])
def test_a_pending_list_of_the_wrong_type_that_would_be_adopted_is_told_and_mended(
    stage: Stage, id: str | None
) -> None:
    orphan = pending_of(stage.service.pending, id)
    if id:
        stage.redis.set(stage.keys.counter, id)
        stage.redis.zadd(stage.keys.owners, {id: stage.redis.time()[0]})
    stage.redis.set(orphan, "not a list")
    stage.up()
    stage.push(MESSAGES)
    until_told(stage, orphan)
    stage.redis.delete(orphan)
    stage.wait_until_settled()
    assert stage.replicas[-1].running
    stage.stop()
    assert_accounted(stage, MESSAGES)


@pytest.mark.parametrize("metric", ["taken", "delivered"])
def test_a_metric_of_the_wrong_type_is_told_and_mended(stage: Stage, metric: str) -> None:
    stage.redis.set(stage.keys.metric(metric), "not a hash")
    stage.up()
    stage.push(MESSAGES)
    until_told(stage, stage.keys.metric(metric))
    assert not any(map(stage.redis.exists, stage.service.outs))
    stage.redis.delete(stage.keys.metric(metric))
    assert_mended(stage)


KERNEL = {"ids": "list", "owners": "zset", "holdings": "hash", "id": "string", "metrics:start": "hash", "held": "hash"}


@pytest.mark.parametrize("key", KERNEL)
def test_a_key_of_the_kernel_of_the_wrong_type_is_told_and_mended(stage: Stage, key: str) -> None:
    wrong = f"{stage.keys.namespace}:{key}"
    stage.redis.zadd(wrong, {"not what it should be": 1}) if key != "owners" else stage.redis.set(wrong, "")
    (replica,) = stage.listening()
    stage.push(MESSAGES)
    kind = "string" if key == "owners" else "zset"
    until(lambda: f"{wrong} holds a {kind}, expected a {KERNEL[key]}" in replica.said())
    stage.redis.delete(wrong)
    stage.wait_until_settled()
    assert replica.running
    stage.stop()
    assert_accounted(stage, MESSAGES)
    assert_registry_clean(stage)


def test_a_policy_of_the_wrong_type_is_told_by_the_monitor(staged: Staged, server: EmbeddedServer) -> None:
    monitor = staged(server, Watching())
    monitor.redis.set("demo:policy", "not a hash")
    replica = monitor.up()
    until(lambda: "demo:policy holds a string, expected a hash" in replica.said())
    monitor.redis.delete("demo:policy")
    assert replica.running
    monitor.stop()


def test_a_counter_that_is_no_number_holds_up_no_message(stage: Stage) -> None:
    """It is for the audit to tell; a service that ended over it would move a batch at every start and count none."""
    counted = stage.service.ends_in[0]
    stage.up()
    stage.waiting()
    stage.redis.hset(stage.keys.metric(counted), "count", "many")
    stage.push(MESSAGES)
    stage.wait_until_settled()
    assert all(sorted(stage.held(out)) == sorted(MESSAGES) for out in stage.service.outs)
    stage.stop()
    assert stage.redis.hget(stage.keys.metric(counted), "count") == b"many"
