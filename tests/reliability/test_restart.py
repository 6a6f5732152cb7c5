"""Tests of a server that goes away and comes back."""

import random
import socket
import time

from redis import Redis

from penstock.testing.server import EmbeddedServer
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Publisher, assert_accounted, assert_registry_clean
from tests.support.harness import until

RESTARTS = 20
MAX_RESUME_SECONDS = 10.0
"""Maximum seconds on a machine busy with other tests; usually a second or two."""


def test_consumption_resumes_soon_each_time_a_server_with_aof_restarts_under_load(
    launch: Launch, rng: random.Random
) -> None:
    took = []
    with EmbeddedServer(aof=True) as server:
        fleet = launch(server)
        replicas = [fleet.up(), fleet.up()]
        with Publisher(fleet, rng) as publisher:
            for _ in range(RESTARTS):
                time.sleep(rng.uniform(0, 0.2))  # a random time for the restart, not a wait
                rng.choice([server.kill, server.stop])()
                server.start()
                took.append(fleet.until_more_is_taken(MAX_RESUME_SECONDS))
        print(f"resumed after {', '.join(f'{seconds:.2f}' for seconds in took)} s")
        fleet.wait_until_settled()
        until(lambda: all("resumed" in replica.log_text() for replica in replicas))
        fleet.stop()
        assert_accounted(fleet, publisher.accepted, publisher.unsure)
        assert_registry_clean(fleet)


def test_a_server_that_forgot_everything_is_served_again(launch: Launch, rng: random.Random) -> None:
    with EmbeddedServer() as server:
        fleet = launch(server)
        fleet.up()
        for _ in range(3):
            with Publisher(fleet, rng):
                fleet.until_more_is_taken()
                server.kill()
            server.start()
            messages = [b"message %d" % number for number in range(100)]
            fleet.push(messages)
            until(lambda: fleet.ids() == ["1"])
            fleet.wait_until_settled()
            assert_accounted(fleet, messages)
        fleet.stop()
        assert_registry_clean(fleet)


def test_consumption_resumes_soon_after_an_outage_that_made_a_replica_patient(launch: Launch) -> None:
    """It has failed so often that its back-off is at the maximum."""
    messages = [b"message %d" % number for number in range(100)]
    with EmbeddedServer(aof=True) as server:
        fleet = launch(server)
        fleet.up()
        fleet.waiting()
        server.kill()
        with socket.create_server(("127.0.0.1", server.port)) as nobody:
            for _ in range(12):
                nobody.accept()[0].close()
        server.start()
        fleet.push(messages)
        fleet.wait_until_settled(MAX_RESUME_SECONDS)
        fleet.stop()
        assert_accounted(fleet, messages)


def test_a_server_of_the_registrations_that_goes_away_stops_no_message(launch: Launch) -> None:
    messages = [b"message %d" % number for number in range(100)]
    with EmbeddedServer() as server, EmbeddedServer() as registry, Redis.from_url(registry.url) as registered:
        fleet = launch(server, service_redis=registry.url)
        replica = fleet.start()
        until(lambda: registered.lrange(fleet.keys.ids, 0, -1) == [b"1"])
        fleet.waiting()
        registry.kill()
        fleet.push(messages[:50])
        fleet.wait_until_settled()
        registry.start()
        until(lambda: replica.log_text().count('"registered"') == 2)
        fleet.push(messages[50:])
        fleet.wait_until_settled()
        fleet.stop()
        assert registered.lrange(fleet.keys.ids, 0, -1) == []
        assert_accounted(fleet, messages)
