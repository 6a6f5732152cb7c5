"""A reliable queue whose server restarts, is disturbed, or is away for longer than the ttl."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.bus_account import Account, Workers
from tests.support.harness import rounds

TTL = 2


@pytest.fixture
def aof() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(aof=True) as server:
        yield server


@contextmanager
def under_load(workers: Workers) -> Iterator[None]:
    """Push with two, and consume with one."""
    with workers.worker("produce"), workers.worker("produce"), workers.worker("consume"):
        workers.until_handled()
        yield
        workers.until_handled()


def assert_reliable(workers: Workers, redis: "Redis") -> Account:
    account = workers.drained(redis)
    print(f"{len(account.accepted)} accepted, {len(account.got)} handled, {workers.last_id(redis)} ids")
    account.assert_reliable(workers.last_id(redis))
    return account


def test_a_server_killed_under_load_again_and_again_loses_nothing(
    aof: EmbeddedServer, fork_server: ForkServer, tmp_path: Path, rng: random.Random
) -> None:
    workers = Workers(fork_server, tmp_path, aof.url)
    with under_load(workers):
        for _ in rounds():
            workers.until_handled(20)
            time.sleep(rng.uniform(0, 0.05))  # a random time for the kill, not a wait
            rng.choice([aof.kill, aof.stop])()
            aof.start()
    with Redis.from_url(aof.url) as redis:
        assert_reliable(workers, redis)


def script_flush(redis: "Redis") -> None:
    redis.script_flush("SYNC")


def kill_connections(redis: "Redis") -> None:
    for kind in ("normal", "pubsub"):
        redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def pause(redis: "Redis") -> None:
    redis.client_pause(20)


@pytest.mark.parametrize("disturb", [script_flush, kill_connections, pause], ids=lambda each: each.__name__)
def test_a_server_that_is_disturbed_every_few_milliseconds_loses_nothing(
    disturb: Callable[["Redis"], None], fork_server: ForkServer, tmp_path: Path, here: "Redis", redis_url: str,
    rng: random.Random,
) -> None:  # fmt: skip
    workers = Workers(fork_server, tmp_path, redis_url)
    with under_load(workers):
        for _ in rounds():
            workers.until_handled(5)
            for _ in range(10):
                disturb(here)
                time.sleep(rng.uniform(0, 0.01))  # a random time for the next one, not a wait
    assert_reliable(workers, here)


def test_a_server_away_for_longer_than_a_ttl_keeps_what_lives_and_the_rest_works_on(
    aof: EmbeddedServer, fork_server: ForkServer, tmp_path: Path
) -> None:
    """One queue dies meanwhile, which is logged, and its ids begin anew; the other one lives on."""
    (tmp_path / "dies").mkdir()
    (tmp_path / "lives").mkdir()
    dies = Workers(fork_server, tmp_path / "dies", aof.url, queue="dies", ttl=TTL)
    lives = Workers(fork_server, tmp_path / "lives", aof.url, queue="lives", ttl=10 * TTL)
    with dies.worker("attach"):  # until it is drained, lest it dies again
        with under_load(lives), under_load(dies):
            aof.kill()
            time.sleep(TTL + 0.5)  # what is tested is the time
            returned = time.monotonic_ns()
            aof.start()
            dies.until_handled()
            lives.until_handled()
        with Redis.from_url(aof.url) as redis:
            account = dies.drained(redis)
            assert_reliable(lives, redis)
    account.assert_producers_kept_their_order(since=returned)
    account.assert_nothing_is_lost(since=returned)
    assert any("queue lost with its messages" in each.log_text() for each in dies.all)
    assert not any("queue lost with its messages" in each.log_text() for each in lives.all)
