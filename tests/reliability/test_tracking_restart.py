"""Tests of a tracked line whose server goes away and comes back: what it acknowledged is tracked to its end."""

import asyncio
import random
import time

import pytest

from penstock.testing.server import EmbeddedServer
from tests.reliability.accounts import assert_all_ended
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Dispatching, QueueService, audited
from tests.reliability.tracked_line import Line, Load
from tests.reliability.tracked_worker import KEYS
from tests.support.harness import until

RESTARTS = 5
MAX_RESUME_SECONDS = 10.0
"""Maximum seconds until a request pushed afterwards is registered, and until another one is done."""


@pytest.fixture
def service() -> QueueService:
    return Dispatching()


def test_a_server_with_aof_that_restarts_under_load_loses_no_request_and_ends_none_twice(
    launch: Launch, rng: random.Random
) -> None:
    took = []
    with EmbeddedServer(aof=True) as server:
        line = Line(launch, server, mdispatch=1, monitors=1, workers=1)
        with Load(line, rng, rate=250) as load:
            until(lambda: ended(line))
            for busy in rng.sample(2 * line.members, RESTARTS):
                time.sleep(rng.uniform(0.2, 1.5))  # a random time for the restart, not a wait
                busy.wait_until_busy(2)
                rng.choice([server.kill, server.stop])()
                time.sleep(rng.choice([0, rng.uniform(0, 1.5)]))  # so that some become due
                server.start()
                assert asyncio.run(audited(line.dispatching)) == []
                took.append(until_more_end(line))
        print(f"{len(load.accepted)} requests; resumed after {', '.join(f'{seconds:.2f}' for seconds in took)} s")
        for member in line.members:
            assert member.replica.running, member.name
            assert member.fleet is line.working or "resumed" in member.replica.log_text(), member.name
        line.end()
        assert_all_ended(line, load.accepted, load.unsure)


def until_more_end(line: Line) -> float:
    """Wait until another request is registered and another one done; return the seconds that it took."""
    before, begun = ended(line), time.monotonic()
    line.dispatching.until_more_is_taken(MAX_RESUME_SECONDS)
    until(lambda: ended(line) > before, MAX_RESUME_SECONDS)
    return time.monotonic() - begun


def ended(line: Line) -> int:
    """Return the number of requests done in time."""
    return int(line.redis.hget(KEYS.metric("done"), "count") or 0)
