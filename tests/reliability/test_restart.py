"""The server goes away and comes back."""

import random
import socket
import time

import pytest
from redis import Redis

from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.conftest import Staged
from tests.reliability.stage import Publisher, assert_accounted, assert_registry_clean

RESTARTS = 20
RESUMES_WITHIN = 10.0
"""Seconds, on a machine that is busy with other tests; else a second or two."""


@pytest.mark.fast
def test_consumption_resumes_soon_each_time_a_server_with_aof_restarts_under_load(
    staged: Staged, rng: random.Random
) -> None:
    took = []
    with EmbeddedServer(aof=True) as server:
        stage = staged(server)
        replicas = [stage.up(), stage.up()]
        with Publisher(stage, rng) as publisher:
            for _ in range(RESTARTS):
                time.sleep(rng.uniform(0, 0.2))  # not a wait for something: the time of the restart is chance
                rng.choice([server.kill, server.stop])()
                server.start()
                took.append(stage.until_more_is_taken(RESUMES_WITHIN))
        print(f"resumed after {', '.join(f'{seconds:.2f}' for seconds in took)} s")
        stage.wait_until_settled()
        until(lambda: all("resumed" in replica.said() for replica in replicas))
        stage.stop()
        assert_accounted(stage, publisher.accepted, publisher.unsure)
        assert_registry_clean(stage)


def test_a_server_that_forgot_everything_is_served_again(staged: Staged, rng: random.Random) -> None:
    with EmbeddedServer() as server:
        stage = staged(server)
        stage.up()
        for _ in range(3):
            with Publisher(stage, rng):
                stage.until_more_is_taken()
                server.kill()
            server.start()
            messages = [b"message %d" % number for number in range(100)]
            stage.push(messages)
            until(lambda: stage.ids() == ["1"])
            stage.wait_until_settled()
            assert_accounted(stage, messages)
        stage.stop()
        assert_registry_clean(stage)


def test_consumption_resumes_soon_after_an_outage_that_made_a_replica_patient(staged: Staged) -> None:
    """It has asked so often in vain that its back-off is as long as it gets."""
    messages = [b"message %d" % number for number in range(100)]
    with EmbeddedServer(aof=True) as server:
        stage = staged(server)
        stage.up()
        stage.waiting()
        server.kill()
        with socket.create_server(("127.0.0.1", server.port)) as nobody:
            for _ in range(12):
                nobody.accept()[0].close()
        server.start()
        stage.push(messages)
        stage.wait_until_settled(RESUMES_WITHIN)
        stage.stop()
        assert_accounted(stage, messages)


def test_a_server_of_the_registrations_that_goes_away_stops_no_message(staged: Staged) -> None:
    messages = [b"message %d" % number for number in range(100)]
    with EmbeddedServer() as server, EmbeddedServer() as registry, Redis.from_url(registry.url) as registered:
        stage = staged(server, service_redis=registry.url)
        replica = stage.start()
        until(lambda: registered.lrange(stage.keys.ids, 0, -1) == [b"1"])
        stage.waiting()
        registry.kill()
        stage.push(messages[:50])
        stage.wait_until_settled()
        registry.start()
        until(lambda: replica.said().count('"registered"') == 2)
        stage.push(messages[50:])
        stage.wait_until_settled()
        stage.stop()
        assert registered.lrange(stage.keys.ids, 0, -1) == []
        assert_accounted(stage, messages)
