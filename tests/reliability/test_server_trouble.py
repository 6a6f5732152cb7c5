"""Tests of a server that forgets its scripts, does not answer for a while, or has no memory left."""

import json
import random
import signal
import time
from contextlib import suppress

import pytest
from redis.exceptions import ResponseError

from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Fleet, Publisher, assert_all_settled, assert_registry_clean
from tests.reliability.proxy import Proxy
from tests.reliability.replica import Replica
from tests.support.harness import until


def test_script_flush_under_load_loses_and_doubles_nothing(fleet: Fleet, rng: random.Random) -> None:
    fleet.up()
    fleet.up()
    with Publisher(fleet, rng) as publisher:
        for _ in range(200):
            time.sleep(rng.uniform(0, 0.01))  # a random time for the flush, not a wait
            fleet.redis.script_flush()
        fleet.until_more_is_taken()
    assert_all_settled(fleet, publisher.accepted)


def test_a_server_that_pauses_its_clients_under_load_loses_and_doubles_nothing(
    fleet: Fleet, rng: random.Random
) -> None:
    fleet.up()
    fleet.up()
    with Publisher(fleet, rng) as publisher:
        for _ in range(5):
            fleet.redis.client_pause(rng.randrange(50, 300), all=rng.random() < 0.5)
            fleet.until_more_is_taken()
        fleet.redis.client_pause(500)
        (replica,) = fleet.listening()
        assert replica.stop() == 0
    assert_all_settled(fleet, publisher.accepted)


def test_memory_that_runs_out_under_load_and_is_there_again_loses_and_doubles_nothing(
    launch: Launch, rng: random.Random
) -> None:
    with EmbeddedServer() as server:
        fleet = launch(server)
        replica = fleet.up()
        with Publisher(fleet, rng, largest_batch=500) as publisher:
            for _ in range(4):
                refused, waits = publisher.refused, replica.log_text().count('"waiting"')
                fleet.redis.config_set("maxmemory", fleet.redis.info("memory")["used_memory"] + 400_000)
                while publisher.refused == refused or replica.log_text().count('"waiting"') == waits:
                    time.sleep(0.01)
                fleet.redis.config_set("maxmemory", 0)
                fleet.until_more_is_taken()
        assert_all_settled(fleet, publisher.accepted)


def test_memory_that_runs_out_does_not_keep_a_replica_from_stopping(launch: Launch) -> None:
    with EmbeddedServer() as server:
        fleet = launch(server)
        replica = fleet.up()
        fleet.waiting()
        fleet.redis.config_set("maxmemory", 1)
        replica.signal(signal.SIGTERM)
        assert replica.wait() == 0
        assert_registry_clean(fleet)


def test_a_server_that_is_read_only_for_a_while_under_load_loses_and_doubles_nothing(
    launch: Launch, rng: random.Random
) -> None:
    """As in a failover: a master becomes a replica, here of no server, and a master again."""
    with EmbeddedServer() as server:
        fleet = launch(server)
        replica = fleet.up()
        with Publisher(fleet, rng) as publisher:
            for _ in range(5):
                waits = replica.log_text().count('"waiting"')
                fleet.redis.replicaof("127.0.0.1", "1")
                while replica.log_text().count('"waiting"') == waits:
                    time.sleep(0.01)
                fleet.redis.replicaof("NO", "ONE")
                fleet.until_more_is_taken()
        assert_all_settled(fleet, publisher.accepted)


def test_a_server_whose_disk_is_full_is_waited_for(launch: Launch) -> None:
    """It refuses writes with MISCONF, here already at the registration."""
    messages = [b"message %d" % number for number in range(100)]
    with EmbeddedServer(save=("3600", "1000000")) as server:
        fleet = launch(server)
        fleet.push(messages)
        (server.directory / "dump.rdb").mkdir()
        until(lambda: save(fleet) == "err")
        (replica,) = fleet.listening()
        until(lambda: "MISCONF" in replica.log_text())
        (server.directory / "dump.rdb").rmdir()
        until(lambda: save(fleet) == "ok")
        assert_all_settled(fleet, messages)


def save(fleet: Fleet) -> str:
    """Save a snapshot; return the status of the last one."""
    with suppress(ResponseError):
        fleet.redis.bgsave()
    return str(fleet.redis.info("persistence")["rdb_last_bgsave_status"])


def reasons(replica: Replica) -> list[str]:
    """Return the reasons for waiting that the replica has logged."""
    lines = map(json.loads, replica.log_text().splitlines())
    return [line["reason"] for line in lines if line["event"] == "waiting"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"-ERR upstream not ready\r\n", "upstream not ready"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "does not speak Redis's protocol"),
        (b"-NOAUTH Authentication required.\r\n", "Authentication required."),
        (b"\x16\x03\x01\x00\xff\x00", "does not speak Redis's protocol"),
    ],
    ids=["error", "http", "noauth", "garbage"],
)
def test_what_a_proxy_says_while_the_server_behind_it_is_away_is_waited_for(
    launch: Launch, server: EmbeddedServer, rng: random.Random, reply: bytes, reason: str
) -> None:
    with Proxy(server.port) as proxy:
        fleet = launch(server)
        fleet.redis.flushall()
        replica = fleet.up(redis=proxy.url)
        with Publisher(fleet, rng) as publisher:
            fleet.until_more_is_taken()
            proxy.canned_reply = reply
            until(lambda: any(reason in logged for logged in reasons(replica)))
            time.sleep(rng.uniform(0.5, 1.5))  # a random outage, not a wait
            assert len(reasons(replica)) == len(set(reasons(replica)))  # each is logged once
            proxy.canned_reply = b""
            fleet.until_more_is_taken()
        assert_all_settled(fleet, publisher.accepted)


def test_a_proxy_that_is_not_ready_at_the_start_is_waited_for(launch: Launch, server: EmbeddedServer) -> None:
    with Proxy(server.port) as proxy:
        fleet = launch(server)
        fleet.redis.flushall()
        proxy.canned_reply = b"-ERR upstream not ready\r\n"
        replica = fleet.start(redis=proxy.url)
        until(lambda: '"waiting"' in replica.log_text())
        proxy.canned_reply = b""
        until(lambda: fleet.id_of(replica))
        assert replica.stop() == 0
