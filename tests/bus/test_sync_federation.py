"""Objects of another site without async: a blocking bus against a gateway."""

import asyncio
import threading
from collections.abc import Iterator
from typing import assert_type

import pytest
from redis import Redis

from penstock.base.errors import Unauthorized
from penstock.sync import Bus
from penstock.sync.bus import FederatedQueue, FederatedService, Message
from tests.bus.gateway import SECRET, serving, url_of


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
