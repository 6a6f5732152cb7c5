"""Tests of ``durability``: a batch is on disk or on replicas before the next one is taken."""

import os
import random
import signal

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from common.durability import Durability
from penstock.base.errors import PenstockError
from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Fleet, Publisher, assert_accounted, assert_all_settled, assert_registry_clean
from tests.reliability.proxy import Proxy
from tests.support.harness import until

BATCH = 10
MESSAGES = [b"message %d" % number for number in range(1_000)]


def test_aof_is_refused_by_a_server_without_waitaof(launch: Launch) -> None:
    with old_server() as server:
        fleet = launch(server)
        replica = fleet.start(durability="aof")
        assert replica.wait() == 1
        assert "WAITAOF" in replica.log_text()
        assert "Traceback" not in replica.log_text()
        assert_registry_clean(fleet)


def old_server() -> EmbeddedServer:
    """Return a server without WAITAOF: one older than 7.2, or one with the command renamed away."""
    gone = ("WAITAOF", "")
    try:
        with EmbeddedServer(rename_command=gone):
            return EmbeddedServer(aof=True, rename_command=gone)
    except PenstockError:
        return EmbeddedServer(aof=True)


def needs_waitaof(fleet: Fleet) -> None:
    try:
        fleet.redis.execute_command("WAITAOF", 0, 0, 0)
    except ResponseError:
        pytest.skip("this server is older than WAITAOF")


def test_with_aof_every_batch_is_waited_for_and_a_power_cut_loses_and_doubles_nothing(
    launch: Launch, rng: random.Random
) -> None:
    with EmbeddedServer(aof=True) as server:
        fleet = launch(server)
        needs_waitaof(fleet)
        fleet.up(durability="aof", batch=BATCH)
        accepted, unsure = list[bytes](), list[bytes]()
        for number in range(3):
            with Publisher(fleet, rng, first=number * 1_000_000) as publisher:
                fleet.until_more_is_taken()
                assert fleet.redis.info("commandstats")["cmdstat_waitaof"]["calls"] > 1
                server.kill()
            server.start()
            accepted += publisher.accepted
            unsure += publisher.unsure
        assert_all_settled(fleet, accepted, unsure)


def test_a_replica_of_the_server_that_is_away_is_waited_for_with_the_batch_in_hand(launch: Launch) -> None:
    with EmbeddedServer(repl_diskless_sync_delay="0") as server:
        fleet = launch(server)
        with replica_of(server) as copy, Redis.from_url(copy.url) as copied:
            until(lambda: fleet.redis.info("replication")["connected_slaves"] == 1)
            replica = fleet.up(durability="replicas:1", durability_timeout=1, batch=BATCH)
            fleet.push(MESSAGES[:100])
            fleet.wait_until_settled()
            until(lambda: copied.llen(fleet.service.outs[0]) == 100)
            copy.kill()
            fleet.push(MESSAGES[100:])
            until(lambda: "of 1 replicas" in replica.log_text())
            waits = calls_of_wait(fleet)
            until(lambda: calls_of_wait(fleet) >= waits + 3)
            assert fleet.taken() <= 100 + 2 * BATCH, "more was taken than the two batches on the wire"
            copy.start()
            fleet.wait_until_settled()
            fleet.stop()
            assert_accounted(fleet, MESSAGES)
            until(lambda: copied.llen(fleet.service.outs[0]) == len(MESSAGES))


def test_a_service_that_waits_for_a_replica_of_the_server_stops_on_sigterm(launch: Launch) -> None:
    with EmbeddedServer() as server:
        fleet = launch(server)
        replica = fleet.up(durability="replicas:1", durability_timeout=1)
        fleet.push(MESSAGES)
        until(lambda: "of 1 replicas" in replica.log_text())
        assert replica.stop() == 0
        assert_registry_clean(fleet)


def replica_of(server: EmbeddedServer) -> EmbeddedServer:
    return EmbeddedServer(replicaof=("127.0.0.1", str(server.port)))


def calls_of_wait(fleet: Fleet) -> int:
    calls: int = fleet.redis.info("commandstats")["cmdstat_wait"]["calls"]
    return calls


def wait_until_online(fleet: Fleet, *copies: EmbeddedServer) -> None:
    """Wait until the primary reports all of ``copies`` as online."""
    until(lambda: sum(line.get("state") == "online" for line in lines_of_replicas(fleet)) == len(copies))


def lines_of_replicas(fleet: Fleet) -> list[dict[str, object]]:
    info = fleet.redis.info("replication")
    return [info[f"slave{number}"] for number in range(info["connected_slaves"])]


@pytest.mark.parametrize("durability", ["replicas:1", "replicas:majority"])
def test_a_failover_to_any_of_two_replicas_finds_all_that_was_confirmed_by_a_majority(
    launch: Launch, durability: str
) -> None:
    """A majority waits for a lagging replica; ``replicas:1`` does not, so a failover to that replica loses messages."""
    with EmbeddedServer(repl_diskless_sync_delay="0", repl_timeout="600") as server, Proxy(server.port) as slow:
        fleet = launch(server)
        lagging = EmbeddedServer(
            replicaof=("127.0.0.1", slow.url.rpartition(":")[2].partition("/")[0]), repl_timeout="600"
        )
        with replica_of(server) as first, lagging as second, Redis.from_url(second.url) as promoted:
            wait_until_online(fleet, first, second)
            replica = fleet.up(durability=durability, durability_timeout=1, batch=BATCH)
            fleet.push(MESSAGES[:100])
            fleet.wait_until_settled()
            until(lambda: promoted.llen(fleet.service.outs[0]) == 100)
            fault = slow.fault("ACK", forward=False)
            assert fault.met.wait(30)
            fleet.push(MESSAGES[100:])
            if durability == "replicas:1":
                fleet.wait_until_settled()
                confirmed = len(MESSAGES)
            else:
                until(lambda: "on 1 of 2 replicas" in replica.log_text())
                assert fleet.taken() <= 100 + 2 * BATCH, "more was taken than the two batches on the wire"
                confirmed = 100
            server.kill()
            promoted.replicaof("NO", "ONE")
            lost = confirmed - promoted.llen(fleet.service.outs[0])
            assert lost == (len(MESSAGES) - 100 if durability == "replicas:1" else 0)
            server.start()


def test_a_majority_of_three_goes_on_without_one_of_them_and_waits_without_two(launch: Launch) -> None:
    with EmbeddedServer(repl_diskless_sync_delay="0") as server:
        fleet = launch(server)
        with replica_of(server) as first, replica_of(server) as second, replica_of(server) as third:
            wait_until_online(fleet, first, second, third)
            replica = fleet.up(durability="replicas:majority", durability_timeout=1, batch=BATCH)
            fleet.push(MESSAGES[:100])
            fleet.wait_until_settled()
            third.kill()
            fleet.push(MESSAGES[100:200])
            fleet.wait_until_settled()
            second.kill()
            fleet.push(MESSAGES[200:])
            until(lambda: "on 1 of 2 replicas" in replica.log_text())
            assert fleet.taken() <= 200 + 2 * BATCH
            second.start()
            assert_all_settled(fleet, MESSAGES)


def test_a_majority_counts_a_replica_from_when_it_connects(launch: Launch) -> None:
    """Without replicas, it waits from the start. A replica that connects later counts like the earlier ones."""
    with EmbeddedServer(repl_diskless_sync_delay="0", repl_timeout="600") as server:
        fleet = launch(server)
        replica = fleet.up(durability="replicas:majority", durability_timeout=1, batch=BATCH)
        fleet.push(MESSAGES[:100])
        until(lambda: "on 0 of 1 replicas" in replica.log_text())
        assert fleet.taken() == 0
        with replica_of(server) as first:
            fleet.wait_until_settled()
            with replica_of(server) as second:
                wait_until_online(fleet, first, second)
                fleet.push(MESSAGES[100:200])
                fleet.wait_until_settled()
                os.kill(second.pid, signal.SIGSTOP)
                fleet.push(MESSAGES[200:])
                until(lambda: "of 2 replicas" in replica.log_text())
                os.kill(second.pid, signal.SIGCONT)
                fleet.wait_until_settled()
            fleet.stop()
            assert_accounted(fleet, MESSAGES)


def test_a_majority_is_counted_anew_after_a_failover() -> None:
    """The new primary has one replica less; replicas of the old primary do not count."""
    durability = Durability("replicas:majority", 1)
    counts = []
    for primary, states in (("a", "online online"), ("a", "online"), ("a", "online online wait_bgsave online"),
                            ("a", ""), ("b", "online"), ("b", "")):  # fmt: skip
        lines = [f"slave{number}:ip=x,state={state},lag=0" for number, state in enumerate(states.split())]
        durability.count("\r\n".join(["# Replication", f"master_replid:{primary}", *lines]).encode())
        counts.append(durability.commands[0][1])
    assert counts == [2, 2, 3, 3, 1, 1]
