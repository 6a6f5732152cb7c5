"""Transports of httpx for tests of the client of hqueue: scripted answers, and one that never comes."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

Handler = Callable[[str, str, Any], httpx.Response | Exception]


class Scripted(httpx.AsyncBaseTransport):
    """Answers each request by ``handler(method, path, body)``, and keeps all in ``calls``; raises what is an error."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.calls = list[tuple[str, str, Any]]()
        self.headers = list[httpx.Headers]()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        call = request.method, request.url.raw_path.decode(), json.loads(body) if body else None
        self.calls.append(call)
        self.headers.append(request.headers)
        found = self._handler(*call)
        if isinstance(found, Exception):
            raise found
        return found


class Hanging(httpx.AsyncBaseTransport):
    """Sends requests to the service; the first answer with several tasks never comes, and ``hangs`` is set."""

    def __init__(self) -> None:
        self._inner, self.hangs = httpx.AsyncHTTPTransport(), asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if request.url.path.endswith("/fetch") and not self.hangs.is_set():
            body = await response.aread()
            if body.count(b"taskToken") > 1:
                await response.aclose()
                self.hangs.set()
                await asyncio.Event().wait()
            return httpx.Response(response.status_code, content=body)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def answer(status: int = 200, body: Any = None, **headers: str) -> httpx.Response:
    """Return an answer with a body of JSON, or none."""
    content = b"" if body is None else json.dumps(body).encode()
    return httpx.Response(status, content=content, headers=headers)


def problem(status: int, detail: str, **more: Any) -> httpx.Response:
    """Return a problem document."""
    return answer(status, {"type": "about:blank", "status": status, "detail": detail, **more})


def task(id: str = "1", **more: Any) -> dict[str, Any]:
    """Return a task as a worker gets it."""
    known = {"taskId": id, "index": int(id), "attempt": 1, "taskToken": f"token{id}", "value": None}
    return {**known, "leaseEnd": 0.0, **more}
