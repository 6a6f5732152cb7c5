"""Services: BQ-61."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.encoding import decoded
from penstock.base.errors import RequestFailed, RequestTimeout, Unavailable, WrongCall, WrongType
from penstock.bus import Bus, Request
from tests.bus.given import attached, heard, provider, requester
from tests.support.harness import PATIENCE, eventually


class OwnError(Exception):
    def __init__(self, text: str, **own: Any) -> None:
        super().__init__(text)
        vars(self).update(own)


@pytest.mark.parametrize("data", [None, 0, "", "ü", [1, {"a": None}], {"x": 1.5}, False])
async def test_any_json_value_is_asked_and_answered(bus: Bus, data: Any) -> None:
    await provider(bus, lambda request: request.data)
    asks = await requester(bus)
    assert await asks.request(data, timeout=60) == data


async def test_a_handler_may_be_a_coroutine_a_function_or_a_listener(bus: Bus) -> None:
    async def later(request: Request) -> str:
        await asyncio.sleep(0)
        return f"later {request.data}"

    async def listen(request: Request) -> None:
        await request.answer(f"heard {request.data}")

    await provider(bus, later, "later")
    listening = bus.service("listening")
    listening.on("request", listen)
    await listening.serve()
    assert await (await requester(bus, "later")).request(1, timeout=60) == "later 1"
    assert await (await requester(bus, "listening")).request(2, timeout=60) == "heard 2"


async def test_many_requests_at_once_get_their_own_answers(bus: Bus, redis_url: str) -> None:
    async def answer(request: Request) -> Any:
        await asyncio.sleep(request.data % 7 / 1_000)
        return -request.data

    await provider(bus, answer)
    async with Bus(redis_url) as second:
        asks, also = await requester(bus), await requester(second)
        found = await asyncio.gather(*((asks, also)[number % 2].request(number, timeout=60) for number in range(500)))
        assert found == [-number for number in range(500)]


async def test_no_answer_in_time_raises_also_if_the_server_is_away(bus: Bus, redis: "Redis") -> None:
    asks = await requester(bus)
    with pytest.raises(RequestTimeout, match=r"0\.2"):
        await asks.request("x", timeout=0.2)
    begun, late, goes_on = set[str](), set[str](), asyncio.Event()

    async def answer(request: Request) -> None:
        begun.add(request.data)
        await goes_on.wait()
        late.add(request.data)

    await provider(bus, answer)  # the request that waited has expired: it is dropped
    timeout = 0.1
    while not begun:  # if the machine stalls, the request expires before it is begun
        with pytest.raises(RequestTimeout):
            await asks.request("y", timeout=timeout)
        timeout *= 2
    goes_on.set()
    await eventually(lambda: late == begun)
    assert late == {"y"}
    await redis.client_pause(3_600_000, all=False)
    try:
        with pytest.raises(RequestTimeout):
            async with asyncio.timeout(PATIENCE):
                await asks.request("z", timeout=0.2)
    finally:
        await redis.client_unpause()


async def test_parts_come_one_by_one_each_with_its_own_timeout(bus: Bus) -> None:
    scale = 1.0

    async def count(request: Request) -> AsyncIterator[int]:
        for number in range(request.data):
            yield number
            await asyncio.sleep(0.15 * scale)

    await provider(bus, count)
    asks = await requester(bus)
    while True:  # with more time if the machine stalls: all parts together take longer than the timeout
        try:
            assert [part async for part in asks.stream(4, timeout=0.4 * scale)] == [0, 1, 2, 3]
            break
        except RequestTimeout:
            scale *= 4
            assert scale <= 64
    scale = 0.0
    assert [part async for part in asks.stream(0, timeout=60)] == []
    assert await asks.request(3, timeout=60) == 0
    assert await asks.request(0, timeout=60) is None


async def test_parts_that_fail_or_never_end(bus: Bus) -> None:
    async def parts(request: Request) -> AsyncIterator[str]:
        yield "first"
        if request.data:
            raise OwnError("broken")
        await asyncio.Event().wait()

    await provider(bus, parts)
    asks = await requester(bus)
    got = list[str]()

    async def ask(data: bool, timeout: float) -> None:  # noqa: ASYNC109  # that of the request
        async for part in asks.stream(data, timeout=timeout):
            got.append(part)

    with pytest.raises(RequestFailed):
        await ask(True, PATIENCE)
    timeout = 0.5
    while len(got) < 2:  # if the machine stalls, the first part does not come in time
        with pytest.raises(RequestTimeout):
            await ask(False, timeout)
        timeout *= 2
    assert got == ["first", "first"]


async def test_an_error_comes_with_its_own_attributes(bus: Bus) -> None:
    def fail(request: Request) -> None:
        raise OwnError("broken", code=7, detail={"a": [1]}, unsendable=object())

    await provider(bus, fail)
    with pytest.raises(RequestFailed, match="broken") as raised:
        await (await requester(bus)).request("x", timeout=60)
    error = raised.value.error
    assert isinstance(error, dict)
    assert error["stack"].endswith("OwnError: broken")
    del error["stack"]
    assert error == {"message": "broken", "code": 7, "detail": {"a": [1]}, "name": "OwnError"}


@pytest.mark.parametrize("error", [RequestTimeout("no answer from another service"), WrongType("a key")])
async def test_an_error_of_ours_in_a_handler_is_answered(bus: Bus, error: Exception) -> None:
    def fail(_: Request) -> None:
        raise error

    await provider(bus, fail)
    with pytest.raises(RequestFailed, match=str(error)):
        await (await requester(bus)).request("x", timeout=60)


async def test_an_answer_that_is_no_json_fails(bus: Bus) -> None:
    await provider(bus, lambda _: object())
    with pytest.raises(RequestFailed, match="JSON"):
        await (await requester(bus)).request("x", timeout=60)


@pytest.mark.parametrize("error", ["text", 0, {"code": 1}, [1]])
async def test_an_error_may_be_any_value(bus: Bus, error: Any) -> None:
    await provider(bus, lambda request: request.fail(error))
    with pytest.raises(RequestFailed) as raised:
        await (await requester(bus)).request("x", timeout=60)
    assert raised.value.error == error


async def test_competing_providers_share_the_requests(bus: Bus, redis_url: str) -> None:
    served, goes_on = Counter[int](), asyncio.Event()
    async with Bus(redis_url) as second:
        for number, each in enumerate((bus, second, bus)):

            async def answer(_: Request, number: int = number) -> int:
                served[number] += 1
                await goes_on.wait()
                return number

            await provider(each, answer, concurrency=1)
        asks = await requester(bus)
        asking = [asyncio.ensure_future(asks.request("x", timeout=60)) for _ in range(12)]
        await eventually(lambda: len(served) == 3)
        goes_on.set()
        found = await asyncio.gather(*asking)
    assert Counter(found) == served
    assert sum(served.values()) == 12


async def test_at_most_so_many_are_handled_at_once_and_in_all(bus: Bus) -> None:
    running, most, goes_on = 0, 0, asyncio.Event()

    async def answer(_: Request) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await goes_on.wait()
        running -= 1

    await provider(bus, answer, concurrency=3, limit=5)
    asks = await requester(bus)
    asking = [asyncio.ensure_future(asks.request("x", timeout=3_600)) for _ in range(7)]
    await eventually(lambda: running == 3)
    goes_on.set()
    assert await asyncio.gather(*asking[:5]) == [None] * 5
    await asyncio.sleep(0.2)  # timing: nothing may happen
    assert most == 3
    await give_up(asking[5:])
    with pytest.raises(WrongCall):
        await provider(bus, answer, "other", concurrency=0)


async def give_up(asking: Sequence["asyncio.Future[Any]"]) -> None:
    """Cancel requests that have no answer yet."""
    assert not any(each.done() for each in asking)
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_who_leaves_with_grace_ends_what_it_has_and_leaves_the_rest(bus: Bus, redis: "Redis") -> None:
    begun, goes_on = list[Any](), asyncio.Event()

    async def answer(request: Request) -> Any:
        begun.append(request.data)
        await goes_on.wait()
        return request.data

    leaving = await provider(bus, answer, concurrency=2)
    events = heard(leaving)
    asks = await requester(bus)
    asking = [asyncio.ensure_future(asks.request(number, timeout=60)) for number in range(6)]
    await eventually(lambda: len(begun) == 2)
    ends = asyncio.ensure_future(leaving.disconnect(grace=PATIENCE))
    await eventually(lambda: _waiting(redis, 4))
    assert not ends.done()
    goes_on.set()
    await ends
    assert begun == [0, 1]
    assert events == [("disconnect",)]
    await provider(bus, answer)
    assert await asyncio.gather(*asking) == [*range(6)]


async def test_who_leaves_at_once_loses_only_what_it_has_in_hand(bus: Bus) -> None:
    never, begun = asyncio.Event(), list[Any]()

    async def answer(request: Request) -> None:
        begun.append(request.data)
        await never.wait()

    leaving = await provider(bus, answer, concurrency=2)
    asks = await requester(bus)
    asking = [asyncio.ensure_future(asks.request(number, timeout=3_600)) for number in range(6)]
    await eventually(lambda: len(begun) == 2)
    await leaving.disconnect()
    await provider(bus, lambda request: request.data)
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*asking[2:]) == [2, 3, 4, 5]
    await asyncio.sleep(0.2)  # timing: nothing may happen
    await give_up(asking[:2])


async def test_a_requester_that_leaves_with_grace_gets_its_answers(bus: Bus) -> None:
    async def answer(request: Request) -> Any:
        await asyncio.sleep(0.2)  # timing: it takes a while
        return request.data

    await provider(bus, answer)
    asks = await requester(bus)
    asking = asyncio.ensure_future(asks.request("x", timeout=60))
    await asyncio.sleep(0)
    await asks.disconnect(grace=PATIENCE)
    assert await asking == "x"


@pytest.mark.parametrize(
    "name",
    [
        "foo",
        "",
        "channel:local:zoo",
        "Service:x",
        "service",
        "service:pay",
        "service:pay:replyTo:1",
        "service:echo:replyTo:",
        None,
        5,
        ["service:x"],
        "\udcff",
    ],
)
async def test_a_request_cannot_make_the_provider_write_elsewhere(bus: Bus, redis: "Redis", name: Any) -> None:
    served = list[Any]()
    await provider(bus, lambda request: served.append(request.data))
    if isinstance(name, str):
        await attached(bus, name=name)
    before = await redis.keys("*:messages")
    requests = await attached(bus, name="service:echo")
    await requests.push(json.dumps({"data": 1, "replyTo": name, "reqId": "r"}))
    await requests.push(json.dumps({"data": 2, "replyTo": "service:none", "reqId": "r"}))
    await eventually(lambda: served == [1, 2])
    assert await redis.keys("*:messages") == before


@pytest.mark.parametrize(
    "body", [b"", b"{", b"5", b"null", b"[]", b'"x"', b"\xff", b'{"data":1,"expires":1}', b"[" * 100_000]
)
async def test_what_is_no_request_is_dropped(bus: Bus, body: bytes) -> None:
    served = list[Any]()
    await provider(bus, lambda request: served.append(request.data))
    requests = await attached(bus, name="service:echo")
    never = b'{"data":4,"expires":1%s}' % (b"0" * 400)
    await requests.push_many([body, b"{}", b'{"data":2,"expires":"soon"}', b'{"data":3,"reqId":{"a":1}}', never])
    await eventually(lambda: served == [None, 2, 3, 4])


async def test_answers_that_are_none_are_ignored(bus: Bus, redis: "Redis") -> None:
    await provider(bus, lambda request: request.data)
    asks = await requester(bus)
    (key,) = await redis.keys("bus:queue:service:echo:replyTo:*:metadata")
    replies = await attached(bus, name=decoded(key).split(":", 2)[2].removesuffix(":metadata"))
    await replies.push_many([b"", b"{", b"5", b"[]", b"{}", b'{"reqId":"unknown"}', b'{"reqId":["x"]}', b"\xff"])
    assert await asks.request("x", timeout=60) == "x"


async def test_an_answer_waits_for_the_queue_of_a_requester_that_asks_early(
    bus: Bus, redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """As busmq does: its requests may be faster than its queue for answers, most of all with several servers."""
    sent = list[bool]()

    async def answer(request: Request) -> None:
        sent.append(await request.answer("x"))

    service = bus.service("echo")
    service.on("request", answer)
    await service.serve()
    requests = await attached(bus, name="service:echo")
    name = "service:echo:replyTo:0123456789abcdef"
    monkeypatch.setattr("penstock.bus.service.REPLY_SECONDS", PATIENCE)
    await requests.push({"data": 1, "replyTo": f"{name}1", "reqId": "r"}, json=True)
    await eventually(lambda: _waiting(redis, 0))
    replies = await attached(bus, name=f"{name}1")
    await eventually(lambda: sent == [True])
    monkeypatch.undo()
    await requests.push({"data": 1, "replyTo": f"{name}2", "reqId": "r"}, json=True)
    await eventually(lambda: sent == [True, False])
    assert await replies.count() == 1
    assert await redis.keys(f"bus:queue:{name}2:*") == []


async def test_a_notice_is_served_and_not_answered(bus: Bus, redis: "Redis") -> None:
    served = list[Any]()
    await provider(bus, lambda request: served.append((request.data, request.reply_to)))
    await (await requester(bus)).notify("x")
    await eventually(lambda: served == [("x", None)])
    assert await redis.keys("*replyTo*:messages") == []


async def test_calls_that_make_no_sense(bus: Bus) -> None:
    service = bus.service("echo")
    for call in (service.request("x"), service.notify("x")):
        with pytest.raises(WrongCall, match="connect"):
            await call
    await service.connect()
    for again in (service.connect(), service.serve()):
        with pytest.raises(WrongCall, match="already"):
            await again
    for timeout in (None, math.inf, math.nan, "5"):
        for call in (service.request("x", timeout=timeout), service.notify("x", timeout=timeout)):  # type: ignore[arg-type]
            with pytest.raises(WrongCall, match=f"timeout={timeout!r}: expected seconds"):
                await call
    await service.disconnect()
    assert not service.is_connected
    await service.disconnect()
    await service.serve(lambda _: None)
    assert service.is_serving


async def test_the_events_of_a_service(bus: Bus) -> None:
    serving, asking = bus.service("echo"), bus.service("echo")
    served, asked = heard(serving), heard(asking)
    await serving.serve(lambda request: request.data)
    await asking.connect()
    await asking.request(1, timeout=60)
    await asking.disconnect()
    await serving.disconnect()
    assert served == [("serving",), ("disconnect",)]
    assert asked == [("connected",), ("disconnect",)]


async def test_serve_raises_if_it_cannot_begin(bus: Bus, redis: "Redis", redis_url: str) -> None:
    await redis.lpush("bus:queue:service:echo:metadata", "x")
    async with asyncio.timeout(30):
        with pytest.raises(WrongType, match="metadata"):
            await bus.service("echo").serve(lambda _: None)


async def test_a_request_whose_server_is_away_ends_with_its_timeout_not_with_the_patience(bus: Bus) -> None:
    await provider(bus, lambda request: request.data)
    with pytest.raises((RequestTimeout, Unavailable)):
        await (await requester(bus)).request("x", timeout=0)


async def _waiting(redis: "Redis", many: int) -> bool:
    return bool(await redis.llen("bus:queue:service:echo:messages") == 2 * many)
