"""Tests of mpush with a subscriber that does not read: its list stops at ``maxLength``; every copy is accounted for."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
from redis import Redis

from penstock.testing.server import EmbeddedServer
from services.mpush.settings import MAX_OUTS
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Fleet, Publisher, QueueService, assert_registry_clean, audited
from tests.support.harness import until

LIMIT = 100
MESSAGES = [b"message %d" % number for number in range(1_000)]


@pytest.fixture
def service() -> QueueService:
    return QueueService("mpush")


def assert_conserved(fleet: Fleet, taken: int, **given_up: int) -> None:
    """Assert for each list that taken = delivered + dead + dropped, with ``given_up`` dead and dropped."""
    counters = {name: fleet.metric(name) for name in ("taken", "delivered", "dead", "dropped")}
    for out in fleet.service.outs:
        counts = {name: fields.get(out, 0) for name, fields in counters.items()}
        assert counts["taken"] == counts["delivered"] + counts["dead"] + counts["dropped"] == taken
        assert {name: counts[name] for name in given_up} == given_up
    for name in ("delivered", "dead", "dropped"):
        assert counters[name].get("count", 0) == sum(counters[name].get(out, 0) for out in fleet.service.outs)


def dead_letters(fleet: Fleet) -> list[dict[str, object]]:
    """Return the dead letters, oldest first. Messages are decoded as Latin 1, as they need not be UTF-8."""
    return [json.loads(letter.decode("latin-1")) for letter in fleet.held(fleet.keys.dead)]


def test_block_keeps_messages_back_until_every_subscriber_has_room(fleet: Fleet) -> None:
    first, second = fleet.service.outs
    replica = fleet.up(max_length=LIMIT)
    fleet.push(MESSAGES)
    until(lambda: '"reason": "full: ' in replica.log_text())
    assert [fleet.held(out) for out in fleet.service.outs] == [MESSAGES[:LIMIT]] * 2
    assert fleet.redis.llen(fleet.service.source) + sum(fleet.pending().values()) == len(MESSAGES) - LIMIT
    assert_conserved(fleet, LIMIT, dead=0, dropped=0)
    read = {first: fleet.redis.rpop(first, 50), second: fleet.redis.rpop(second, 30)}
    until(lambda: fleet.redis.llen(second) == LIMIT)
    assert fleet.redis.llen(first) == LIMIT - 20
    assert_conserved(fleet, LIMIT + 30, dead=0, dropped=0)
    while not (fleet.is_settled() and not fleet.redis.exists(first, second)):
        for out in fleet.service.outs:
            read[out] += fleet.redis.rpop(out, 7) or []
            assert fleet.redis.llen(out) <= LIMIT
    assert list(read.values()) == [MESSAGES] * 2
    assert_conserved(fleet, len(MESSAGES), dead=0, dropped=0)
    until(lambda: "resumed" in replica.log_text())


def test_a_replica_that_is_blocked_stops_and_the_next_goes_on(fleet: Fleet) -> None:
    replica = fleet.up(max_length=LIMIT)
    fleet.push(MESSAGES)
    until(lambda: '"reason": "full: ' in replica.log_text())
    assert replica.stop(timeout=60) == 0
    fleet.up()
    fleet.wait_until_settled()
    assert [fleet.held(out) for out in fleet.service.outs] == [MESSAGES] * 2


def test_drop_oldest_keeps_the_newest(fleet: Fleet) -> None:
    fleet.up(max_length=LIMIT, overflow="drop-oldest", batch=30)
    fleet.push(MESSAGES)
    fleet.wait_until_settled()
    assert [fleet.held(out) for out in fleet.service.outs] == [MESSAGES[-LIMIT:]] * 2
    assert_conserved(fleet, len(MESSAGES), delivered=LIMIT, dropped=len(MESSAGES) - LIMIT, dead=0)


def test_dead_letters_hold_every_byte_and_say_why_and_for_whom(fleet: Fleet) -> None:
    odd = [b"", b"\0", bytes(range(256)), b"\xff\xc3\x28", b'"quoted" \\ /', "Größe ✓".encode(), b"007"]
    first, second = fleet.service.outs
    fleet.redis.lpush(first, *([b"unread"] * (LIMIT - 2)))
    fleet.up(max_length=LIMIT, overflow="dead")
    began = fleet.redis.time()[0]
    fleet.push(odd)
    fleet.wait_until_settled()
    assert fleet.held(first)[LIMIT - 2 :] == odd[:2]
    assert fleet.held(second) == odd
    letters = dead_letters(fleet)
    assert [str(letter["message"]).encode("latin-1") for letter in letters] == odd[2:]
    assert {(letter["queue"], letter["reason"], letter["attempts"]) for letter in letters} == {(first, "maxLength", 1)}
    assert all(began * 1000 <= int(str(letter["at"])) <= (fleet.redis.time()[0] + 1) * 1000 for letter in letters)
    assert fleet.metric("dead") == {"count": len(odd) - 2, first: len(odd) - 2}
    assert_conserved(fleet, len(odd))


@contextmanager
def subscriber(fleet: Fleet, out: str, rng: random.Random) -> Iterator[list[bytes]]:
    """Read ``out`` now and then, a few messages at a time, in a thread; yield the list of all that it got."""
    got: list[bytes] = []
    ended = Event()

    def read() -> None:
        with Redis.from_url(fleet.url) as redis:
            while not ended.wait(rng.random() * 0.01):
                got.extend(redis.rpop(out, rng.randint(1, 100)) or [])

    thread = Thread(target=read)
    thread.start()
    try:
        yield got
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("overflow", ["block", "drop-oldest", "dead"])
def test_every_copy_is_accounted_for_when_replicas_are_killed_at_the_limit(
    fleet: Fleet, rng: random.Random, overflow: str
) -> None:
    settings: dict[str, object] = {"max_length": LIMIT, "overflow": overflow, "batch": 30}
    first, second = fleet.service.outs
    killed = []
    with subscriber(fleet, first, rng) as some, subscriber(fleet, second, rng) as others:
        with Publisher(fleet, rng, most_waiting=2 * LIMIT) as publisher:
            for _ in range(20):
                replica = fleet.up(**settings)
                time.sleep(rng.uniform(0, 0.05))  # a random time for the kill, not a wait
                killed.append(str(fleet.id_of(replica)))
                replica.kill()
                fleet.forget(replica)
        fleet.up(**settings)
        fleet.wait_until_settled()
        fleet.stop()
    letters = Counter((letter["queue"], str(letter["message"]).encode("latin-1")) for letter in dead_letters(fleet))
    for out, got in ((first, some), (second, others)):
        found = Counter(got + fleet.held(out))
        buried = Counter({message: count for (queue, message), count in letters.items() if queue == out})
        missing = Counter(publisher.accepted) - found - buried
        assert (found + buried).total() + missing.total() == len(publisher.accepted), "some came twice"
        assert missing.total() == fleet.metric("dropped").get(out, 0)
        assert buried.total() == fleet.metric("dead").get(out, 0)
        assert found.total() == fleet.metric("delivered").get(out, 0)
    assert_conserved(fleet, len(publisher.accepted))
    assert_registry_clean(fleet, killed=killed)


def test_as_many_lists_as_there_may_be_get_every_message(fleet: Fleet, launch: Launch, server: EmbeddedServer) -> None:
    outs = tuple(f"copy:{number}" for number in range(MAX_OUTS))
    fleet = launch(server, QueueService("mpush", outs=outs), overflow="drop-oldest", max_length=2)
    fleet.up()
    fleet.push([b"one", b"two", b"three"])
    fleet.wait_until_settled()
    fleet.stop()
    assert {tuple(fleet.held(out)) for out in outs} == {(b"two", b"three")}
    assert asyncio.run(audited(fleet)) == []
