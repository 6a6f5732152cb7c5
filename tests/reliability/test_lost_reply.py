"""Tests of a connection that breaks, or a replica that dies, between a request and its reply."""

from collections.abc import Iterator

import pytest

from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Fleet, assert_accounted, assert_registry_clean
from tests.reliability.proxy import Fault, Proxy
from tests.reliability.replica import Replica
from tests.support.harness import until

EARLIER = [b"earlier %d" % number for number in range(50)]
LATER = [b"later %d" % number for number in range(50)]


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    with Proxy(server.port) as started:
        yield started


@pytest.fixture
def fleet(launch: Launch, server: EmbeddedServer, proxy: Proxy) -> Fleet:
    """Return a fleet for replicas that connect through ``proxy``; the test itself does not."""
    fleet = launch(server)
    fleet.redis.flushall()
    return fleet


def block_at(fleet: Fleet, proxy: Proxy, request: str, *, forward: bool) -> tuple[Replica, Fault]:
    """Return a replica whose request is stuck: the one that takes a message, or the script that settles it.

    With ``forward``, the server has executed the request and the reply is stuck.
    """
    if request == "take":
        fault = proxy.fault("BLMOVE", fleet.service.source, forward=forward)
        replica = fleet.up(redis=proxy.url)
        until(fault.met.is_set)
    else:
        replica = fleet.up(redis=proxy.url)
        fleet.waiting()
        fault = proxy.fault("EVAL", fleet.service.outs[0], forward=forward)
    fleet.push(EARLIER)
    until((fault.answered if forward else fault.met).is_set)
    return replica, fault


def assert_all_comes_out_once(fleet: Fleet) -> None:
    fleet.wait_until_settled()
    fleet.push(LATER)
    fleet.wait_until_settled()
    fleet.stop()
    assert_accounted(fleet, EARLIER + LATER)


@pytest.mark.parametrize("server_too", [True, False], ids=["", "half-open"])
@pytest.mark.parametrize("forward", [True, False], ids=["reply", "request"])
@pytest.mark.parametrize("what", ["take", "settle"])
def test_a_request_or_reply_lost_with_its_connection_loses_and_doubles_nothing(
    fleet: Fleet, proxy: Proxy, what: str, forward: bool, server_too: bool
) -> None:
    _, fault = block_at(fleet, proxy, what, forward=forward)
    fault.cut(server_too=server_too)
    assert_all_comes_out_once(fleet)
    assert_registry_clean(fleet)


@pytest.mark.parametrize("forward", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("what", ["take", "settle"])
def test_killed_before_or_after_a_move_the_next_run_goes_on_where_this_one_was(
    fleet: Fleet, proxy: Proxy, what: str, forward: bool
) -> None:
    replica, fault = block_at(fleet, proxy, what, forward=forward)
    id = fleet.id_of(replica)
    replica.kill()
    fault.cut()
    fleet.forget(replica)
    fleet.up()
    assert_all_comes_out_once(fleet)
    assert_registry_clean(fleet, killed=[str(id)])


def test_a_message_that_a_lost_connection_takes_later_is_not_left_in_pending(fleet: Fleet, proxy: Proxy) -> None:
    """The server has not noticed the loss and moves the next message for the dead connection."""
    fault = proxy.fault("BLMOVE", fleet.service.source, forward=True)
    fleet.up(redis=proxy.url)
    until(fault.met.is_set)
    fault.cut(server_too=False)
    fleet.waiting(2)
    fleet.push([b"only"])
    fleet.wait_until_settled()
    fleet.stop()
    assert_accounted(fleet, [b"only"])
