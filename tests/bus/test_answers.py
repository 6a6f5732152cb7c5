"""How answers travel: over the queue of their requester, and published to one that listens."""

import asyncio
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.encoding import decoded
from penstock.bus import Bus, Message, Service
from penstock.bus.requests import MAX_DIRECT, Answers, Requester
from tests.bus.given import attached
from tests.reliability.command_proxy import CommandFault, CommandProxy, Kind
from tests.support.harness import PATIENCE, eventually


async def connected(bus: Bus, handler: Any = lambda request: request.data) -> Service:
    """Return a requester of a new provider."""
    await bus.service("echo").serve(handler)
    asks = bus.service("echo")
    await asks.connect()
    return asks


async def reply_queue(redis: "Redis") -> str:
    (key,) = await redis.keys("bus:queue:service:echo:replyTo:*:metadata")
    return decoded(key).removeprefix("bus:queue:").removesuffix(":metadata")


async def test_an_answer_is_published_to_a_requester_that_listens_and_leaves_its_queue(
    bus: Bus, redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = await connected(bus)
    taken = list[Message]()
    monkeypatch.setattr(Requester, "_note_reply", lambda _, message: taken.append(message))
    assert await asyncio.gather(*(asks.request(number, timeout=60) for number in range(200))) == [*range(200)]
    name = await reply_queue(redis)
    assert await redis.get(f"bus:queue:{name}:msgid") == b"200"
    await eventually(lambda: _is_empty(redis, name))
    assert taken == []


@pytest.mark.parametrize("heard", [0, 1])
async def test_an_answer_that_was_not_heard_is_taken_from_the_queue(
    heard: int, bus: Bus, redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is cut takes with it what the server has published and the requester has not received."""
    asks = await connected(bus)
    note, published = Requester._note_published, list[int]()

    def hear_some(requester: Requester, first: int, *answers: Any) -> None:
        published.append(first)
        if (len(published) - 1) % (heard + 1):
            note(requester, first, *answers)

    monkeypatch.setattr(Requester, "_note_published", hear_some)
    requests = [asyncio.ensure_future(asks.request(number, timeout=60)) for number in range(100)]
    pause = 0.05
    while not all(each.done() for each in requests):
        await asyncio.sleep(pause)
        pause *= 1.2  # a slow machine takes longer to connect again
        await redis.client_kill_filter(_type="pubsub")
    assert [each.result() for each in requests] == [*range(100)]
    assert published
    monkeypatch.undo()
    await eventually(lambda: _nothing_left(asks, redis))


async def test_answers_are_heard_after_the_queue_was_closed(bus: Bus, redis: "Redis") -> None:
    asks = await connected(bus)
    for number in range(5):
        assert await asks.request(number, timeout=60) == number
    name = await reply_queue(redis)
    closing = await attached(bus, name=name)
    await closing.close()
    await eventually(lambda: redis.exists(f"bus:queue:{name}:metadata"))
    for number in range(3):
        assert await asks.request(number, timeout=60) == number
    await eventually(lambda: _is_empty(redis, name))


async def test_a_large_answer_is_taken_from_the_queue(bus: Bus, redis: "Redis") -> None:
    """The server would cut off a requester that stalls while too much is published to it."""
    asks = await connected(bus)
    assert await asks.request("x" * MAX_DIRECT, timeout=60) == "x" * MAX_DIRECT
    assert await redis.get(f"bus:queue:{await reply_queue(redis)}:msgid") == b"1"


async def test_parts_of_an_answer_stay_in_order_whatever_their_size(bus: Bus) -> None:
    async def in_parts(_: Any) -> Any:
        for size in (1, 2 * MAX_DIRECT, 1, 2 * MAX_DIRECT):
            yield "x" * size

    asks = await connected(bus, in_parts)
    assert [len(part) async for part in asks.stream(None, timeout=60)] == [1, 2 * MAX_DIRECT, 1, 2 * MAX_DIRECT]


@pytest.mark.parametrize("nth", range(3))
async def test_no_part_of_an_answer_is_lost_with_the_reply_that_brought_it(bus: Bus, redis: "Redis", nth: int) -> None:
    goes_on = asyncio.Event()

    async def in_parts(_: Any) -> Any:
        for number in range(10):
            yield number
            await goes_on.wait()
            await asyncio.sleep(0.01)

    await (await connected(bus, in_parts)).disconnect()  # the server knows the scripts, too, then
    with CommandProxy(redis.connection_pool.connection_kwargs["port"]) as proxy:
        async with Bus(proxy.url) as far:
            asks, parts = far.service("echo"), list[int]()
            await asks.connect()
            async for part in asks.stream(None, timeout=PATIENCE):
                parts.append(part)
                if not goes_on.is_set():
                    proxy.inject(CommandFault(Kind.CUT_BEFORE_REPLY, "EVALSHA", proxy.commands.count("EVALSHA") + nth))
                    goes_on.set()
    assert proxy.met
    assert parts == [*range(10)]


async def test_a_requester_that_does_not_listen_takes_its_answer_from_the_queue(bus: Bus, redis: "Redis") -> None:
    asks = await connected(bus)
    channel = f"bus:queue:{await reply_queue(redis)}:direct".encode()
    subscriber = bus.first.subscriber
    for listener in subscriber.listeners(channel):
        subscriber.remove(channel, listener)
    await eventually(lambda: _unheard(redis, channel))
    assert await asks.request("x", timeout=60) == "x"
    assert await asks.request("y", timeout=60) == "y"
    assert await redis.get(f"bus:queue:{await reply_queue(redis)}:msgid") == b"2"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"5",
        b"null",
        b"{}",
        b"[]",
        b'[1, [], "x", {}]',
        b'["x"]',
        b"[true]",
        b"[-5, 1]",
        b"\xff",
        b"[" * 100_000,
    ],
)
async def test_what_is_no_list_of_answers_is_ignored(bus: Bus, redis: "Redis", body: bytes) -> None:
    asks = await connected(bus)
    assert await redis.publish(f"bus:queue:{await reply_queue(redis)}:direct", body) == 1
    assert await asks.request("x", timeout=60) == "x"


async def test_answers_that_come_while_a_call_is_under_way_go_together(bus: Bus, redis: "Redis") -> None:
    queue, pushed = await attached(bus, name="service:echo:replyTo:0123456789abcdef"), Answers(bus)
    bodies = [b"%d" % number for number in range(1_200)]
    async with redis.pubsub() as listening:
        await listening.subscribe(queue.available)
        assert all(await asyncio.gather(*(pushed.push(queue.name, body, part=True) for body in bodies)))
        await redis.publish(queue.available, "end")
        heard = list[bytes]()
        async for each in listening.listen():
            heard += [each["data"]] if each["type"] == "message" else []
            if each["data"] == b"end":
                break
    assert heard == [b"1", b"501", b"1001", b"1200", b"end"]
    assert [each.body async for each in queue.consume(limit=1_200)] == bodies


async def test_answers_without_a_queue_are_refused_each(bus: Bus, redis: "Redis") -> None:
    answers, name = Answers(bus), "service:echo:replyTo:0123456789abcdef"
    many = [answers.push(name, json.dumps(number).encode(), part=False) for number in range(20)]
    assert await asyncio.gather(*many) == [False] * 20
    assert await redis.keys(f"*{name}*") == []


async def _is_empty(redis: "Redis", name: str) -> bool:
    return await redis.llen(f"bus:queue:{name}:messages") == 0


async def _nothing_left(asks: Service, redis: "Redis") -> bool:
    await asks.request("x", timeout=60)
    return await _is_empty(redis, await reply_queue(redis))


async def _unheard(redis: "Redis", channel: bytes) -> bool:
    return (await redis.pubsub_numsub(channel))[0][1] == 0
