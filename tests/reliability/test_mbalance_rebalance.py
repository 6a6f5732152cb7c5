"""A list whose worker is dead is emptied once and in order, whatever happens to the balancer or its connection."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Balancing, Fleet, QueueService, audited
from tests.reliability.proxy import Proxy
from tests.support.harness import until

DEAD, ALIVE = "work:out0", "work:out1"
MESSAGES = [b"%d" % number for number in range(100)]


@pytest.fixture
def service() -> QueueService:
    return Balancing(outs=(DEAD, ALIVE))


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    with Proxy(server.port) as started:
        yield started


@pytest.fixture
def fleet(launch: Launch, server: EmbeddedServer) -> Fleet:
    """Return a fleet that moves at most 10 messages at a time; both lists have a worker."""
    fleet = launch(server, registrations=json.dumps([f"{DEAD}:worker", f"{ALIVE}:worker"]), batch=10)
    fleet.redis.flushall()
    fleet.redis.mset({f"{DEAD}:worker": 1, f"{ALIVE}:worker": 1})
    return fleet


@pytest.mark.parametrize("ends", ["cut", "killed"])
@pytest.mark.parametrize("forward", [True, False], ids=["after", "before"])
def test_a_move_that_takes_messages_back_happens_once(fleet: Fleet, proxy: Proxy, forward: bool, ends: str) -> None:
    replica = fleet.up(redis=proxy.url)
    fleet.push(MESSAGES)
    until(lambda: [len(fleet.held(out)) for out in (DEAD, ALIVE)] == [50, 50])
    fleet.waiting()
    before = fleet.held(DEAD), fleet.held(ALIVE)
    fault = proxy.fault("EVAL", fleet.keys.rates, forward=forward)
    fleet.redis.delete(f"{DEAD}:worker")
    until((fault.answered if forward else fault.met).is_set)
    assert len(fleet.held(DEAD)) == (30 if forward else 40)  # the first move was sent before, behind the BLMOVE
    if ends == "killed":
        replica.kill()
        fleet.forget(replica)
        fleet.up()
    fault.cut()
    until(lambda: not fleet.redis.exists(DEAD))
    assert fleet.held(ALIVE) == before[1] + before[0]
    assert fleet.metric("rebalanced") == {DEAD: 50, "count": 50}
    assert asyncio.run(audited(fleet)) == []
    fleet.stop()
