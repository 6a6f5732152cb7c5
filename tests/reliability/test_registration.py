"""Tests that a replica runs only while registered, whatever happens to its registration, its server and its replies."""

import random
import time
from functools import partial

import pytest

from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Fleet, Publisher, assert_accounted, assert_registry_clean
from tests.reliability.proxy import Proxy
from tests.reliability.replica import Replica
from tests.support.harness import until

MESSAGES = [b"message %d" % number for number in range(100)]


def delete_registration(fleet: Fleet) -> None:
    """Delete the registration, which orders the replica to stop."""
    (id,) = fleet.ids()
    assert fleet.redis.delete(fleet.keys.instance(id)) == 1


def test_a_deleted_registration_stops_a_replica_under_load(fleet: Fleet, rng: random.Random) -> None:
    with Publisher(fleet, rng) as publisher:
        for _ in range(5):
            replica = fleet.up()
            fleet.until_more_is_taken()
            delete_registration(fleet)
            assert replica.wait() == 0
            assert_registry_clean(fleet)
    fleet.up()
    fleet.wait_until_settled()
    fleet.stop()
    assert_accounted(fleet, publisher.accepted)


def stopped_or_registered(fleet: Fleet, replica: Replica) -> bool:
    return not replica.running or fleet.id_of(replica) is not None


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "idle"])
@pytest.mark.parametrize("aof", [True, False], ids=["aof", "memory"])
def test_a_registration_deleted_while_the_server_restarts_stops_the_replica_or_is_made_anew(
    launch: Launch, rng: random.Random, aof: bool, loaded: bool
) -> None:
    sooner = set()
    with EmbeddedServer(aof=aof) as server:
        fleet = launch(server)
        for _ in range(5):
            replica = fleet.up()
            until(lambda: len(fleet.ids()) == 1)  # those of dead replicas have expired
            sooner |= set(fleet.ids())
            with Publisher(fleet, rng, most_waiting=5_000 if loaded else 0):
                delete_registration(fleet)
                time.sleep(rng.uniform(0, 0.02) if loaded else 0)  # a random time for the outage, not a wait
                rng.choice([server.kill, server.stop])()
                server.start()
                until(partial(stopped_or_registered, fleet, replica))
            # A replica that has seen the deletion stops, though the server may have come back without it: a write to
            # the append-only file is delayed while the previous one is synced.
            fleet.push(MESSAGES)
            until(lambda replica=replica: fleet.is_settled() or not replica.running)  # type: ignore[misc]
            fleet.redis.delete(*map(fleet.keys.instance, fleet.ids()), "-")
            assert replica.wait() == 0
        fleet.up()
        fleet.stop()
        assert_registry_clean(fleet, killed=sooner)


@pytest.mark.parametrize("words", [["LTRIM", "demo:ids"], ["ZADD", "demo:owners"], ["demo:metrics:start"]])
def test_a_reply_lost_while_registering_leaves_no_second_registration(
    launch: Launch, server: EmbeddedServer, words: list[str]
) -> None:
    with Proxy(server.port) as proxy:
        fleet = launch(server)
        fleet.redis.flushall()
        fleet.redis.script_flush()
        fault = proxy.fault(*words, forward=True)
        replica = fleet.start(redis=proxy.url)
        until(fault.answered.is_set)
        fault.cut()
        fleet.push(MESSAGES)
        fleet.wait_until_settled()
        assert fleet.ids() == [fleet.id_of(replica)]
        fleet.stop()
        assert_accounted(fleet, MESSAGES)
        assert_registry_clean(fleet)
