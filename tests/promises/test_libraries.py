"""Programs that use a library are killed, the server restarts, and each message is accounted for by content."""

import asyncio
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from penstock.base.ports import free_port
from penstock.outbox.store import Store
from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.jobs.load import Load, each_has_ended_once, is_through
from tests.outbox.machine import KEY, Machine, number_in
from tests.outbox.outboxes import outbox, outgoing, stored, subscribed, texts
from tests.reliability.bus_account import Workers
from tests.reliability.lists import assert_all_arrived_once, worker
from tests.support.harness import eventually, until


def test_lists_delivers_each_message_once() -> None:
    messages = [b"%d" % number for number in range(2_000)]
    with EmbeddedServer(aof=True) as server, Redis.from_url(server.url) as redis:
        redis.lpush("in", *messages)
        with worker(server.url) as killed:
            until(partial(has_in_hand, redis, killed.pid), every=0)
            killed.kill()
        with worker(server.url):
            before = redis.llen("out")
            until(lambda: redis.llen("out") > before)
            server.kill()
            server.start()
            assert_all_arrived_once(redis, messages)


def has_in_hand(redis: "Redis", pid: int) -> bool:
    """Suspend a worker for a moment; leave it suspended and return True if it has messages that it has not settled."""
    os.kill(pid, signal.SIGSTOP)
    if redis.llen("out") and any(redis.type(key) == b"list" for key in redis.scan_iter("in:consumer:*")):
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def test_bus_delivers_each_message_in_order_and_none_again_after_its_ack(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    with EmbeddedServer(aof=True) as server, Redis.from_url(server.url) as redis:
        workers = Workers(fork_server, tmp_path, server.url)
        with workers.worker("produce"), workers.worker("produce") as producer:
            with workers.worker("consume") as consumer:
                workers.until_handled()
                consumer.kill()
                producer.kill()
            with workers.worker("consume"):
                workers.until_handled()
                server.kill()
                server.start()
                workers.until_handled()
        workers.drained(redis).assert_reliable(workers.last_id(redis))


async def test_jobs_ends_each_job_once_in_each_group(tmp_path: Path) -> None:
    with EmbeddedServer(aof=True) as server:
        load = Load(server.url, tmp_path)
        try:
            for number in range(2):
                await eventually(partial(load.works, number))
                load.replace(number)
            await eventually(lambda: load.keep_up() and load.producer.lines("sent"))
            load.kill_producer()
            server.kill()
            server.start()
            await eventually(lambda: load.keep_up() and len(load.producer.lines("sent")) > 20)
            load.producer.kill()
            load.note_sent()
            async with AsyncRedis.from_url(server.url) as redis:
                await eventually(lambda: load.keep_workers() and is_through(redis))
                await each_has_ended_once(redis, load)
        finally:
            load.end()


def test_outbox_handles_each_message_and_doubles_only_what_a_killed_subscriber_had_in_hand(tmp_path: Path) -> None:
    here, there = (f"127.0.0.1:{free_port()}" for _ in range(2))

    async def subscribe() -> None:
        async with outbox(tmp_path / "a", here) as a, outbox(tmp_path / "b", there) as b:
            await subscribed(b, a, KEY)

    asyncio.run(subscribe())
    publisher, subscriber = Machine("publisher", tmp_path / "a", here), Machine("subscriber", tmp_path / "b", there)
    with publisher, subscriber:
        publisher.start()
        subscriber.start()
        until(partial(has_handled_in_hand, publisher, subscriber), every=0)
        publisher.kill()
        enough = len(publisher.numbers()) + 100
        publisher.start()
        until(lambda: len(subscriber.numbers()) > enough)
        once = Counter(subscriber.numbers())
        subscriber.kill()
        subscriber.start()
        enough = len(publisher.numbers()) + 100
        until(lambda: len(publisher.numbers()) > enough)
        publisher.stop()
        subscriber.stop()
    handled, accepted = Counter(subscriber.numbers()), set(publisher.numbers())
    assert set(once.values()) == {1}, "a publisher that is killed doubles nothing"
    assert accepted <= handled.keys()
    assert stored(tmp_path / "a", Store.counts).outgoing == 0
    assert stored(tmp_path / "b", Store.counts)[2:] == (0, 0, 0)


def has_handled_in_hand(publisher: Machine, subscriber: Machine) -> bool:
    """Suspend the publisher for a moment; leave it suspended if it does not know yet that something was handled."""
    assert publisher.process
    publisher.process.send_signal(signal.SIGSTOP)
    in_hand = texts(stored(publisher.datadir, outgoing))
    if {*map(number_in, in_hand)} & {*subscriber.numbers()}:
        return True
    publisher.process.send_signal(signal.SIGCONT)
    return False
