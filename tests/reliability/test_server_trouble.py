"""The server is there, but forgets its scripts, says nothing for a while, or has no memory left."""

import json
import random
import signal
import time
from contextlib import suppress

import pytest
from redis.exceptions import ResponseError

from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.conftest import Staged
from tests.reliability.forkserver import Replica
from tests.reliability.proxy import Proxy
from tests.reliability.stage import Publisher, Stage, assert_accounted, assert_registry_clean


def test_script_flush_under_load_loses_and_doubles_nothing(stage: Stage, rng: random.Random) -> None:
    stage.up()
    stage.up()
    with Publisher(stage, rng) as publisher:
        for _ in range(200):
            time.sleep(rng.uniform(0, 0.01))  # not a wait for something: the time of the flush is chance
            stage.redis.script_flush()
        stage.until_more_is_taken()
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, publisher.accepted)
    assert_registry_clean(stage)


def test_a_server_that_pauses_its_clients_under_load_loses_and_doubles_nothing(
    stage: Stage, rng: random.Random
) -> None:
    stage.up()
    stage.up()
    with Publisher(stage, rng) as publisher:
        for _ in range(5):
            stage.redis.client_pause(rng.randrange(50, 300), all=rng.random() < 0.5)
            stage.until_more_is_taken()
        stage.redis.client_pause(500)
        (replica,) = stage.listening()
        assert replica.stop() == 0
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, publisher.accepted)
    assert_registry_clean(stage)


def test_memory_that_runs_out_under_load_and_is_there_again_loses_and_doubles_nothing(
    staged: Staged, rng: random.Random
) -> None:
    with EmbeddedServer() as server:
        stage = staged(server)
        replica = stage.up()
        with Publisher(stage, rng, largest_batch=500) as publisher:
            for _ in range(4):
                refused, waits = publisher.refused, replica.said().count('"waiting"')
                stage.redis.config_set("maxmemory", stage.redis.info("memory")["used_memory"] + 400_000)
                while publisher.refused == refused or replica.said().count('"waiting"') == waits:
                    time.sleep(0.01)
                stage.redis.config_set("maxmemory", 0)
                stage.until_more_is_taken()
        stage.wait_until_settled()
        stage.stop()
        assert_accounted(stage, publisher.accepted)
        assert_registry_clean(stage)


def test_memory_that_runs_out_does_not_keep_a_replica_from_stopping(staged: Staged) -> None:
    with EmbeddedServer() as server:
        stage = staged(server)
        replica = stage.up()
        stage.waiting()
        stage.redis.config_set("maxmemory", 1)
        replica.signal(signal.SIGTERM)
        assert replica.wait() == 0
        assert_registry_clean(stage)


def test_a_server_that_is_read_only_for_a_while_under_load_loses_and_doubles_nothing(
    staged: Staged, rng: random.Random
) -> None:
    """As in a failover: a master becomes a replica, here of nobody, and a master again."""
    with EmbeddedServer() as server:
        stage = staged(server)
        replica = stage.up()
        with Publisher(stage, rng) as publisher:
            for _ in range(5):
                waits = replica.said().count('"waiting"')
                stage.redis.replicaof("127.0.0.1", "1")
                while replica.said().count('"waiting"') == waits:
                    time.sleep(0.01)
                stage.redis.replicaof("NO", "ONE")
                stage.until_more_is_taken()
        stage.wait_until_settled()
        stage.stop()
        assert_accounted(stage, publisher.accepted)
        assert_registry_clean(stage)


def test_a_server_whose_disk_is_full_is_waited_for(staged: Staged) -> None:
    """It refuses writes with MISCONF, here from the registration on."""
    messages = [b"message %d" % number for number in range(100)]
    with EmbeddedServer(save=("3600", "1000000")) as server:
        stage = staged(server)
        stage.push(messages)
        (server.directory / "dump.rdb").mkdir()
        until(lambda: save(stage) == "err")
        (replica,) = stage.listening()
        until(lambda: "MISCONF" in replica.said())
        (server.directory / "dump.rdb").rmdir()
        until(lambda: save(stage) == "ok")
        stage.wait_until_settled()
        stage.stop()
        assert_accounted(stage, messages)
        assert_registry_clean(stage)


def save(stage: Stage) -> str:
    """Save a snapshot; whether the last one went well."""
    with suppress(ResponseError):
        stage.redis.bgsave()
    return str(stage.redis.info("persistence")["rdb_last_bgsave_status"])


def reasons(replica: Replica) -> list[str]:
    """What the replica has said that it waits for."""
    lines = map(json.loads, replica.said().splitlines())
    return [line["reason"] for line in lines if line["event"] == "waiting"]


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (b"-ERR upstream not ready\r\n", "upstream not ready"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "does not speak Redis's protocol"),
        (b"-NOAUTH Authentication required.\r\n", "Authentication required."),
        (b"\x16\x03\x01\x00\xff\x00", "does not speak Redis's protocol"),
    ],
    ids=["error", "http", "noauth", "garbage"],
)
def test_what_a_proxy_says_while_the_server_behind_it_is_away_is_waited_for(
    staged: Staged, server: EmbeddedServer, rng: random.Random, says: bytes, reason: str
) -> None:
    with Proxy(server.port) as proxy:
        stage = staged(server)
        stage.redis.flushall()
        replica = stage.up(redis=proxy.url)
        with Publisher(stage, rng) as publisher:
            stage.until_more_is_taken()
            proxy.says = says
            until(lambda: any(reason in said for said in reasons(replica)))
            time.sleep(rng.uniform(0.5, 1.5))  # not a wait for something: how long it is away is chance
            assert len(reasons(replica)) == len(set(reasons(replica)))  # each is said once
            proxy.says = b""
            stage.until_more_is_taken()
        stage.wait_until_settled()
        stage.stop()
        assert_accounted(stage, publisher.accepted)
        assert_registry_clean(stage)


def test_a_proxy_that_is_not_ready_at_the_start_is_waited_for(staged: Staged, server: EmbeddedServer) -> None:
    with Proxy(server.port) as proxy:
        stage = staged(server)
        stage.redis.flushall()
        proxy.says = b"-ERR upstream not ready\r\n"
        replica = stage.start(redis=proxy.url)
        until(lambda: '"waiting"' in replica.said())
        proxy.says = b""
        until(lambda: stage.id_of(replica))
        assert replica.stop() == 0
