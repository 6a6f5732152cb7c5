"""Sentinel promotes a replica that is in step, under load: queues and lists go on there and lose nothing."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.bus_account import Workers
from tests.reliability.lists import MESSAGES, assert_all_arrived_once, worker
from tests.support.harness import until
from tests.support.servers import sentinel

SECOND = 10**9
DOWN_AFTER_MS = 1_500
"""Longer than a busy machine delays an answer."""


class Pair:
    """A primary, its replica, and the URL of their sentinel."""

    def __init__(self, primary: EmbeddedServer, replica: EmbeddedServer, sentinel: int) -> None:
        self.primary, self.replica = primary, replica
        self.url = f"redis+sentinel://127.0.0.1:{sentinel}/mine"

    def part(self) -> None:
        """Break the replication: the replica has no more from now on."""
        with Redis.from_url(self.primary.url) as old, Redis.from_url(self.replica.url) as new:
            new.config_set("masteruser", "nobody")
            new.config_set("masterauth", "nothing")
            old.client_kill_filter(_type="replica")
            until(lambda: new.info("replication")["master_link_status"] == "down")

    def fail_over_at_once(self) -> None:
        """Kill the primary, whatever the replica has."""
        with Redis.from_url(self.replica.url) as new:
            self.primary.kill()
            until(lambda: leads(new))

    def fail_over(self) -> None:
        """Kill the primary once the replica has all; writes wait meanwhile, so that nothing else is confirmed."""
        with Redis.from_url(self.primary.url) as old, Redis.from_url(self.replica.url) as new:
            old.client_pause(60_000, all=False)
            until(lambda: in_step(old))
            self.primary.kill()
            until(lambda: leads(new))


def in_step(primary: "Redis") -> bool:
    found = primary.info("replication")
    replica = found.get("slave0", {})
    return bool(replica.get("state") == "online" and replica["offset"] == found["master_repl_offset"])


def leads(redis: "Redis") -> bool:
    with suppress(ConnectionError):  # the sentinel closes all connections to the server that it promotes
        return bool(redis.info("replication")["role"] == "master")
    return False


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with replicated(tmp_path) as started:
        yield started


@contextmanager
def replicated(directory: Path) -> Iterator[Pair]:
    quick: dict[str, Any] = {"repl_diskless_sync_delay": "0"}
    with (
        EmbeddedServer(**quick) as first,
        EmbeddedServer(**quick, replicaof=("127.0.0.1", str(first.port))) as second,
        sentinel(directory, first.port, down_after=DOWN_AFTER_MS) as port,
        Redis.from_url(first.url) as primary,
        Redis(port=port) as watcher,
    ):

        def known() -> bool:
            with suppress(ConnectionError):
                return len(watcher.execute_command("SENTINEL", "REPLICAS", "mine")) == 1
            return False

        until(lambda: in_step(primary))
        until(known)
        yield Pair(first, second, port)


def test_a_reliable_queue_goes_on_with_the_promoted_server(pair: Pair, fork_server: ForkServer, tmp_path: Path) -> None:
    workers = Workers(fork_server, tmp_path, pair.url)
    with workers.worker("produce"), workers.worker("produce"), workers.worker("consume"):
        workers.until_handled()
        pair.fail_over()
        workers.until_handled()
    with Redis.from_url(pair.replica.url) as redis:
        account = workers.drained(redis)
        account.assert_reliable(workers.last_id(redis))


def test_no_push_that_replicas_have_confirmed_is_lost_by_a_failover_without_a_pause(
    pair: Pair, fork_server: ForkServer, tmp_path: Path
) -> None:
    workers = Workers(fork_server, tmp_path, pair.url)
    given = {"durability": "replicas:1"}
    with workers.worker("produce", **given) as producer, workers.worker("consume"):
        workers.until_handled()
        pair.fail_over_at_once()  # from now on no replica confirms anything
        until(lambda: "server away" in producer.log_text())
    with Redis.from_url(pair.replica.url) as redis:
        account = workers.drained(redis)
    assert len(account.accepted) >= 200
    assert account.accepted.keys() <= {each.body for each in account.got}


def test_a_queue_goes_on_with_a_server_that_had_not_all(pair: Pair, fork_server: ForkServer, tmp_path: Path) -> None:
    """What was pushed meanwhile is lost, and its ids are given again, to messages that are all handled."""
    workers = Workers(fork_server, tmp_path, pair.url)
    with workers.worker("produce"), workers.worker("produce"), workers.worker("consume"):
        workers.until_handled()
        pair.part()
        parted = time.monotonic_ns()
        workers.until_handled(500)
        pair.fail_over_at_once()
        promoted = time.monotonic_ns()
        workers.until_handled(1_000)
    with Redis.from_url(pair.replica.url) as redis:
        account = workers.drained(redis)
    handled = {each.body for each in account.got}
    lost = {account.accepted_at[body] for body in account.accepted.keys() - handled}
    assert all(parted - SECOND < when < promoted for when in lost)
    ids = Counter(account.accepted.values())
    assert ids.most_common(1)[0][1] == 2, "no id was given again"
    assert max(account.accepted_at.values()) > promoted


def test_consumers_of_a_list_go_on_with_the_promoted_server(pair: Pair) -> None:
    with Redis.from_url(pair.primary.url) as old, Redis.from_url(pair.replica.url) as new:
        old.lpush("in", *MESSAGES)
        with worker(pair.url), worker(pair.url):
            until(lambda: old.llen("out") > len(MESSAGES) // 8, every=0.002)
            pair.fail_over()
            assert_all_arrived_once(new)
