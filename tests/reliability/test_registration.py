"""A replica is registered or it does not run, whatever becomes of its registration, its server and its replies."""

import random
import time
from functools import partial

import pytest

from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.conftest import Staged
from tests.reliability.forkserver import Replica
from tests.reliability.proxy import Proxy
from tests.reliability.stage import Publisher, Stage, assert_accounted, assert_registry_clean

MESSAGES = [b"message %d" % number for number in range(100)]


def delete_registration(stage: Stage) -> None:
    """The order to stop, as an operator gives it."""
    (id,) = stage.ids()
    assert stage.redis.delete(stage.keys.instance(id)) == 1


def test_a_deleted_registration_stops_a_replica_under_load(stage: Stage, rng: random.Random) -> None:
    with Publisher(stage, rng) as publisher:
        for _ in range(5):
            replica = stage.up()
            stage.until_more_is_taken()
            delete_registration(stage)
            assert replica.wait() == 0
            assert_registry_clean(stage)
    stage.up()
    stage.wait_until_settled()
    stage.stop()
    assert_accounted(stage, publisher.accepted)


def stopped_or_registered(stage: Stage, replica: Replica) -> bool:
    return not replica.running or stage.id_of(replica) is not None


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "idle"])
@pytest.mark.parametrize("aof", [True, False], ids=["aof", "memory"])
def test_a_registration_deleted_while_the_server_restarts_stops_the_replica_or_is_made_anew(
    staged: Staged, rng: random.Random, aof: bool, loaded: bool
) -> None:
    sooner = set()
    with EmbeddedServer(aof=aof) as server:
        stage = staged(server)
        for _ in range(5):
            replica = stage.up()
            until(lambda: len(stage.ids()) == 1)  # those of dead ones are gone
            sooner |= set(stage.ids())
            with Publisher(stage, rng, most_waiting=5_000 if loaded else 0):
                delete_registration(stage)
                time.sleep(rng.uniform(0, 0.02) if loaded else 0)  # not a wait: when the server goes is chance
                rng.choice([server.kill, server.stop])()
                server.start()
                until(partial(stopped_or_registered, stage, replica))
            # One that has seen the deletion is on its way out, though the server may have come back without it: an
            # append-only file is written later while the one before is synced.
            stage.push(MESSAGES)
            until(lambda replica=replica: stage.is_settled() or not replica.running)  # type: ignore[misc]
            stage.redis.delete(*map(stage.keys.instance, stage.ids()), "-")
            assert replica.wait() == 0
        stage.up()
        stage.stop()
        assert_registry_clean(stage, killed=sooner)


@pytest.mark.parametrize("words", [["LTRIM", "demo:ids"], ["ZADD", "demo:owners"], ["demo:metrics:start"]])
def test_a_reply_lost_while_registering_leaves_no_second_registration(
    staged: Staged, server: EmbeddedServer, words: list[str]
) -> None:
    with Proxy(server.port) as proxy:
        stage = staged(server)
        stage.redis.flushall()
        stage.redis.script_flush()
        fault = proxy.fault(*words, forward=True)
        replica = stage.start(redis=proxy.url)
        until(fault.answered.is_set)
        fault.cut()
        stage.push(MESSAGES)
        stage.wait_until_settled()
        assert stage.ids() == [stage.id_of(replica)]
        stage.stop()
        assert_accounted(stage, MESSAGES)
        assert_registry_clean(stage)
