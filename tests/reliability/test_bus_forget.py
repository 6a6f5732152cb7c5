"""Consumers that take and forget lose what they hold when they are killed, and nothing when they end in order."""

import random
from pathlib import Path

import pytest
from redis import Redis

from penstock.core.batches import MAX_MESSAGES
from penstock.testing.forkserver import ForkServer
from tests.reliability.bus_account import Account, Workers
from tests.support.harness import rounds, until

HANDLING_SECONDS = 0.0005


@pytest.fixture
def workers(fork_server: ForkServer, tmp_path: Path, here: "Redis", redis_url: str) -> Workers:
    return Workers(fork_server, tmp_path, redis_url, handling=HANDLING_SECONDS)


def drained(workers: Workers, redis: "Redis") -> Account:
    while redis.llen(workers.key("messages")):  # what the last one had at hand when it was stopped
        with workers.worker("forget", handling=0):
            until(lambda: not redis.llen(workers.key("messages")))
    return workers.account()


def assert_handled_once_each(account: Account) -> None:
    ids = [got.id for got in account.got]
    assert len(ids) == len(set(ids))
    assert all(account.accepted.get(got.body, got.id) == got.id for got in account.got)


def test_consumers_that_are_stopped_cancelled_or_end_with_their_bus_lose_nothing(
    workers: Workers, here: "Redis", rng: random.Random
) -> None:
    with workers.worker("produce"), workers.worker("forget"):
        for _ in rounds():
            with workers.worker("forget"):
                workers.until_handled(20)
                until(lambda: rng.random() < 0.1)
    account = drained(workers, here)
    account.assert_nothing_is_lost()
    assert_handled_once_each(account)
    assert {got.id for got in account.got} == {*range(1, workers.last_id(here) + 1)}


def test_consumers_that_are_killed_lose_no_more_than_they_have_taken_ahead(
    workers: Workers, here: "Redis", rng: random.Random
) -> None:
    kills = 0
    with workers.worker("produce"):
        for _ in rounds():
            with workers.worker("forget") as consumer:
                workers.until_handled(20)
                until(lambda: rng.random() < 0.1)
                consumer.kill()
                kills += 1
    account = drained(workers, here)
    lost = workers.last_id(here) - len({got.id for got in account.got})
    print(f"{lost} of {workers.last_id(here)} lost by {kills} kills")
    assert 0 < lost <= kills * MAX_MESSAGES
    assert_handled_once_each(account)
