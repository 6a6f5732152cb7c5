"""Services go on after wrong requests, lost queues and requesters that have gone."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.encoding import decoded
from penstock.base.errors import RequestFailed, WrongCall, WrongType
from penstock.bus import Bus, Request
from penstock.bus.requests import MAX_PARTS, Requester
from tests.bus.given import attached, heard, keep_alive, provider, requester
from tests.support.harness import eventually

REPLIES = "service:echo:replyTo:0123456789abcdef"


async def test_a_request_that_fails_in_an_unforeseen_way_stops_nothing(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await provider(bus, lambda request: request.data)
    requests = await attached(bus, name="service:echo")
    init = Request.__init__

    def fail(self: Request, found: dict[str, Any], answer: Any) -> None:
        if found["data"] == "bad":
            raise OverflowError("unforeseen")
        init(self, found, answer)

    monkeypatch.setattr(Request, "__init__", fail)
    await requests.push({"data": "bad"}, json=True)
    assert await (await requester(bus)).request("good", timeout=60) == "good"


async def test_a_service_that_cannot_go_on_says_so_and_can_begin_again(bus: Bus, redis: "Redis") -> None:
    service = await provider(bus, lambda request: request.data)
    events = heard(service)
    await redis.delete("bus:queue:service:echo:messages")
    await redis.set("bus:queue:service:echo:messages", "x")
    await redis.publish("bus:queue:service:echo:available", "1")
    await eventually(lambda: not service.is_serving)
    await eventually(lambda: len(events) == 2)
    assert [each[0] for each in events] == ["error", "disconnect"]
    assert isinstance(events[0][1], WrongType)
    await redis.delete("bus:queue:service:echo:messages")
    await service.serve(lambda request: request.data)
    assert await (await requester(bus)).request(1, timeout=60) == 1


async def test_a_call_of_serve_that_is_cancelled_leaves_no_error_behind(bus: Bus) -> None:
    problems = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    for turns in range(20):
        serving = asyncio.ensure_future(bus.service("echo").serve(lambda request: request.data))
        for _ in range(turns):
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait({serving})
        await asyncio.sleep(0.001)
    gc.collect()
    assert problems == []


@pytest.mark.parametrize("way", ["closed", "lost"])
async def test_services_go_on_after_their_queues_are_closed_or_lost(bus: Bus, redis: "Redis", way: str) -> None:
    service = await provider(bus, lambda request: request.data, ttl=60)
    asks = bus.service("echo")
    await asks.connect(ttl=60)
    served, asked = heard(service), heard(asks)
    if way == "lost":
        keys = await redis.keys("bus:queue:service:*")
        assert keys
        await redis.delete(*keys)
        keep_alive(bus)
        await eventually(lambda: _exists(redis, 2))
    else:
        names = [decoded(each)[10:-9] for each in await redis.keys("bus:queue:service:*:metadata")]
        assert len(names) == 2
        for name in names:
            await (await attached(bus, name=name)).close()
        assert await asks.request(0, timeout=60) == 0
    assert await asks.request(1, timeout=60) == 1
    assert await (await requester(bus)).request(2, timeout=60) == 2
    assert service.is_serving
    assert asks.is_connected
    assert served == asked == []
    await asks.disconnect()
    await service.disconnect()
    assert len(bus._alive.queues) == 2  # of the second requester


async def _exists(redis: "Redis", many: int) -> bool:
    return len(await redis.keys("bus:queue:service:*:metadata")) == many


async def test_a_handler_that_raises_cancelled_error_fails_alone(bus: Bus) -> None:
    async def answer(request: Request) -> Any:
        if request.data == "bad":
            raise asyncio.CancelledError
        return request.data

    await provider(bus, answer)
    asks = await requester(bus)
    with pytest.raises(RequestFailed) as raised:
        await asks.request("bad", timeout=60)
    assert isinstance(raised.value.error, dict)
    assert raised.value.error["name"] == "CancelledError"
    assert await asks.request("good", timeout=60) == "good"


@pytest.mark.parametrize("waits", [False, True])
async def test_consumption_goes_on_after_a_handler_that_raises_cancelled_error(bus: Bus, waits: bool) -> None:
    queue, got = await attached(bus, "a", "b"), list[str]()

    async def later(message: object) -> None:
        got.append(str(message))
        raise asyncio.CancelledError

    def now(message: object) -> None:
        got.append(str(message))
        raise asyncio.CancelledError

    queue.on("message", later if waits else now)
    await queue.consume()
    await eventually(lambda: got == ["a", "b"])


async def test_parts_end_once_the_queue_of_the_requester_has_gone(bus: Bus, redis: "Redis") -> None:
    closed, sent = list[bool](), list[int]()

    async def count(request: Request) -> AsyncIterator[int]:
        try:
            while True:
                sent.append(1)
                yield 1
                await asyncio.sleep(0.01)
        finally:
            closed.append(True)

    await provider(bus, count, concurrency=1)
    replies = await attached(bus, name=REPLIES)
    requests = await attached(bus, name="service:echo")
    await requests.push({"replyTo": REPLIES, "reqId": "r"}, json=True)
    await eventually(lambda: len(sent) > 3)
    await replies.close()
    await eventually(lambda: closed)
    assert len(closed) == 1
    assert await (await requester(bus)).request("next", timeout=60) == 1  # the slot is free


async def test_parts_do_not_keep_the_queue_of_a_requester_alive(bus: Bus, redis: "Redis") -> None:
    ended = asyncio.Event()

    async def count(request: Request) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    await provider(bus, count, concurrency=1)
    replies = await attached(bus, name=REPLIES, ttl=60)
    requests = await attached(bus, name="service:echo")
    await requests.push({"replyTo": REPLIES, "reqId": "r"}, json=True)
    await eventually(replies.count)
    await replies.detach()  # as if it was killed: it keeps the queue alive no more
    keys = await redis.keys(f"bus:queue:{REPLIES}:*")
    assert all([0 < await redis.ttl(key) <= 60 for key in keys])
    for key in keys:
        await redis.pexpire(key, 300)
    async with asyncio.timeout(30):
        await ended.wait()
    assert await redis.keys(f"bus:queue:{REPLIES}:*") == []


async def test_an_answer_may_come_before_busmq_has_given_the_queue_its_ttl(bus: Bus, redis: "Redis") -> None:
    """busmq sends a request while it attaches: HSET and EXPIRE of its queue are two commands."""
    await provider(bus, lambda request: request.data)
    requests = await attached(bus, name="service:echo")
    await redis.hset(f"bus:queue:{REPLIES}:metadata", mapping={"ttl": "30", "source": "local", "maxsize": "0"})
    await requests.push({"data": 1, "replyTo": REPLIES, "reqId": "r"}, json=True)
    await eventually(lambda: redis.llen(f"bus:queue:{REPLIES}:messages"))
    assert 25 < await redis.ttl(f"bus:queue:{REPLIES}:metadata") <= 30


async def test_parts_end_after_the_longest_time(bus: Bus) -> None:
    async def count(request: Request) -> AsyncIterator[int]:
        while True:
            yield 1
            await asyncio.sleep(0.01)

    await provider(bus, count, concurrency=1, longest=0.3)
    asks = await requester(bus)
    for data in "xy":  # for "y" the slot was free again
        with suppress(RequestFailed):  # if the machine stalls, not even the first part comes in time
            assert await asks.request(data, timeout=60) == 1
    with pytest.raises(RequestFailed, match="longest"):
        _ = [part async for part in asks.stream("z", timeout=60)]
    with pytest.raises(WrongCall, match="longest"):
        await provider(bus, count, "other", longest=0)


async def test_parts_that_nobody_reads_fail_the_request(bus: Bus) -> None:
    async def count(request: Request) -> AsyncIterator[int]:
        for number in range(MAX_PARTS + 500):
            yield number

    await provider(bus, count)
    asks = await requester(bus)
    stream = asks.stream("x", timeout=60)
    assert await anext(stream) == 0
    assert isinstance(asks.role, Requester)
    pending = asks.role.pending
    await eventually(lambda: not pending)
    got = list[int]()

    async def read() -> None:
        async for part in stream:
            got.append(part)

    with pytest.raises(RequestFailed, match="1,000 parts"):
        await read()
    assert got == [*range(1, len(got) + 1)]
    assert MAX_PARTS - 1 <= len(got) <= MAX_PARTS + 1


async def test_requests_with_unknown_requesters_do_not_delay_the_others(bus: Bus) -> None:
    await provider(bus, lambda request: request.data, concurrency=2)
    asks = await requester(bus)
    requests = await attached(bus, name="service:echo")
    many = 500  # with two slots and half a second each it would be 125 s
    bodies = [{"data": 1, "replyTo": f"service:echo:replyTo:none{each}", "reqId": "r"} for each in range(many)]
    await requests.push_many(bodies, json=True)
    assert await asks.request(1, timeout=60) == 1
