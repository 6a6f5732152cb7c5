"""Producers and consumers of a reliable queue that are killed or suspended lose nothing."""

import random
from pathlib import Path

import pytest
from redis import Redis

from penstock.testing.forkserver import ForkServer
from tests.reliability.bus_account import Workers
from tests.support.harness import ROUNDS, rounds, until

LEASE_SECONDS = 1
IN_HAND = 1
"""Messages that a signal may meet between the check of the lease and the journal: some microseconds of milliseconds."""
MAX_SUSPENSIONS = 4
"""Each takes longer than the lease."""


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


def test_an_exclusive_consumer_that_is_killed_has_one_successor_after_its_lease(
    workers: Workers, here: "Redis", rng: random.Random
) -> None:
    exclusive = {"exclusive": 1, "lease_seconds": LEASE_SECONDS}
    with workers.worker("produce"), workers.worker("consume", **exclusive):
        for _ in rounds():
            with workers.worker("consume", **exclusive) as one, workers.worker("consume", **exclusive) as other:
                workers.until_handled()
                until(lambda: rng.random() < 0.1)
                one.kill()
                if rng.random() < 0.5:
                    other.kill()
    account = workers.drained(here)
    account.assert_reliable(workers.last_id(here))
    account.assert_one_at_a_time(0)


def test_an_exclusive_consumer_suspended_beyond_its_lease_hands_out_nothing_more(
    workers: Workers, here: "Redis", rng: random.Random
) -> None:
    """SIGSTOP with messages at hand, until another one has the queue; then SIGCONT."""
    exclusive = {"exclusive": 1, "lease_seconds": LEASE_SECONDS, "handling": 0.003}
    suspensions = min(ROUNDS, MAX_SUSPENSIONS)
    with (
        workers.worker("produce"),
        workers.worker("consume", **exclusive) as one,
        workers.worker("consume", **exclusive) as other,
    ):
        for _ in range(suspensions):
            workers.until_handled()
            until(lambda: rng.random() < 0.1)
            holder = one if workers.last_who() == one.who else other
            with holder.suspended():
                until(lambda holder=holder: workers.last_who() != holder.who, every=0.1)  # type: ignore[misc]
                workers.until_handled()
    account = workers.drained(here)
    account.assert_nothing_is_lost()
    account.assert_nothing_comes_after_its_ack(but=IN_HAND)
    account.assert_one_at_a_time(IN_HAND)
