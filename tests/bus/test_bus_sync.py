"""The bus without async: the same names, blocking."""

import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import pytest
from redis import Redis

from penstock.base.errors import Full, RequestFailed, WrongCall
from penstock.outbox import Outbox
from penstock.sync import Bus, Queue
from penstock.sync.bus import Message
from tests.support.harness import PATIENCE, until


@pytest.fixture
def bus(redis: "Redis", redis_url: str) -> Iterator[Bus]:
    with Bus(redis_url, patience=60) as connected:
        yield connected


def attached(bus: Bus, *messages: str) -> Queue:
    queue = bus.queue("foo")
    assert queue.attach() is False
    queue.push_many(messages)
    return queue


def handlers_of(bus: Bus) -> Any:
    """Return what the bus keeps of handlers, which is no part of its types."""
    return vars(bus)["_host"].found


def test_messages_are_pushed_and_consumed(bus: Bus) -> None:
    queue = attached(bus, "a", "b")
    assert assert_type(queue.push({"x": 1}, json=True), int) == 3
    found = [assert_type(message, Message) for message in queue.consume(limit=3)]
    assert [(each.id, str(each)) for each in found] == [(1, "a"), (2, "b"), (3, '{"x":1}')]
    assert found[2].json() == {"x": 1}
    assert (queue.count(), queue.is_attached, queue.is_consuming) == (0, True, False)


def test_a_loop_that_is_left_gives_back_the_rest(bus: Bus) -> None:
    queue = attached(bus, *map(str, range(2_000)))
    for message in queue.consume(reliable=True):
        message.ack()
        if message.id == 700:
            break
    assert queue.count() == 1_300
    assert next(iter(queue.consume(reliable=True))).id == 701


def test_handlers_run_in_order_in_a_thread_and_may_call_the_bus(bus: Bus) -> None:
    queue, heard, done = attached(bus, "a", "b", "c"), list[tuple[str, int]](), threading.Event()

    def handle(message: Any) -> None:
        heard.append((str(message), queue.count()))
        if len(heard) == 3:
            done.set()

    assert queue.on("message", handle) is handle
    queue.consume(prefetch=1).start()
    assert done.wait(60)
    assert heard == [("a", 2), ("b", 1), ("c", 0)]
    queue.off("message", handle)
    queue.push("d")
    time.sleep(0.1)  # timing: nothing may happen
    assert len(heard) == 3


def test_services_answer_side_by_side_with_parts_and_errors(bus: Bus, redis_url: str) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    def answer(request: Any) -> Any:
        if request.data == "fail":
            raise ValueError("no such thing")
        both.wait()
        return [request.data, request.reply_to is not None]

    def count(request: Any) -> Iterator[int]:
        yield from range(request.data)

    bus.service("echo").serve(answer)
    bus.service("count").serve(count)
    with Bus(redis_url) as other:
        echo, counter, found = other.service("echo"), other.service("count"), list[Any]()
        echo.connect()
        counter.connect()
        first = threading.Thread(target=lambda: found.append(echo.request(1, timeout=60)))
        first.start()
        assert echo.request(2, timeout=60) == [2, True]
        first.join()
        assert found == [[1, True]]
        with pytest.raises(RequestFailed, match="no such thing"):
            echo.request("fail", timeout=60)
        assert list(counter.stream(3, timeout=60)) == [0, 1, 2]


def test_channels_topics_and_objects_block_as_well(bus: Bus, redis_url: str) -> None:
    @dataclass
    class Cart:
        total: int = 0

    with Bus(redis_url) as other:
        here, there = bus.channel("zoo"), other.channel("zoo")
        here.connect()
        there.listen()
        here.send("hi")
        assert next(iter(there.messages())).body == b"hi"
        cart, seen = bus.persistable("cart", Cart(5)), other.persistable("cart", Cart())
        assert cart.save() is True
        assert (seen.load(), seen.value) == (True, Cart(5))
        cart.value = Cart(7)
        assert (cart.save(), seen.load(), seen.value) == (True, True, Cart(7))
        topic, heard = other.pubsub("news"), threading.Event()
        topic.on("message", lambda body: heard.set() if body == b"new" else None)
        topic.subscribe()
        assert bus.pubsub("news").publish("new") == 1
        assert heard.wait(60)


def test_mistakes_raise_where_they_are_made(bus: Bus, redis_url: str, tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="data directory"):
        Bus(redis_url, outbox=Outbox(datadir=tmp_path))  # type: ignore[arg-type]

    async def handler(message: object) -> None: ...

    with pytest.raises(WrongCall, match="plain function"):
        bus.queue("foo").on("message", handler)


def test_handlers_given_by_name_run_in_threads_too(bus: Bus) -> None:
    service, asks, found, done = bus.service("echo"), bus.service("echo"), list[str](), threading.Event()
    service.serve(handler=lambda request: [threading.current_thread().name, type(request).__name__])
    asks.connect()
    thread, kind = asks.request(1, timeout=60)
    assert thread.startswith("penstock-service")
    assert kind == "Request"
    queue = attached(bus, "a")

    def handle(message: Any) -> None:
        found.extend([threading.current_thread().name, type(message).__name__])
        done.set()

    queue.on("message", handler=handle)
    queue.consume().start()
    assert done.wait(60)
    assert found[0].startswith("penstock-handlers")
    assert found[1] == "Message"
    queue.off("message", handler=handle)
    assert not vars(queue)["_inner"].has_handlers("message")


def test_a_service_has_a_thread_for_each_request_at_once(bus: Bus, redis_url: str) -> None:
    together = threading.Barrier(50, timeout=PATIENCE)  # more than the threads of a default executor
    bus.service("echo").serve(lambda request: together.wait() >= 0, concurrency=50)
    with Bus(redis_url) as other:
        asks, found = other.service("echo"), list[bool]()
        asks.connect()
        threads = [threading.Thread(target=lambda: found.append(asks.request(1, timeout=60))) for _ in range(50)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert found == [True] * 50


def test_a_generator_is_pushed_in_the_thread_of_the_caller(bus: Bus) -> None:
    queue, target, threads = attached(bus, *map(str, range(1_200))), bus.queue("target"), set[str]()
    target.attach(maxsize=1_100)

    def bodies() -> Iterator[bytes]:
        for message in queue.consume(limit=1_200):
            threads.add(threading.current_thread().name)
            yield bytes(message)

    with pytest.raises(Full) as raised:
        target.push_many(bodies())
    assert threads == {threading.current_thread().name}
    assert raised.value.ids == [*range(1, 1_101)]
    assert target.count() == 1_100


def test_parts_of_a_requester_that_left_end_the_generator(bus: Bus, redis_url: str) -> None:
    closed = threading.Event()

    def count(request: Any) -> Iterator[int]:
        try:
            while True:
                yield 1
                time.sleep(0.01)
        finally:
            closed.set()

    bus.service("count").serve(count, concurrency=1, longest=0.2)
    asks = bus.service("count")
    asks.connect()
    with suppress(RequestFailed):  # if the machine stalls, not even the first part comes in time
        assert asks.request(1, timeout=60) == 1
    assert closed.wait(PATIENCE)


def test_a_handler_that_raises_stop_iteration_fails(bus: Bus) -> None:
    bus.service("echo").serve(lambda request: next(iter(())))
    asks = bus.service("echo")
    asks.connect()
    with pytest.raises(RequestFailed, match="StopIteration"):
        asks.request(1, timeout=60)


def test_what_calls_handlers_once_is_not_kept(bus: Bus) -> None:
    queue = bus.queue("foo")
    for _ in range(100):
        queue.once("attached", lambda existed: None)
    assert len(handlers_of(bus)) == 100
    queue.attach()
    until = time.monotonic() + 60
    while len(handlers_of(bus)) and time.monotonic() < until:  # they are called one after the other
        gc.collect()
        time.sleep(0.01)
    assert len(handlers_of(bus)) == 0


def test_a_call_after_with_is_refused(redis_url: str) -> None:
    with Bus(redis_url) as bus:
        queue = bus.queue("foo")
        queue.attach()
    for call in (bus.queue, queue.push):
        with pytest.raises(WrongCall, match="with Bus"):
            call("foo")

    def yields(message: object) -> Iterator[int]:
        yield 1

    with bus, pytest.raises(WrongCall, match="yields"):
        bus.queue("foo").on("message", yields)


def test_handlers_are_called_in_the_next_with_as_well(redis_url: str) -> None:
    bus, heard = Bus(redis_url), threading.Event()
    with bus:
        bus.on("online", heard.set)
    with bus:
        assert heard.wait(PATIENCE)


def test_a_second_with_disturbs_no_first_one(bus: Bus) -> None:
    queue = attached(bus, "a")
    with pytest.raises(WrongCall, match="connected already"), bus:
        pass
    assert queue.count() == 1


def test_a_signal_ends_a_loop_after_the_message_in_hand(bus: Bus) -> None:
    queue, handled = attached(bus, "a", "b", "c"), list[int]()
    former = signal.signal(signal.SIGUSR1, lambda *_: queue.stop())
    try:
        for message in queue.consume(reliable=True, prefetch=2):
            signal.raise_signal(signal.SIGUSR1)
            handled.append(message.id)
            message.ack()
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert handled == [1]
    assert queue.count() == 2


def test_a_signal_ends_a_loop_that_waits(bus: Bus) -> None:
    queue = attached(bus)
    former = signal.signal(signal.SIGUSR1, lambda *_: queue.stop())
    try:

        def raise_signal() -> None:
            until(lambda: queue.is_consuming)
            signal.raise_signal(signal.SIGUSR1)

        thread = threading.Thread(target=raise_signal)
        thread.start()
        assert [*queue.consume()] == []
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert queue.is_attached
