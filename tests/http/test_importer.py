"""Requests of HTTP as messages, and answers back: over real sockets and a real server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.encoding import decoded, decoded_fields
from penstock.base.exact_json import as_json
from penstock.core.link import is_full
from tests.http.importing import KEYS, OUT, Importing, importing
from tests.support.harness import PATIENCE, eventually

GET = b"GET /days/2010-01-01?unit=C HTTP/1.1\r\nHost: example.org\r\n"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def here(redis: "Redis", redis_url: str) -> AsyncIterator[Importing]:
    async with importing(redis, redis_url) as here:
        yield here


async def test_a_request_becomes_one_message_and_its_answer_goes_to_the_client(here: Importing) -> None:
    async with here.connect() as client:
        await client.send(
            GET + f"TraceParent: {TRACE}\r\nConnection: close, x-mine\r\nX-Mine: 1\r\nTE: trailers\r\n\r\n".encode()
        )
        request = await here.request()
        seconds, micros = await here.redis.time()
        assert 10 < request["deadline"] - seconds - micros / 1e6 < 31
        assert request == {
            "id": request["id"],
            "replyTo": "web:res:1",
            "method": "GET",
            "path": "/days/2010-01-01",
            "query": "unit=C",
            "headers": [["host", "example.org"], ["traceparent", TRACE], ["x-forwarded-for", "127.0.0.1"]],
            "deadline": request["deadline"],
            "meta": {
                "id": request["id"],
                "replyTo": "web:res:1",
                "deadline": request["deadline"],
                "budget": 30,
                "traceparent": TRACE,
            },
        }
        assert request["id"].startswith("1-")
        cookies = [["Set-Cookie", "a=1"], ["set-cookie", "b=2"], ["Connection", "x-own"], ["x-own", "1"]]
        await here.answer(request, 201, headers=cookies, body="grün")
        answer = await client.answer()
        assert (answer.status, answer.body) == (201, "grün".encode())
        assert [value for name, value in answer.headers if name == "set-cookie"] == ["a=1", "b=2"]
        assert answer.header("x-own") is None
    await eventually(lambda: here.count("answered") == 1)


@pytest.mark.parametrize(("method", "attempts"), [("POST", 1), ("PATCH", 1), ("PUT", None), ("DELETE", None)])
async def test_what_must_not_be_done_twice_asks_for_one_delivery(
    here: Importing, method: str, attempts: int | None
) -> None:
    async with here.connect() as client:
        await client.send(f"{method} /notes HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na".encode())
        request = await here.request()
        assert request["meta"].get("attempts") == attempts
        await here.answer(request)
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        f"traceparent: {TRACE}-x",
        f"traceparent: {TRACE.replace('b7', 'B7')}",
        f"traceparent: {TRACE}\r\nTraceParent: {TRACE}",
    ],
)
async def test_an_invalid_trace_of_a_client_is_no_trace(here: Importing, headers: str) -> None:
    async with here.connect() as client:
        await client.send(GET + f"{headers}\r\n\r\n".encode())
        request = await here.request()
        assert "traceparent" not in request["meta"]
        await here.answer(request)
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("body", [b"text \xc3\xa4", bytes(range(256)), b"", b"x" * 2_000_000])
async def test_bodies_of_any_bytes_go_and_come_unchanged(here: Importing, body: bytes) -> None:
    async with here.connect() as client:
        await client.send(b"POST /%%2Fa HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        request = await here.request()
        assert request["path"] == "/%2Fa"
        fields = {name: request[name] for name in ("body", "body64") if name in request}
        assert len(fields) == bool(body)
        await here.answer(request, **fields)
        assert (await client.answer()).body == body


async def test_an_id_may_be_in_meta_as_mdispatch_passes_it_on(here: Importing) -> None:
    async with here.connect() as client:
        await client.send(GET + b"\r\n")
        request = await here.request()
        await here.redis.lpush(request["replyTo"], as_json({"meta": {"id": request["id"]}, "status": 204}))
        assert (await client.answer()).status == 204


BAD: dict[str, tuple[dict[str, Any], int]] = {
    "no status": ({"status": None}, 502),
    "a status that is informational": ({"status": 101}, 502),
    "a status that is a boolean": ({"status": True}, 502),
    "headers that are an object": ({"headers": {"a": "b"}}, 502),
    "a header that splits the answer": ({"headers": [["a", "b\r\nc: d"]]}, 502),
    "a name with a space": ({"headers": [["a b", "c"]]}, 502),
    "a header beyond latin-1": ({"headers": [["a", "€"]]}, 502),
    "headers of more than clients read": ({"headers": [["a", "b" * 700]] * 100}, 502),
    "a body that is no text": ({"body": {"a": 1}}, 502),
    "Base64 that is none": ({"body64": "%"}, 502),
    "two bodies": ({"body": "a", "body64": "YQ=="}, 502),
    "a failure": ({"error": {"reason": "noRoute"}}, 502),
    "a failure as a text": ({"error": "poison"}, 502),
    "a failure as a list": ({"error": []}, 502),
    "a failure whose reason is a list": ({"error": {"reason": [1]}}, 502),
    "a worker's timeout": ({"error": {"reason": "timeout"}}, 504),
    "a message that came too late": ({"error": {"reason": "expired"}}, 504),
    "a message that nobody took in time": ({"error": {"reason": "queueTimeout"}}, 504),
    "a retry too many": ({"error": {"reason": "retryBudget"}}, 502),
}


@pytest.mark.parametrize("case", BAD)
async def test_an_answer_that_cannot_be_sent_is_an_error_with_the_id(here: Importing, case: str) -> None:
    fields, status = BAD[case]
    async with here.connect() as client:
        await client.send(GET + b"\r\n")
        request = await here.request()
        await here.answer(request, **fields)
        answer = await client.answer()
        assert answer.status == status
        assert request["id"].encode() in answer.body
        assert here.count("malformed") == ("error" not in fields)


NO_JSON = {
    "bytes that are no UTF-8": b'"caf\xe9"}',
    "half a character of JavaScript": b'"\\ud800"}',
    "a line break within a text": b'"a\nb"}',
    "its end is missing": b'"a',
}


@pytest.mark.parametrize("case", NO_JSON)
async def test_the_client_of_an_answer_that_is_no_json_hears_of_it_at_once(here: Importing, case: str) -> None:
    async with here.connect() as client:
        await client.send(GET + b"\r\n")
        request = await here.request()
        begins = b'{"id": "%b", "status": 200, "body": ' % request["id"].encode()
        await here.redis.lpush(request["replyTo"], begins + NO_JSON[case])
        answer = await client.answer()
        assert answer.status == 502
        assert request["id"].encode() in answer.body
        assert here.count("malformed") == 1


async def test_what_is_no_answer_is_counted_and_dropped(here: Importing) -> None:
    await here.redis.lpush("web:res:1", b"\xff", "[1]", '{"status":200}', '{"id":7}', "", "[" * 10_000)
    await eventually(lambda: here.count("malformed") == 6)
    async with asyncio.timeout(30):
        while await here.redis.exists("web:res:1"):
            await asyncio.sleep(0.01)


async def test_answers_that_come_late_or_twice_are_counted_and_dropped(redis: "Redis", redis_url: str) -> None:
    async with importing(redis, redis_url, timeout=1) as here, here.connect() as client:
        await client.send(GET + b"\r\n")
        request = await here.request()
        answer = await client.answer()
        assert (answer.status, here.count("timeouts")) == (504, 1)
        assert request["id"].encode() in answer.body
        for _ in range(2):
            await here.answer(request)
        await eventually(lambda: here.count("late") == 2)
        while True:
            await client.send(GET + b"\r\n")
            await here.answer(await here.request(), body="in time")
            answer = await client.answer()
            if answer.status != 504:  # as it may be if the machine stalls
                break
        assert answer.body == b"in time"


async def test_more_requests_than_may_wait_get_503_at_once(redis: "Redis", redis_url: str) -> None:
    async with importing(redis, redis_url, max_waiting=1) as here, here.connect() as first, here.connect() as second:
        await first.send(GET + b"\r\n")
        request = await here.request()
        answer = await second.ask(GET + b"\r\n")
        assert (answer.status, answer.header("retry-after")) == (503, "1")
        await here.answer(request)
        assert (await first.answer()).status == 200
        await second.send(GET + b"\r\n")
        await here.answer(await here.request())
        assert (await second.answer()).status == 200


async def test_many_requests_at_once_are_answered_each_with_its_own_answer(here: Importing) -> None:
    clients = [here.connect() for _ in range(50)]
    for number, client in enumerate(clients):
        await client.__aenter__()
        for step in range(4):
            await client.send(f"GET /{number}/{step} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    answered = 0
    while answered < 200:
        request = await here.request()
        await here.answer(request, body=request["path"])
        answered += 1
    for number, client in enumerate(clients):
        for step in range(4):
            assert (await client.answer()).body == f"/{number}/{step}".encode()
        await client.__aexit__()


async def test_workers_hear_that_a_client_has_gone(here: Importing) -> None:
    async with here.redis.pubsub() as listening:
        await listening.subscribe(KEYS.cancellations)
        await listening.get_message(timeout=PATIENCE)
        async with here.connect() as client:
            await client.send(GET + b"\r\n")
            request = await here.request()
        async with asyncio.timeout(PATIENCE):
            while (message := await listening.get_message(timeout=1, ignore_subscribe_messages=True)) is None:
                pass
        assert decoded(message["data"]) == request["id"]
        assert 60 < await here.redis.ttl(KEYS.cancelled(request["id"])) <= 91
        assert here.count("cancelled") == 1


async def test_probes_are_answered_without_a_message(here: Importing) -> None:
    async with here.connect() as client:
        for path in (b"/live", b"/ready"):
            assert (await client.ask(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)).status == 200
    assert await here.redis.llen(OUT) == 0


ASKED = pytest.mark.parametrize(
    "asked", [GET + b"\r\n", GET + b"Content-Length: 200000\r\n\r\n" + b"x" * 200_000], ids=["small", "large"]
)


@ASKED
@pytest.mark.parametrize("key", [OUT, KEYS.metric("taken")])
async def test_a_list_of_the_wrong_type_is_503_and_requests_are_accepted_once_it_is_mended(
    here: Importing, key: str, asked: bytes
) -> None:
    await here.redis.set(key, "of another type")
    async with here.connect() as client:
        assert (await client.ask(asked)).status == 503
        assert await here.redis.exists(OUT) == (key == OUT)
        assert str(here.bridge.refusal) == f"{key} holds a string, expected a {'list' if key == OUT else 'hash'}"
        await here.redis.delete(key)
        await client.send(asked)
        await here.answer(await here.request())
        assert (await client.answer()).status == 200
        assert await here.redis.hget(KEYS.metric("delivered"), OUT) == b"1"


@ASKED
async def test_a_full_server_is_503_at_once_and_answers_still_arrive(here: Importing, asked: bytes) -> None:
    async with here.connect() as first, here.connect() as second:
        await first.send(GET + b"\r\n")
        request = await here.request()
        await here.answer(request, body="x")
        assert (await first.answer()).body == b"x"
        await here.redis.config_set("maxmemory", 1)
        try:
            assert (await second.ask(asked)).status == 503
            assert is_full(here.bridge.refusal)
        finally:
            await here.redis.config_set("maxmemory", 0)
        await second.send(asked)
        await here.answer(await here.request())
        assert (await second.answer()).status == 200


async def test_counters_are_written_and_the_list_of_answers_is_kept(here: Importing) -> None:
    async with here.connect() as client:
        await client.send(GET + b"\r\n")
        await here.answer(await here.request(), body="four")
        await client.answer()
    async with asyncio.timeout(30):
        while not {b"2xx", b"answered"} <= (found := await here.redis.hgetall(KEYS.metric("http"))).keys():
            await asyncio.sleep(0.05)
    written = decoded_fields(found)
    slowest = float(written.pop("slowest"))
    (within,) = (name for name in written if name.startswith("within:"))
    assert 0 <= slowest <= float(within.removeprefix("within:"))
    once = (within, "requests", "2xx", "GET", "pushed", "answered")
    assert written == {**dict.fromkeys(once, "1"), "received": "0", "sent": "4"}
    assert await here.redis.zrange(KEYS.responses, 0, -1) == [b"web:res:1"]


@pytest.mark.parametrize("known", ["999.5", "-1", "no number"])
async def test_the_slowest_request_is_that_of_all_instances(here: Importing, known: str) -> None:
    await here.redis.hset(KEYS.metric("http"), "slowest", known)
    async with here.connect() as client:
        await client.send(GET + b"\r\n")
        await here.answer(await here.request())
        await client.answer()
    await eventually(lambda: here.redis.hexists(KEYS.metric("http"), "requests"))
    slowest = decoded(await here.redis.hget(KEYS.metric("http"), "slowest"))
    assert slowest == known if known == "999.5" else 0 <= float(slowest) < 999


async def test_requests_are_counted_in_the_step_that_pushes_them_and_a_flushed_script_costs_none(
    here: Importing,
) -> None:
    async with here.connect() as client:
        for _ in range(3):
            await client.send(GET + b"\r\n")
            await here.answer(await here.request())
            assert (await client.answer()).status == 200
            await here.redis.script_flush()
    for metric, fields in {"taken": ("count", OUT), "settled": ("count",), "delivered": ("count", OUT)}.items():
        assert decoded_fields(await here.redis.hgetall(KEYS.metric(metric))) == dict.fromkeys(fields, "3")


async def test_all_lists_of_answers_whose_time_is_over_are_removed_in_one_round(redis: "Redis", redis_url: str) -> None:
    """The script removes at most 100 at a time. The machine may have started less than ``serviceRenew`` ago."""
    stale = [KEYS.response(f"9-{number:032x}") for number in range(350)]
    await redis.zadd(KEYS.responses, dict.fromkeys(stale, 1))
    async with redis.pipeline(transaction=False) as many:
        for name in stale:
            many.lpush(name, "answer")
        await many.execute()
    async with importing(redis, redis_url, service_renew=86_395, service_expire=86_400):
        async with asyncio.timeout(30):
            while await redis.zrange(KEYS.responses, 0, -1) != [b"web:res:1"]:
                await asyncio.sleep(0.01)
        assert [key async for key in redis.scan_iter("web:res:*", count=1_000)] == []
