"""Pages that an importer keeps: which requests they answer, which they do not, and how they are cleared."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from common.http.json import loads
from penstock.base.exact_json import as_json
from services.himporter.page import Page
from tests.http.clients import Answer, Client
from tests.http.importing import KEYS, OUT, Importing, importing
from tests.support.harness import PATIENCE


@pytest.fixture
async def here(redis: "Redis", redis_url: str) -> AsyncIterator[Importing]:
    cache = ["/news/live 0", "/news/* 60"]
    async with importing(redis, redis_url, cache=cache, cache_bytes=10_000, trusted_proxies=["127.0.0.1"]) as here:
        yield here


def lines(path: str, *headers: str, method: str = "GET", body: str = "") -> bytes:
    host = [] if any(each.startswith("Host:") for each in headers) else ["Host: a"]
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", *host, *headers, *length, "", body]).encode()


async def get(client: Client, path: str = "/news/1", *headers: str, method: str = "GET") -> Answer:
    """Return the answer to a request that needs no message."""
    return await client.ask(lines(path, *headers, method=method), of=method)


async def miss(
    here: Importing,
    client: Client,
    path: str = "/news/1",
    *headers: str,
    method: str = "GET",
    sent: str = "",
    **answer: Any,
) -> Answer:
    """Return the answer to a request that a worker gets."""
    await client.send(lines(path, *headers, method=method, body=sent))
    await here.answer(await here.request(), **{"body": "page", **answer})
    return await client.answer(of=method)


async def pass_time(here: Importing, path: str) -> dict[str, Any]:
    """Let the page of a path be 100 s older, once it is kept, and return what is kept beside its body."""
    key, content = KEYS.page(f"GET a{path}"), b""
    async with asyncio.timeout(PATIENCE):
        while content.count(b"\n") < 2:
            await asyncio.sleep(0.01)
            found: Any = await here.redis.get(key)
            content = found or b""
    mark, head, body = content.split(b"\n", 2)
    kept: dict[str, Any] = loads(head)
    older = {name: kept[name] - 100 for name in ("until", *([] if kept["tags"] else ["asked"]))}
    await here.redis.set(key, b"\n".join([mark, as_json(kept | older), body]), keepttl=True)
    return kept


async def test_a_page_is_answered_without_a_message_until_its_time_is_over(here: Importing) -> None:
    body: dict[str, Any] = {"body": None, "body64": "AP8KCg=="}
    headers = [["content-type", "image/x"], ["cache-control", "max-age=90"], ["cache-tag", "n"], ["cache-tag", "m"]]
    async with here.connect() as client:
        before, _ = await here.redis.time()
        for _ in range(2):  # the first page with a tag makes it known
            first = await miss(here, client, "/news/1?a=%20", headers=headers, **body)
            assert (first.body, first.header("age"), first.header("cache-tag")) == (b"\0\xff\n\n", None, None)
        kept = await get(client, "/news/1?a=%20")
        assert (kept.status, kept.body, kept.header("content-type")) == (200, b"\0\xff\n\n", "image/x")
        after, _ = await here.redis.time()
        assert 0 <= int(kept.header("age") or -1) <= after + 1 - before
        assert kept.header("cache-tag") is None
        assert await here.redis.llen(OUT) == 0
        await pass_time(here, "/news/1?a=%20")
        assert (await miss(here, client, "/news/1?a=%20")).body == b"page"
        assert here.count("cached") == 1


OTHERS: dict[str, tuple[Any, ...]] = {
    "another query": ("/news/1?b",),
    "another path": ("/news/1/",),
    "another host": ("/news/1", "Host: b"),
    "another scheme": ("/news/1", "X-Forwarded-Proto: https"),
    "another host before the proxy": ("/news/1", "X-Forwarded-Host: b"),
    "a path that is not kept": ("/other",),
    "a client that wants a new one": ("/news/1", "Cache-Control: no-cache"),
    "a client that wants one of this moment": ("/news/1", "Cache-Control: max-age=0"),
    "a client that keeps nothing": ("/news/1", "Cache-Control: no-store"),
    "a client with a password": ("/news/1", "Authorization: Basic YTpi"),
    "a client with a cookie": ("/news/1", "Cookie: a=b"),
}


@pytest.mark.parametrize("case", OTHERS)
async def test_other_requests_are_not_answered_with_the_page(here: Importing, case: str) -> None:
    async with here.connect() as client:
        await miss(here, client)
        assert (await get(client)).body == b"page"
        if "max-age" in str(OTHERS[case]):
            await asyncio.sleep(0.01)
        assert (await miss(here, client, *OTHERS[case], body="other")).body == b"other"


async def test_a_request_with_a_body_or_another_method_is_not_answered_with_the_page(here: Importing) -> None:
    async with here.connect() as client:
        await miss(here, client)
        assert (await miss(here, client, sent="x", body="other")).body == b"other"
        assert (await get(client)).body == b"page"
        head = await miss(here, client, method="HEAD", body="", headers=[["content-length", "4"]])
        assert head.header("content-length") == "4"
        kept = await get(client, method="HEAD")
        assert (kept.header("content-length"), kept.header("age") is None) == ("4", False)


@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        ((), {"status": 404}),
        ((), {"headers": [["set-cookie", "a=b"]]}),
        ((), {"headers": [["cache-control", "private"]]}),
        ((), {"headers": [["vary", "*"]]}),
        ((), {"body": "x" * 10_001}),
        (("Cache-Control: no-store",), {}),
        (("Cookie: a=b",), {}),
        (("Authorization: Basic YTpi",), {"headers": [["cache-control", "max-age=60"]]}),
        ((), {"status": 502, "error": "poison"}),
    ],
)
async def test_an_answer_that_is_not_for_all_is_not_kept(
    here: Importing, headers: tuple[str, ...], answer: dict[str, Any]
) -> None:
    async with here.connect() as client:
        first = await miss(here, client, "/news/1", *headers, **answer)
        assert first.status == answer.get("status", 200)
        assert (await miss(here, client, body="second")).body == b"second"


async def test_a_page_that_says_it_is_public_is_for_clients_with_credentials_too(here: Importing) -> None:
    async with here.connect() as client:
        await miss(here, client, "/news/1", "Cookie: a=b", headers=[["cache-control", "public"]])
        assert (await get(client, "/news/1", "Authorization: Basic YTpi")).body == b"page"
        assert (await get(client)).body == b"page"


async def test_a_client_cannot_hide_its_host_from_the_worker_of_a_page(here: Importing) -> None:
    async with here.connect() as client:
        await client.send(lines("/news/1", "Connection: host, x-forwarded-for"))
        request = await here.request()
        assert {"host": "a", "x-forwarded-for": "127.0.0.1"}.items() <= dict(request["headers"]).items()
        await here.answer(request, body="page")
        assert (await client.answer()).status == 200


async def test_a_client_that_wants_a_new_page_renews_it_for_others(here: Importing) -> None:
    async with here.connect() as client:
        await miss(here, client)
        await miss(here, client, "/news/1", "Cache-Control: no-cache", body="new")
        assert (await get(client)).body == b"new"
        assert (await get(client, "/news/1", "Cache-Control: max-age=60")).body == b"new"


async def test_a_page_that_varies_is_kept_for_each_value(here: Importing) -> None:
    vary: dict[str, Any] = {"headers": [["vary", "Accept-Language, accept"]]}
    async with here.connect() as client:
        for language in ("de", "en"):
            await miss(here, client, "/news/1", f"Accept-Language: {language}", body=language, **vary)
        for language in ("en", "de"):
            assert (await get(client, "/news/1", f"Accept-Language: {language}")).body == language.encode()
        assert (await miss(here, client, body="none", **vary)).body == b"none"
        assert (await get(client)).body == b"none"
        assert (await miss(here, client, "/news/1", "Accept-Language: de", "Accept: x", **vary)).body == b"page"
        for key in [key async for key in here.redis.scan_iter("web:page:*")]:
            assert await here.redis.ttl(key) > 0
        await here.redis.delete(KEYS.page("GET a/news/1"))
        assert (await miss(here, client, "/news/1", "Accept-Language: de", body="again", **vary)).body == b"again"
        await miss(here, client, "/news/1", "Cache-Control: no-cache", "Accept-Language: de", body="same")
        assert (await get(client, "/news/1", "Accept-Language: en")).body == b"same"


async def test_pages_are_cleared_by_key_and_by_tag(here: Importing) -> None:
    tagged: dict[str, Any] = {"headers": [["cache-tag", "n, m"]]}
    async with here.connect() as client:
        for body in ("0", "1"):
            await miss(here, client, body=body, **tagged)
        for key, times in ((KEYS.page("GET a/news/1"), 1), (KEYS.page_tag("n"), 2), (KEYS.page_tag("m"), 2)):
            assert (await get(client)).body == b"1"
            await here.redis.delete(key)
            for _ in range(times):  # the first page after a tag was cleared makes it known
                await miss(here, client, body="1", **tagged)


async def test_a_page_that_was_asked_before_it_was_cleared_is_not_kept(here: Importing) -> None:
    async with here.connect() as client:
        await client.send(lines("/news/1"))
        request = await here.request()
        await here.redis.delete(KEYS.page("GET a/news/1"))
        await here.answer(request, body="old")
        assert (await client.answer()).body == b"old"
        assert (await miss(here, client, body="new")).body == b"new"
        assert (await get(client)).body == b"new"


@pytest.mark.parametrize(
    ("method", "status", "clears"), [("POST", 201, True), ("DELETE", 303, True), ("PUT", 409, False)]
)
async def test_a_request_that_changes_something_clears_the_page_of_its_path(
    here: Importing, method: str, status: int, clears: bool
) -> None:
    async with here.connect() as client:
        await miss(here, client)
        assert (await miss(here, client, method=method, status=status, sent="x")).status == status
        if clears:
            await miss(here, client, body="changed")
        assert (await get(client)).body == (b"changed" if clears else b"page")


async def test_what_is_no_page_is_asked_anew(here: Importing) -> None:
    async with here.connect() as client:
        for garbage in (b"\xff", b"1\n{", b'1\n{"a": 1}\nx', b"1\n[1]\nx", b"\n\n"):
            await here.redis.set(KEYS.page("GET a/news/1"), garbage)
            assert (await miss(here, client, body="anew")).body == b"anew"
        await here.redis.delete(KEYS.page("GET a/news/1"))
        await here.redis.lpush(KEYS.page("GET a/news/1"), "no string")
        assert (await miss(here, client, body="anew")).body == b"anew"
        await here.redis.delete(KEYS.page("GET a/news/1"))
        for _ in range(2):
            await miss(here, client, headers=[["cache-tag", "n"]])
        assert (await get(client)).body == b"page"
        await here.redis.set(KEYS.page_tag("n"), "no time")
        assert (await miss(here, client, body="anew")).body == b"anew"


async def test_there_are_no_more_pages_than_may_be(redis: "Redis", redis_url: str) -> None:
    async with importing(redis, redis_url, cache=["* 60"], cache_pages=3) as here, here.connect() as client:
        for number in range(10):
            await miss(here, client, f"/{number}", headers=[["cache-control", f"max-age={100 - number}"]])
        async with asyncio.timeout(30):
            while await redis.zcard(KEYS.pages) > 3:
                await asyncio.sleep(0.01)
        assert len([key async for key in redis.scan_iter("web:page:*")]) == 3
        assert (await get(client, "/0")).body == b"page"


async def test_a_page_is_kept_if_its_worker_is_faster_than_the_reply_to_its_mark(
    here: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = Page._marked
    monkeypatch.setattr(
        Page, "_marked", lambda page, reply: asyncio.get_running_loop().call_later(0.3, marked, page, reply)
    )
    async with here.connect() as client:
        await miss(here, client)
        async with asyncio.timeout(30):
            while not await here.redis.zcard(KEYS.pages):
                await asyncio.sleep(0.01)
        assert (await get(client)).body == b"page"


async def test_a_server_that_has_forgotten_the_scripts_costs_no_page(here: Importing) -> None:
    async with here.connect() as client:
        await miss(here, client)
        await here.redis.script_flush()
        assert (await get(client)).body == b"page"
        await here.redis.script_flush()
        await miss(here, client, "/news/2")
        async with asyncio.timeout(30):
            while await here.redis.zcard(KEYS.pages) < 2:
                await asyncio.sleep(0.01)
        assert (await get(client, "/news/2")).body == b"page"


async def test_workers_hear_of_a_client_that_goes_while_its_page_is_looked_for(here: Importing) -> None:
    async with here.connect() as client:
        await here.redis.client_pause(200)  # ms
        await client.send(lines("/news/1"))
        client.writer.write_eof()
        request = await here.request()
        async with asyncio.timeout(30):
            while not await here.redis.exists(KEYS.cancelled(request["id"])):
                await asyncio.sleep(0.01)
        await here.answer(request, body="for half a client")
        assert (await client.answer()).body == b"for half a client"


# The answers of hrouter's breaker


def refusal(otherwise: str) -> dict[str, Any]:
    return {"status": 503, "headers": [["retry-after", "7"]], "body": "busy", "otherwise": otherwise}


async def test_instead_of_a_refusal_a_page_past_its_time_is_answered(here: Importing) -> None:
    headers = [["cache-control", "max-age=90"]]
    async with here.connect() as client:
        refused = await miss(here, client, **refusal("cached"))
        assert (refused.status, refused.body, refused.header("retry-after")) == (503, b"busy", "7")
        await miss(here, client, headers=headers)
        await pass_time(here, "/news/1")
        old = await miss(here, client, **refusal("cached"))
        assert (old.status, old.body) == (200, b"page")
        assert int(old.header("age") or 0) >= 100
        assert 600 < await here.redis.ttl(KEYS.page("GET a/news/1")) <= 690
        assert (await miss(here, client, "/other", **refusal("cached"))).status == 503
        assert (await miss(here, client, "/news/1", "Cookie: a=b", **refusal("cached"))).status == 503
        await miss(here, client, "/news/2", headers=[["cache-control", "max-age=90, must-revalidate"]])
        await pass_time(here, "/news/2")
        assert (await miss(here, client, "/news/2", **refusal("cached"))).status == 503


async def test_a_page_that_must_be_new_is_not_answered_late_since_its_worker_was_slow(here: Importing) -> None:
    async with here.connect() as client:
        await client.send(lines("/news/1"))
        request = await here.request()
        seconds, micros = await here.redis.time()
        await asyncio.sleep(0.5)  # timing: its worker is slow
        await here.answer(request, headers=[["cache-control", "max-age=90, must-revalidate"]])
        assert (await client.answer()).status == 200
        kept = await pass_time(here, "/news/1")
        assert kept["until"] <= seconds + micros / 1e6 + 90
        assert await here.redis.exists(KEYS.page("GET a/news/1"))
        assert (await miss(here, client, **refusal("cached"))).status == 503


@pytest.mark.parametrize("path", ["/other", "/news/1"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_instead_of_a_refusal_a_request_is_accepted(here: Importing, path: str, method: str) -> None:
    async with here.connect() as client:
        await client.send(lines(path, method=method, body="x"))
        first = await here.request()
        await here.answer(first, **refusal("accept"))
        accepted = await client.answer()
        assert accepted.status == 202
        second = await here.request()
        assert accepted.header("location") == f"/_requests/{second['id']}"
        assert second["id"] != first["id"]
        assert second["replyTo"] == KEYS.response(second["id"])
        assert second["deadline"] > first["deadline"] + 3_000
        assert {name: second[name] for name in ("method", "path", "body")} == {
            "method": method,
            "path": path,
            "body": "x",
        }
        await here.answer(second, body="at last")
        assert (await get(client, f"{accepted.header('location')}/answer")).body == b"at last"


async def test_the_refusal_is_answered_if_the_request_cannot_be_accepted(redis: "Redis", redis_url: str) -> None:
    async with importing(redis, redis_url, max_accepted=1) as here, here.connect() as client:
        async with asyncio.timeout(30):
            while not await redis.zcard(KEYS.responses):
                await asyncio.sleep(0.01)
        refused = await miss(here, client, **refusal("accept"))
        assert (refused.status, refused.body, refused.header("retry-after")) == (503, b"busy", "7")
        assert await redis.llen(OUT) == 0
