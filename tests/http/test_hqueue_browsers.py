"""Pages of other sites, in a browser on this machine or in its network, cannot use a queue that needs no token."""

from typing import Any

import pytest

from common.http.tokens import Tokens
from penstock.base.keys import Keys
from services.hqueue.handler import RequestHandler
from services.hqueue.request import Request, Response
from services.hqueue.settings import Settings
from tests.http.clients import Served, serving

CURL = "User-Agent: curl/8.5.0\r\nAccept: */*\r\nContent-Type: application/x-www-form-urlencoded\r\n"
FORM = b'{"value": 1}'


class Counted(RequestHandler):
    """Adds nothing, but counts what would be added."""

    def __init__(self, **more: Any) -> None:
        given = Settings(redis="redis://localhost:6379", redis_namespace="work", **more)
        super().__init__({"add": self._add, "fetch": self._add}, None, lambda: True, lambda error: None, given)
        self.count = 0

    async def _add(self, request: Request) -> Response:
        self.count += 1
        return Response(201, b"{}")


async def status_of(served: Served, headers: str, line: str = "POST /queues/a/tasks") -> tuple[int, str]:
    """Return the status of a request with ``headers``, and its body."""
    body = FORM if line.startswith("POST") else b""
    head = f"{line} HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    async with served.connect() as client:
        answer = await client.ask(head.encode() + body)
    if answer.status == 403:
        assert answer.header("content-type") == "application/problem+json"
        assert answer.header("access-control-allow-origin") is None
    return answer.status, answer.body.decode()


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "queues.localhost", "LOCALHOST"])
@pytest.mark.parametrize(
    "more",
    [
        CURL,
        "Sec-Fetch-Site: same-origin\r\nOrigin: http://{host}\r\n",
        "Sec-Fetch-Site: none\r\n",
        "Origin: http://{host}\r\n",
        "Origin: https://{host}\r\n",
    ],
    ids=["curl", "own page", "typed", "own page of an old browser", "behind a proxy with TLS"],
)
async def test_programs_and_own_pages_are_served(host: str, more: str) -> None:
    handler = Counted()
    async with serving(handler=handler) as served:
        assert (await status_of(served, f"Host: {host}\r\n" + more.format(host=host)))[0] == 201
    assert handler.count == 1


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ("Host: localhost:8080\r\nSec-Fetch-Site: cross-site\r\nOrigin: https://evil.example\r\n", "Sec-Fetch-Site"),
        ("Host: localhost:8080\r\nSec-Fetch-Site: same-site\r\nOrigin: http://localhost:3000\r\n", "Sec-Fetch-Site"),
        ("Host: localhost:8080\r\nSec-Fetch-Site: new-word\r\n", "Sec-Fetch-Site"),
        ("Host: localhost:8080\r\nOrigin: https://evil.example\r\n", "Origin"),
        ("Host: localhost:8080\r\nOrigin: http://localhost:3000\r\n", "Origin"),
        ("Host: localhost:8080\r\nOrigin: null\r\n", "Origin"),
        ("Host: localhost:8080\r\nOrigin: https://evil.example//localhost:8080.evil.example\r\n", "Origin"),
        ("Host: evil.example:8080\r\nOrigin: http://evil.example:8080\r\n", "Host"),
        ("Host: localhost.evil.example:8080\r\nSec-Fetch-Site: same-origin\r\n", "Host"),
        ("Host: 127.0.0.1.evil.example\r\n", "Host"),
    ],
)
async def test_a_page_of_another_site_changes_nothing_and_hears_why(headers: str, named: str) -> None:
    handler = Counted()
    async with serving(handler=handler) as served:
        status, body = await status_of(served, headers)
        assert status == 403
        assert f'"detail":"{named}: ' in body
        status, _ = await status_of(served, headers, "GET /api/queue/a/fetch?workerId=w")  # an image asks like this
        assert status == 403
    assert handler.count == 0


async def test_a_preflight_of_another_site_is_refused_without_any_header_of_cors() -> None:
    asks = "Host: localhost\r\nOrigin: https://evil.example\r\nAccess-Control-Request-Method: DELETE\r\n"
    async with serving(handler=Counted()) as served:
        assert (await status_of(served, asks, "OPTIONS /queues/a/tasks/1"))[0] == 403


async def test_names_of_the_setting_are_served_and_no_others() -> None:
    handler = Counted(allowed_hosts=["Queues.example"])
    async with serving(handler=handler) as served:
        assert (await status_of(served, "Host: queues.example:81\r\n"))[0] == 201
        assert (await status_of(served, "Host: other.example\r\n"))[0] == 403
        assert (await status_of(served, "Host: queues.example\r\nOrigin: https://evil.example\r\n"))[0] == 403


async def test_an_insecure_service_has_any_name_until_the_setting_has_some() -> None:
    """In a network of containers, clients call it by the name of its container."""
    insecure: dict[str, Any] = {"insecure": True, "listen_host": "0.0.0.0"}
    async with serving(handler=Counted(**insecure)) as served:
        assert (await status_of(served, "Host: hqueue:8080\r\n"))[0] == 201
        assert (await status_of(served, "Host: hqueue:8080\r\nSec-Fetch-Site: cross-site\r\n"))[0] == 403
    async with serving(handler=Counted(**insecure, allowed_hosts=["hqueue"])) as served:
        assert (await status_of(served, "Host: hqueue:8080\r\n"))[0] == 201
        assert (await status_of(served, "Host: evil.example\r\n"))[0] == 403


async def test_with_tokens_it_is_the_token_that_decides() -> None:
    """No browser adds a token to a request of another site; behind a proxy, `Host` may be any name."""
    tokens = Tokens(Keys("work"), "fetch", lambda command, reply: False)
    given = Settings(redis="redis://localhost:6379", redis_namespace="work", tokens=True)
    handler = RequestHandler({}, tokens, lambda: True, lambda error: None, given)
    async with serving(handler=handler) as served:
        headers = "Host: inner:8080\r\nOrigin: https://queues.example\r\nSec-Fetch-Site: same-site\r\n"
        assert (await status_of(served, headers))[0] == 401


async def test_a_request_of_http_1_0_without_host_is_served() -> None:
    async with serving(handler=Counted()) as served, served.connect() as client:
        answer = await client.ask(b"POST /queues/a/tasks HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        assert answer.status == 201
