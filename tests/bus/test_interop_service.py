"""Services between Node's busmq and ours, in all four pairings: the first end asks, the second one serves."""

import json
import re
import time
from typing import Any

import pytest

from tests.bus.node import Peer
from tests.bus.pairs import NODE, Pair, metadata

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
PATIENT, HASTY = 10_000, 150
"""How long requesters wait for an answer (ms) that comes, and for one that does not."""


async def ask(requester: Peer, data: Any) -> tuple[Any, ...]:
    """Send a request and return the error and the answer."""
    await requester.send(json.dumps(data))
    return await requester.expect("reply")


async def test_requests_are_answered_with_what_the_provider_says(pair: Pair) -> None:
    async with pair.second("serve", "echo") as provider, pair.first("request", "echo", reqTimeout=PATIENT) as requester:
        await provider.expect("serving")
        await requester.expect("connected")
        data = {"x": [1, None, "ü😀"]}
        assert await ask(requester, data) == (None, {"echo": data})
        error, reply = await ask(requester, {"fail": "boom"})
        assert (error.pop("message"), error.pop("code"), "boom" in error.pop("stack"), reply) == ("boom", 7, True, None)
        assert error == ({} if pair.names[1] == NODE else {"name": "Refusal"})
        assert await ask(requester, {"parts": [1, 2]}) == (None, 1)  # it asked for no parts
        for value in ("text", {"why": "so"}, 5):
            assert await ask(requester, {"error": value}) == (value, None)
        assert provider.events[:2] == [("serving",), ("request", data)]
        (reply_queue,) = {name.rpartition(":")[0] for name in await pair.left() if "replyTo" in name}
        assert len(reply_queue.rpartition(":")[2]) == 16
        await pair.becomes(f"{reply_queue}:messages", None)  # ours removes what it was given at once a moment later
        left = await pair.left()
        assert left == {
            "bus:queue:service:echo:metadata": metadata(),
            "bus:queue:service:echo:msgid": "6",
            f"{reply_queue}:metadata": metadata(),
            f"{reply_queue}:msgid": left[f"{reply_queue}:msgid"],
        }
        await provider.send("/disconnect")
        await provider.expect("disconnect")
        await requester.send("/disconnect")
        await requester.expect("disconnect")


async def test_an_answer_in_parts_arrives_in_parts(pair: Pair) -> None:
    async with (
        pair.second("serve", "echo"),
        pair.first("request", "echo", allowPartial=True, reqTimeout=PATIENT) as requester,
    ):
        assert await ask(requester, {"parts": [{"n": 1}, "two", 3]}) == (None, {"n": 1})
        await requester.expect("reply", None, "two")
        await requester.expect("reply", None, 3)
        assert await ask(requester, {"x": 1}) == (None, {"echo": {"x": 1}})


async def test_a_stream_arrives_and_ends(pair: Pair) -> None:
    async with (
        pair.second("serve", "echo"),
        pair.first("request", "echo", streamReply=True, reqTimeout=PATIENT) as requester,
    ):
        await requester.send(json.dumps({"stream": [{"n": 1}, {"n": 2}]}))
        await requester.expect("parts end")
        assert requester.events[1:] == [("part", {"n": 1}), ("part", {"n": 2}), ("parts end",)]


async def test_a_request_without_answer_times_out(pair: Pair) -> None:
    async with pair.second("serve", "echo") as provider, pair.first("request", "echo", reqTimeout=HASTY) as requester:
        await provider.expect("serving")
        assert await ask(requester, {"silent": True}) == ("timeout", None)
        assert len(requester.events) == 2


async def test_a_request_that_has_expired_is_not_served(pair: Pair) -> None:
    async with pair.first("request", "echo", reqTimeout=HASTY) as requester:
        assert await ask(requester, {"x": "late"}) == ("timeout", None)
        assert (await pair.left())["bus:queue:service:echo:messages"]
    async with pair.second("serve", "echo") as provider, pair.first("request", "echo", reqTimeout=PATIENT) as requester:
        await provider.expect("serving")
        assert await ask(requester, {"x": "in time"}) == (None, {"echo": {"x": "in time"}})
        assert provider.events == [("serving",), ("request", {"x": "in time"})]


async def test_a_request_may_want_no_answer(pair: Pair) -> None:
    async with pair.second("serve", "echo") as provider, pair.first("request", "echo", notify=True) as requester:
        await requester.expect("connected")
        await requester.send('{"silent":true}')
        await provider.expect("request", {"silent": True})
        assert [event[0] for event in requester.events] == ["connected"]


async def test_requests_look_alike_on_the_wire(pair: Pair) -> None:
    async with pair.second("consume", "service:echo") as raw:
        async with pair.first("request", "echo", reqTimeout=PATIENT) as requester:
            await requester.expect("connected")
            begun = time.time() * 1000
            await requester.send('{"ü":1}')
            request = json.loads((await raw.expect("message"))[0])
            assert request.pop("data") == {"ü": 1}
            assert re.fullmatch("service:echo:replyTo:[0-9a-f]{16}", request.pop("replyTo"))
            assert isinstance(request.pop("reqId"), str)
            assert begun + PATIENT - 1 <= request.pop("expires") <= time.time() * 1000 + PATIENT + 1
            assert request == {}
        async with pair.first("request", "echo", notify=True) as requester:
            await requester.expect("connected")
            await requester.send('{"x":1}')
            assert json.loads((await raw.expect("message"))[0]).keys() == {"data", "reqId", "expires"}


async def test_answers_look_alike_on_the_wire(pair: Pair) -> None:
    name = "service:echo:replyTo:0123456789abcdef"
    async with (
        pair.second("serve", "echo") as provider,
        pair.first("consume", name) as raw,
        pair.first("push", "service:echo") as requests,
    ):
        await provider.expect("serving")
        await raw.expect("attached")
        cases: tuple[tuple[dict[str, Any], ...], ...] = (
            ({"x": "ü"}, {"err": None, "reply": {"echo": {"x": "ü"}}}),
            ({"error": "no"}, {"err": "no"}),
            ({"parts": [1, None]}, {"err": None, "reply": 1, "partial": True}, {"err": None, "reply": None}),
            ({"stream": [1]}, {"err": None, "reply": 1, "partial": True}, {"err": None}),
        )
        for data, *answers in cases:
            await requests.send(json.dumps({"data": data, "replyTo": name, "reqId": "r"}))
            for expected in answers:
                found = json.loads((await raw.expect("message"))[0])
                assert {key: value for key, value in found.items() if value is not False} == {**expected, "reqId": "r"}


async def test_what_is_no_request_is_dropped(pair: Pair) -> None:
    async with pair.second("serve", "echo") as provider, pair.first("push", "service:echo") as other:
        for body in ("no json", "5", '"text"', "null", "{}", '{"data":{"silent":true},"expires":1,"reqId":"a"}'):
            await other.send(body)
        await other.send('{"data":{"silent":true,"last":1},"more":"fields","reqId":7}')
        await provider.expect("request", {"silent": True, "last": 1})
        assert [event for event in provider.events if event[0] == "request"] == [
            ("request", None),
            ("request", {"silent": True, "last": 1}),
        ]


async def test_what_answers_no_request_is_dropped(pair: Pair) -> None:
    async with pair.second("serve", "echo"), pair.first("request", "echo", reqTimeout=PATIENT) as requester:
        await requester.expect("connected")
        (key,) = [name for name in await pair.left() if "replyTo" in name and name.endswith("metadata")]
        async with pair.second("push", key.removeprefix("bus:queue:").removesuffix(":metadata")) as other:
            for body in ("no json", "5", "null", "{}", '{"err":null,"reply":1,"reqId":"unknown"}'):
                await other.send(body)
            await other.expect("pushed", 5)
        assert await ask(requester, {"x": 1}) == (None, {"echo": {"x": 1}})
        assert len(requester.events) == 2


async def test_each_request_is_served_by_one_of_several_providers(pair: Pair) -> None:
    async with (
        pair.first("serve", "echo") as one,
        pair.second("serve", "echo") as two,
        pair.first("request", "echo", reqTimeout=PATIENT) as requester,
    ):
        await one.expect("serving")
        await two.expect("serving")
        for number in range(40):
            assert await ask(requester, {"n": number}) == (None, {"echo": {"n": number}})
        served = [event[1]["n"] for provider in (one, two) for event in provider.events if event[0] == "request"]
        assert sorted(served) == [*range(40)]
