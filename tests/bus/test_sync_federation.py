"""Objects of another site without async: a blocking bus against a gateway."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_type

import pytest
from redis import Redis

from penstock.base.errors import Unauthorized
from penstock.sync import Bus
from penstock.sync.bus import FederatedQueue, FederatedService, Message
from tests.bus.gateway import SECRET, serving, url_of


@dataclass
class Cart:
    total: int = 0


@pytest.fixture
def url(redis: "Redis", redis_url: str) -> Iterator[str]:
    """Yield the URL of a gateway, which runs in a thread."""
    started, urls, stop = threading.Event(), list[str](), asyncio.Event()

    async def serve() -> None:
        async with serving(redis_url) as listener:
            urls.append(url_of(listener))
            started.set()
            await stop.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    assert started.wait(60)
    yield urls[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus(patience=60) as connected:
        yield connected


def test_a_queue_of_another_site_is_pushed_to_and_consumed(bus: Bus, url: str, redis: "Redis") -> None:
    queue = assert_type(bus.federate(bus.queue("foo"), url, secret=SECRET), FederatedQueue)
    assert (type(queue), queue.attach(ttl=60)) == (FederatedQueue, False)
    assert assert_type(queue.push("a"), int) == 1
    assert queue.push_many(iter(["b", "c", "d"])) == [2, 3, 4]
    found = [assert_type(message, Message) for message in queue.consume(limit=2)]
    assert [(each.id, each.body, type(each)) for each in found] == [(1, b"a", Message), (2, b"b", Message)]
    for message in queue.consume(reliable=True):
        message.ack()
        break
    assert message.id == 3
    assert [message.id for message in queue.consume(reliable=True, limit=1)] == [4]


def test_handlers_of_a_queue_of_another_site_run_in_a_thread(bus: Bus, url: str) -> None:
    queue, heard, done = bus.federate(bus.queue("foo"), url, secret=SECRET), list[tuple[str, str]](), threading.Event()
    queue.attach()

    def handle(message: Message) -> None:
        heard.append((str(message), threading.current_thread().name))
        done.set()

    queue.on("message", handle)
    queue.consume().start()
    queue.push("a")
    assert done.wait(60)
    assert heard[0][0] == "a"
    assert heard[0][1].startswith("penstock-handlers")


def test_channels_topics_and_objects_of_another_site_block_as_well(bus: Bus, url: str, redis_url: str) -> None:
    with Bus(redis_url) as there:
        channel, other = bus.federate(bus.channel("zoo"), url, secret=SECRET), there.channel("zoo")
        other.listen()
        channel.connect()
        channel.send("hi")
        assert next(iter(other.messages())).body == b"hi"
        other.send("ho")
        assert next(iter(channel.messages())).body == b"ho"
        cart = bus.federate(bus.persistable("cart", Cart(5)), url, secret=SECRET)
        seen = there.persistable("cart", Cart())
        assert (cart.save(), seen.load(), seen.value) == (True, True, Cart(5))
        topic, heard = bus.federate(bus.pubsub("news"), url, secret=SECRET), threading.Event()
        topic.on("message", lambda body: heard.set() if body == b"new" else None)
        topic.subscribe()
        assert there.pubsub("news").publish("new") == 1
        assert heard.wait(60)


def test_a_wrong_secret_is_raised(bus: Bus, url: str) -> None:
    queue = bus.federate(bus.queue("foo"), url, secret="wrong")
    with pytest.raises(Unauthorized):
        queue.attach()


def test_a_service_of_another_site_answers(bus: Bus, url: str) -> None:
    provider = assert_type(bus.federate(bus.service("double"), url, secret=SECRET), FederatedService)
    client = bus.federate(bus.service("double"), url, secret=SECRET)
    assert type(client) is FederatedService
    provider.serve(lambda request: 2 * request.data)
    client.connect()
    assert client.request(21, timeout=60) == 42
    client.disconnect()
    provider.disconnect()
