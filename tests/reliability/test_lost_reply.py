"""A connection that breaks, or a replica that dies, between a request and its reply."""

from collections.abc import Iterator

import pytest

from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.conftest import Staged
from tests.reliability.forkserver import Replica
from tests.reliability.proxy import Fault, Proxy
from tests.reliability.stage import Stage, assert_accounted, assert_registry_clean

EARLIER = [b"earlier %d" % number for number in range(50)]
LATER = [b"later %d" % number for number in range(50)]


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    with Proxy(server.port) as started:
        yield started


@pytest.fixture
def stage(staged: Staged, server: EmbeddedServer, proxy: Proxy) -> Stage:
    """Its replicas reach the server through ``proxy``; the test itself does not."""
    stage = staged(server)
    stage.redis.flushall()
    return stage


def meet(stage: Stage, proxy: Proxy, request: str, *, forward: bool) -> tuple[Replica, Fault]:
    """A replica whose request is stuck: the one that takes a message, or the transaction that settles it.

    With ``forward`` the server has done what was asked, and its reply is stuck.
    """
    if request == "take":
        fault = proxy.fault("BLMOVE", stage.service.source, forward=forward)
        replica = stage.up(redis=proxy.url)
        until(fault.met.is_set)
    else:
        replica = stage.up(redis=proxy.url)
        stage.waiting()
        fault = proxy.fault("EVAL", stage.service.outs[0], forward=forward)
    stage.push(EARLIER)
    until((fault.answered if forward else fault.met).is_set)
    return replica, fault


def assert_all_comes_out_once(stage: Stage) -> None:
    stage.wait_until_settled()
    stage.push(LATER)
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, EARLIER + LATER)


@pytest.mark.parametrize("server_too", [True, False], ids=["", "half-open"])
@pytest.mark.parametrize("forward", [True, False], ids=["reply", "request"])
@pytest.mark.parametrize("what", ["take", "settle"])
def test_a_request_or_reply_lost_with_its_connection_loses_and_doubles_nothing(
    stage: Stage, proxy: Proxy, what: str, forward: bool, server_too: bool
) -> None:
    _, fault = meet(stage, proxy, what, forward=forward)
    fault.cut(server_too=server_too)
    assert_all_comes_out_once(stage)
    assert_registry_clean(stage)


@pytest.mark.parametrize("forward", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("what", ["take", "settle"])
def test_killed_before_or_after_a_move_the_next_run_goes_on_where_this_one_was(
    stage: Stage, proxy: Proxy, what: str, forward: bool
) -> None:
    replica, fault = meet(stage, proxy, what, forward=forward)
    id = stage.id_of(replica)
    replica.kill()
    fault.cut()
    stage.forget(replica)
    stage.up()
    assert_all_comes_out_once(stage)
    assert_registry_clean(stage, killed=[str(id)])


def test_a_message_that_a_lost_connection_takes_later_is_not_left_in_pending(stage: Stage, proxy: Proxy) -> None:
    """The server has not noticed the loss, and hands the next message to nobody."""
    fault = proxy.fault("BLMOVE", stage.service.source, forward=True)
    stage.up(redis=proxy.url)
    until(fault.met.is_set)
    fault.cut(server_too=False)
    stage.waiting(2)
    stage.push([b"only"])
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, [b"only"])
