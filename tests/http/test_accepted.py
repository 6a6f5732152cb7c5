"""Requests that get 202: their status, their progress by polling and by events, and their answers for a time."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.exact_json import as_json
from tests.http.clients import Answer, Client
from tests.http.importing import KEYS, OUT, Importing, importing

PREFER = "Prefer: wait=5, respond-async;x=1"


@pytest.fixture
async def here(redis: "Redis", redis_url: str) -> AsyncIterator[Importing]:
    async with importing(redis, redis_url, accept=["/reports/*"]) as here:
        yield here


async def ask(client: Client, path: str, *headers: str, method: str = "GET") -> Answer:
    lines = "".join(f"{line}\r\n" for line in headers)
    return await client.ask(f"{method} {path} HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode(), of=method)


async def push(here: Importing, request: dict[str, Any], **more: Any) -> None:
    await here.redis.lpush(request["replyTo"], json.dumps({"id": request["id"], **more}))


@pytest.mark.parametrize(("path", "headers"), [("/reports/7?x=1", ()), ("/other", (PREFER,))])
async def test_a_request_is_accepted_and_its_answer_fetched_later(
    here: Importing, path: str, headers: tuple[str, ...]
) -> None:
    async with here.connect() as client:
        accepted = await ask(client, path, *headers)
        assert accepted.status == 202
        location = accepted.header("location")
        assert location is not None
        request = await here.request()
        assert request["path"] == path.partition("?")[0]
        assert location == f"/_requests/{request['id']}"
        seconds, _ = await here.redis.time()
        assert 3_500 < request["deadline"] - seconds < 3_602
        state = await ask(client, location)
        assert (state.status, json.loads(state.body)["state"]) == (200, "pending")
        assert (await ask(client, f"{location}/answer")).status == 404
        await push(here, request, progress={"done": 1})
        deep = "[" * 500 + "]" * 500
        await here.redis.lpush(request["replyTo"], f'{{"id": "{request["id"]}", "progress": {deep}}}')
        assert json.loads((await ask(client, location)).body)["progress"] == {"done": 1}
        await push(here, request, progress={"done": 2})
        assert json.loads((await ask(client, location)).body)["progress"] == {"done": 2}
        await push(here, request, status=201, headers=[["x", "y"]], body="report")
        await push(here, request, status=500, headers=[], body="twice")
        done = json.loads((await ask(client, location)).body)
        assert done == {
            "id": request["id"],
            "state": "done",
            "progress": {"done": 2},
            "status": 201,
            "answer": f"{location}/answer",
        }
        for _ in range(2):
            answer = await ask(client, done["answer"])
            assert (answer.status, answer.header("x"), answer.body) == (201, "y", b"report")


async def test_another_importer_shows_what_one_that_is_gone_accepted(redis: "Redis", redis_url: str) -> None:
    async with importing(redis, redis_url, "1") as here, here.connect() as client:
        location = (await ask(client, "/a", PREFER)).header("location")
        request = await here.request()
    async with importing(redis, redis_url, "2") as here, here.connect() as client:
        await push(here, request, status=200, headers=[], body="kept")
        assert (await ask(client, f"{location}/answer")).body == b"kept"


async def test_a_request_that_is_accepted_clears_the_page_that_it_may_change(redis: "Redis", redis_url: str) -> None:
    async with importing(redis, redis_url, cache=["/days/* 60"]) as here, here.connect() as client:
        for headers, is_refused in (((PREFER,), False), ((), True)):
            await client.send(b"GET /days/1 HTTP/1.1\r\nHost: a\r\n\r\n")
            await here.answer(await here.request(), body="page")
            assert (await client.answer()).body == b"page"
            page = KEYS.page("GET a/days/1")
            async with asyncio.timeout(30):
                while b"page" not in (await redis.get(page) or b""):
                    await asyncio.sleep(0.01)
            changing = asyncio.create_task(ask(client, "/days/1", *headers, method="POST"))
            if is_refused:
                await push(here, await here.request(), status=503, headers=[], body="busy", otherwise="accept")
            assert (await changing).status == 202
            assert not await redis.exists(page)
            await here.request()


async def test_progress_comes_as_events_until_the_answer(here: Importing) -> None:
    async with here.connect() as client, here.connect() as listening:
        location = (await ask(client, "/a", PREFER)).header("location")
        request = await here.request()
        await push(here, request, progress="begun")
        streaming = asyncio.create_task(ask(listening, str(location), "Accept: text/event-stream"))
        await asyncio.sleep(0)
        await push(here, request, progress="half")
        await push(here, request, status=204)
        stream = await streaming
        assert (stream.status, stream.header("content-type")) == (200, "text/event-stream")
        events = stream.body.decode().strip().split("\n\n")
        assert events[:2] == ['event: progress\ndata: "begun"', 'event: progress\ndata: "half"']
        assert events[2] == 'event: done\ndata: {"id":"%s","status":204}' % request["id"]  # noqa: UP031
        assert (await ask(listening, str(location))).status == 200


@pytest.mark.slow
async def test_a_stream_of_events_ends_when_the_importer_stops(redis: "Redis", redis_url: str) -> None:
    async with importing(redis, redis_url, stop_timeout=20) as here:
        listening = await here.connect().__aenter__()
        location = (await ask(listening, "/a", PREFER)).header("location")
        await listening.send(f"GET {location} HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n".encode())
        await listening.reader.readuntil(b"\r\n\r\n")
        began = time.monotonic()
    assert time.monotonic() - began < 15  # it is not cut off at stop_timeout
    assert await listening.is_closed() is False  # the last chunk, and then the end
    await listening.__aexit__()


async def test_what_is_unknown_is_404_and_what_is_no_get_405(here: Importing) -> None:
    id = "1-" + 32 * "a"
    async with here.connect() as client:
        for path in (f"/_requests/{id}", f"/_requests/{id}/answer", "/_requests/", "/_requests/1-abc"):
            assert (await ask(client, path)).status == 404
        assert (await ask(client, f"/_requests/{id}", "Accept: text/event-stream")).status == 404
        assert (await ask(client, f"/_requests/{id}", method="DELETE")).status == 404
        assert (await ask(client, f"/_requests/{id}", method="PUT")).status == 405
        refused = await ask(client, f"/_requests/{id}/answer", method="DELETE")
        assert (refused.status, refused.header("allow")) == (405, "GET, HEAD")
    assert await here.redis.llen(OUT) == 0


async def test_the_answers_of_an_importer_that_is_gone_are_for_no_client(here: Importing) -> None:
    await here.redis.zadd(KEYS.responses, {KEYS.response("9"): 9e9})
    await here.redis.lpush(KEYS.response("9"), '{"id": "9-1", "status": 200, "headers": [], "body": "secret"}')
    async with here.connect() as client:
        for path in ("/_requests/9", "/_requests/9/answer"):
            assert (await ask(client, path)).status == 404
        assert (await ask(client, "/_requests/9", "Accept: text/event-stream")).status == 404
        assert (await ask(client, "/_requests/9", method="DELETE")).status == 404


async def test_a_request_is_cancelled_once_and_its_worker_and_its_clients_hear_of_it(here: Importing) -> None:
    async with here.redis.pubsub() as listening, here.connect() as client, here.connect() as streaming:
        await listening.subscribe(KEYS.cancellations)
        location = str((await ask(client, "/a", PREFER)).header("location"))
        request = await here.request()
        await push(here, request, progress=1)
        stream = asyncio.create_task(ask(streaming, location, "Accept: text/event-stream"))
        for _ in range(2):
            cancelled = await ask(client, location, method="DELETE")
            assert cancelled.status == 200
            assert json.loads(cancelled.body) == {"id": request["id"], "state": "cancelled", "progress": 1}
        assert json.loads((await ask(client, location)).body)["state"] == "cancelled"
        assert (await ask(client, f"{location}/answer")).status == 404
        assert 7_100 < await here.redis.ttl(KEYS.cancelled(request["id"])) <= 7_200
        events = (await stream).body.decode().strip().split("\n\n")
        assert events[-1] == 'event: cancelled\ndata: {"id":"%s"}' % request["id"]  # noqa: UP031
        heard = [each["data"] async for each in _heard(listening)]
        assert heard == [request["id"].encode()]
        await push(here, request, status=200, headers=[], body="done before it heard")
        assert json.loads((await ask(client, location)).body)["state"] == "done"
        refused = await ask(client, location, method="DELETE")
        assert (refused.status, json.loads(refused.body)["state"]) == (409, "done")


async def _heard(listening: Any) -> AsyncIterator[Any]:
    while (message := await listening.get_message(timeout=0.2)) is not None:
        if message["type"] == "message":
            yield message


async def test_many_clients_that_listen_cost_one_command_a_poll(
    here: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(here.connect())
        listening: list[Client] = []
        for _ in range(60):
            location = str((await ask(client, "/a", PREFER)).header("location"))
            listening.append(await stack.enter_async_context(here.connect()))
            request = f"GET {location} HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n"
            await listening[-1].send(request.encode())
            await listening[-1].reader.readuntil(b"\r\n\r\n")
        sent, send = list[bytes](), here.bridge._caller.wire.send

        def counted(packed: bytes, reply: Any) -> None:
            sent.append(packed)
            send(packed, reply)

        monkeypatch.setattr(here.bridge._caller.wire, "send", counted)
        for number in range(3):
            request_now = await here.request()
            await push(here, request_now, progress=number)
            assert b"event: progress" in await listening[number].reader.readuntil(b"\n\n")
        assert len(sent) < 60  # three polls, and more if the machine stalls: not one command for each client


async def test_more_progress_than_is_read_at_a_time_comes_in_pieces(here: Importing) -> None:
    async with here.connect() as client:
        location = str((await ask(client, "/a", PREFER)).header("location"))
        request = await here.request()
        notes = [json.dumps({"id": request["id"], "progress": number}) for number in range(2_500)]
        await here.redis.lpush(request["replyTo"], *notes)
        await push(here, request, status=200)
        assert json.loads((await ask(client, location)).body)["state"] == "done"
        stream = await ask(client, location, "Accept: text/event-stream")
        events = stream.body.decode().strip().split("\n\n")
        assert [event.rpartition(" ")[2] for event in events[:-1]] == [*map(str, range(2_500))]
        assert events[-1].startswith("event: done")


async def test_too_many_or_a_server_that_refuses_is_503(redis: "Redis", redis_url: str) -> None:
    async with importing(redis, redis_url, max_accepted=2) as here, here.connect() as client:
        async with asyncio.timeout(30):
            while not await redis.zcard(KEYS.responses):
                await asyncio.sleep(0.01)
        statuses = [(await ask(client, "/a", PREFER)).status for _ in range(2)]
        assert statuses == [202, 503]
        await redis.set(KEYS.responses, "no zset")
        assert (await ask(client, "/a", PREFER)).status == 503


async def test_progress_of_a_request_whose_client_waits_is_no_answer(here: Importing) -> None:
    async with here.connect() as client:
        await client.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
        request = await here.request()
        await push(here, request, progress=1)
        await push(here, request, status=200, headers=[], body="answer")
        assert (await client.answer()).body == b"answer"


async def test_a_client_may_be_kept_from_choosing(redis: "Redis", redis_url: str) -> None:
    async with importing(redis, redis_url, prefer=False) as here, here.connect() as client:
        await client.send(f"GET /a HTTP/1.1\r\nHost: a\r\n{PREFER}\r\n\r\n".encode())
        await here.answer(await here.request(), body="at once")
        assert (await client.answer()).body == b"at once"


async def test_the_script_goes_to_the_server_once_and_again_after_it_has_forgotten_it(here: Importing) -> None:
    async def calls(command: str) -> int:
        found: Any = await here.redis.info("commandstats")
        return int(found.get(f"cmdstat_{command}", {"calls": 0})["calls"])

    async with here.connect() as client:
        assert (await ask(client, "/a", PREFER)).status == 202
        by_source, by_digest = await calls("eval"), await calls("evalsha")
        for _ in range(5):
            assert (await ask(client, "/a", PREFER)).status == 202
        assert await calls("eval") == by_source
        assert await calls("evalsha") >= by_digest + 5
        await here.redis.script_flush()
        assert (await ask(client, "/a", PREFER)).status == 202
        assert await here.redis.llen(OUT) == 7


async def test_who_asks_again_for_what_is_over_does_not_have_the_answer_read_again(here: Importing) -> None:
    async with here.connect() as client:
        location = str((await ask(client, "/a", PREFER)).header("location"))
        await push(here, await here.request(), status=200, body="x" * 1_000_000)
        before = await _output(here)
        states = {(await ask(client, location)).body for _ in range(20)}
        assert [json.loads(state)["state"] for state in states] == ["done"]
        assert await _output(here) - before < 3_000_000
        assert len((await ask(client, location + "/answer")).body) == 1_000_000
        id = location.rpartition("/")[2]
        await here.redis.zrem(KEYS.responses, KEYS.response(id))
        assert (await ask(client, location)).status == 404


async def test_who_asks_again_has_only_what_is_new_read(here: Importing) -> None:
    async with here.connect() as client:
        location = str((await ask(client, "/a", PREFER)).header("location"))
        request = await here.request()
        await push(here, request, progress="x" * 1_000_000)
        before = await _output(here)
        for _ in range(20):
            assert len(json.loads((await ask(client, location)).body)["progress"]) == 1_000_000
        for number in range(3):
            await push(here, request, progress=number)
            assert json.loads((await ask(client, location)).body)["progress"] == number
        assert await _output(here) - before < 3_000_000


@pytest.mark.parametrize("before", [0, 2_500])
async def test_an_answer_counts_however_much_progress_comes_before_and_behind(here: Importing, before: int) -> None:
    async with here.connect() as client:
        location = str((await ask(client, "/a", PREFER)).header("location"))
        request = await here.request()
        progress = [as_json({"id": request["id"], "progress": number}) for number in range(2_500)]
        answer = as_json({"id": request["id"], "status": 201, "body": "answer"})
        await here.redis.lpush(request["replyTo"], *progress[:before], answer, *progress[before:], progress[-1])
        state = json.loads((await ask(client, location)).body)
        assert (state["state"], state["status"], state.get("progress")) == ("done", 201, 2_499 if before else None)
        assert (await ask(client, location + "/answer")).body == b"answer"


async def test_an_answer_is_read_once_for_all_who_listen(here: Importing) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(here.connect())
        location = str((await ask(client, "/a", PREFER)).header("location"))
        listening = [await stack.enter_async_context(here.connect()) for _ in range(30)]
        for each in listening:
            await each.send(f"GET {location} HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n".encode())
            await each.reader.readuntil(b"\r\n\r\n")
        before = await _output(here)
        await push(here, await here.request(), status=200, body="x" * 1_000_000)
        for each in listening:
            assert b"event: done" in await each.reader.readuntil(b"\n\n")
        assert await _output(here) - before < 6_000_000


async def test_an_answer_is_read_once_or_twice_for_all_who_ask_at_the_same_time(here: Importing) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(here.connect())
        location = str((await ask(client, "/a", PREFER)).header("location"))
        await push(here, await here.request(), status=200, body="x" * 1_000_000)
        several = [await stack.enter_async_context(here.connect()) for _ in range(30)]
        before = await _output(here)
        answers = await asyncio.gather(*(ask(each, location + "/answer") for each in several))
        assert [len(answer.body) for answer in answers] == [1_000_000] * 30
        assert await _output(here) - before < 10_000_000
        before = await _output(here)
        events = await asyncio.gather(*(ask(each, location, "Accept: text/event-stream") for each in several))
        assert all(answer.body.startswith(b"event: done") for answer in events)
        assert await _output(here) - before < 10_000_000


async def _output(here: Importing) -> int:
    """Return how many bytes the server has sent."""
    sent: int = (await here.redis.info("stats"))["total_net_output_bytes"]
    return sent
