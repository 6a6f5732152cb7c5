"""Tests of a key of the wrong type: nothing is delivered, the error names the key, and a repair needs no restart."""

from functools import partial

import pytest

from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Fleet, Watching, assert_accounted, assert_registry_clean
from tests.support.harness import until

MESSAGES = [b"message %d" % number for number in range(500)]


def errors(fleet: Fleet) -> int:
    return int(fleet.redis.hget(fleet.keys.metric("error"), "count") or 0)


def has_errors(fleet: Fleet, count: int) -> bool:
    return errors(fleet) == count


def until_error_names(fleet: Fleet, key: str) -> None:
    """Wait for the error that names ``key``."""
    until(lambda: f"{key} holds a string" in (fleet.redis.hget(fleet.keys.metric("error"), "last") or b"").decode())
    until(lambda: f"{key} holds a string" in fleet.replicas[-1].log_text())


def assert_mended(fleet: Fleet) -> None:
    """Assert that all messages are delivered once by the same process, and that the error was counted once."""
    fleet.wait_until_settled()
    assert errors(fleet) == 1
    assert fleet.replicas[-1].running
    fleet.stop()
    assert_accounted(fleet, MESSAGES)
    assert_registry_clean(fleet)


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_an_out_list_of_the_wrong_type_keeps_messages_from_all_until_it_is_mended(fleet: Fleet, which: int) -> None:
    wrong, *right = fleet.service.outs[which:] + fleet.service.outs[:which]
    fleet.redis.set(wrong, "not a list")
    fleet.up()
    fleet.push(MESSAGES)
    until_error_names(fleet, wrong)
    assert [fleet.redis.exists(out) for out in right] == [0] * len(right)
    assert fleet.redis.llen(fleet.service.source) + sum(fleet.pending().values()) == len(MESSAGES)
    fleet.redis.delete(wrong)
    assert_mended(fleet)


def test_an_error_counts_once_each_time_it_occurs(fleet: Fleet) -> None:
    out = fleet.service.outs[0]
    fleet.up()
    for sooner in range(3):
        fleet.waiting()
        fleet.redis.set(out, "not a list")
        messages = [b"%d %b" % (sooner, message) for message in MESSAGES]
        fleet.push(messages)
        until(partial(has_errors, fleet, sooner + 1))
        fleet.redis.delete(out)
        fleet.wait_until_settled()
        assert fleet.held(out) == messages
        fleet.redis.delete(*fleet.service.outs)
    assert errors(fleet) == 3


KERNEL = {"ids": "list", "owners": "zset", "holdings": "hash", "id": "string", "metrics:start": "hash", "held": "hash"}


@pytest.mark.parametrize("key", KERNEL)
def test_a_key_of_the_kernel_of_the_wrong_type_is_reported_and_repaired(fleet: Fleet, key: str) -> None:
    wrong = f"{fleet.keys.namespace}:{key}"
    fleet.redis.zadd(wrong, {"not what it should be": 1}) if key != "owners" else fleet.redis.set(wrong, "")
    (replica,) = fleet.listening()
    fleet.push(MESSAGES)
    kind = "string" if key == "owners" else "zset"
    until(lambda: f"{wrong} holds a {kind}, expected a {KERNEL[key]}" in replica.log_text())
    fleet.redis.delete(wrong)
    fleet.wait_until_settled()
    assert replica.running
    fleet.stop()
    assert_accounted(fleet, MESSAGES)
    assert_registry_clean(fleet)


def test_a_policy_of_the_wrong_type_is_reported_by_the_monitor(launch: Launch, server: EmbeddedServer) -> None:
    monitor = launch(server, Watching())
    monitor.redis.set("demo:policy", "not a hash")
    replica = monitor.up()
    until(lambda: "demo:policy holds a string, expected a hash" in replica.log_text())
    monitor.redis.delete("demo:policy")
    assert replica.running
    monitor.stop()


def test_a_counter_that_is_no_number_holds_up_no_message(fleet: Fleet) -> None:
    """The audit reports it; a service that stopped for it would move a batch at every start and count none."""
    counted = fleet.service.ends_in[0]
    fleet.up()
    fleet.waiting()
    fleet.redis.hset(fleet.keys.metric(counted), "count", "many")
    fleet.push(MESSAGES)
    fleet.wait_until_settled()
    assert all(sorted(fleet.held(out)) == sorted(MESSAGES) for out in fleet.service.outs)
    fleet.stop()
    assert fleet.redis.hget(fleet.keys.metric(counted), "count") == b"many"
