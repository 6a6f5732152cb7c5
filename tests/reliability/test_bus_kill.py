"""Producers and consumers of a reliable queue that are killed lose nothing."""

import random
from pathlib import Path

import pytest
from redis import Redis

from penstock.testing.forkserver import ForkServer
from tests.reliability.bus_account import Workers
from tests.support.harness import rounds, until


@pytest.fixture
def workers(fork_server: ForkServer, tmp_path: Path, here: "Redis", redis_url: str) -> Workers:
    return Workers(fork_server, tmp_path, redis_url)


def test_producers_and_consumers_killed_at_any_moment_lose_nothing(
    workers: Workers, here: "Redis", rng: random.Random
) -> None:
    """The queue is consumed by one at a time, the next as soon as the last was killed."""
    with workers.worker("produce"):
        for number in rounds():
            with workers.worker("produce") as producer, workers.worker("consume") as consumer:
                before = workers.handled()
                until(lambda before=before: workers.handled() > before)  # type: ignore[misc]
                until(lambda: rng.random() < 0.1)
                consumer.kill()
                if number % 2:
                    producer.kill()
    account = workers.drained(here)
    print(f"{workers.last_id(here)} messages in {len(account.consumptions)} consumptions, {len(account.got)} handled")
    account.assert_reliable(workers.last_id(here))
