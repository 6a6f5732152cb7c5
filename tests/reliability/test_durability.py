"""``durability``: a batch is on disk or on replicas before the next one is taken."""

import random

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from penstock.embedded import EmbeddedServer
from penstock.errors import PenstockError
from tests.harness import until
from tests.reliability.conftest import Staged
from tests.reliability.stage import Publisher, Stage, assert_accounted, assert_registry_clean

BATCH = 10
MESSAGES = [b"message %d" % number for number in range(1_000)]


def test_aof_is_refused_by_a_server_that_writes_no_log(stage: Stage) -> None:
    needs_waitaof(stage)
    replica = stage.start(durability="aof")
    assert replica.wait() == 1
    assert "appendonly yes" in replica.said()
    assert_registry_clean(stage)


def test_aof_is_refused_by_a_server_without_waitaof(staged: Staged) -> None:
    with old_server() as server:
        stage = staged(server)
        replica = stage.start(durability="aof")
        assert replica.wait() == 1
        assert "WAITAOF" in replica.said()
        assert "Traceback" not in replica.said()
        assert_registry_clean(stage)


def old_server() -> EmbeddedServer:
    """One that has no WAITAOF, by its age (before 7.2) or because it was taken away."""
    gone = ("WAITAOF", "")
    try:
        with EmbeddedServer(rename_command=gone):
            return EmbeddedServer(aof=True, rename_command=gone)
    except PenstockError:
        return EmbeddedServer(aof=True)


def needs_waitaof(stage: Stage) -> None:
    try:
        stage.redis.execute_command("WAITAOF", 0, 0, 0)
    except ResponseError:
        pytest.skip("this server is older than WAITAOF")


def test_with_aof_every_batch_is_waited_for_and_a_power_cut_loses_and_doubles_nothing(
    staged: Staged, rng: random.Random
) -> None:
    with EmbeddedServer(aof=True) as server:
        stage = staged(server)
        needs_waitaof(stage)
        stage.up(durability="aof", batch=BATCH)
        accepted, unsure = list[bytes](), list[bytes]()
        for _ in range(3):
            with Publisher(stage, rng) as publisher:
                stage.until_more_is_taken()
                assert stage.redis.info("commandstats")["cmdstat_waitaof"]["calls"] > 1
                server.kill()
            server.start()
            accepted += publisher.accepted
            unsure += publisher.unsure
        stage.wait_until_settled()
        stage.stop()
        assert_accounted(stage, accepted, unsure)
        assert_registry_clean(stage)


def test_a_replica_of_the_server_that_is_away_is_waited_for_with_the_batch_in_hand(staged: Staged) -> None:
    with EmbeddedServer(repl_diskless_sync_delay="0") as server:
        stage = staged(server)
        with replica_of(server) as copy, Redis.from_url(copy.url) as copied:
            until(lambda: stage.redis.info("replication")["connected_slaves"] == 1)
            replica = stage.up(durability="replicas:1", durability_timeout=1, batch=BATCH)
            stage.push(MESSAGES[:100])
            stage.wait_until_settled()
            until(lambda: copied.llen(stage.service.outs[0]) == 100)
            copy.kill()
            stage.push(MESSAGES[100:])
            until(lambda: "of 1 replicas" in replica.said())
            waits = calls_of_wait(stage)
            until(lambda: calls_of_wait(stage) >= waits + 3)
            assert stage.taken() <= 100 + 2 * BATCH, "more was taken than the two batches on the wire"
            copy.start()
            stage.wait_until_settled()
            stage.stop()
            assert_accounted(stage, MESSAGES)
            until(lambda: copied.llen(stage.service.outs[0]) == len(MESSAGES))


def test_a_service_that_waits_for_a_replica_of_the_server_stops_when_told(staged: Staged) -> None:
    with EmbeddedServer() as server:
        stage = staged(server)
        replica = stage.up(durability="replicas:1", durability_timeout=1)
        stage.push(MESSAGES)
        until(lambda: "of 1 replicas" in replica.said())
        assert replica.stop() == 0
        assert_registry_clean(stage)


def replica_of(server: EmbeddedServer) -> EmbeddedServer:
    return EmbeddedServer(replicaof=("127.0.0.1", str(server.port)))


def calls_of_wait(stage: Stage) -> int:
    calls: int = stage.redis.info("commandstats")["cmdstat_wait"]["calls"]
    return calls
