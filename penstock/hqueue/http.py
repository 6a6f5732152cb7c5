"""Calls of the service over HTTP, repeated while it is away."""

import json
import os
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from math import inf
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.base.errors import Disconnected, Refused, Unconfirmed, WrongCall
from penstock.base.exact_json import parse_whole
from penstock.base.extras import extra
from penstock.base.log import Log
from penstock.base.secrets import resolve_reference
from penstock.core.link import Outage, Pause, again
from penstock.hqueue.errors import error_of, words_of

with extra("hqueue"):
    import httpx

ANSWER_SECONDS: Final = 15.0
"""Longest wait for an answer, beyond what the call itself waits in the service."""
CONNECT_SECONDS: Final = 5.0
MAX_RETRY_AFTER: Final = 30.0
"""Longest pause (s) that the service can ask for."""
PASSING: Final = frozenset({429, 502, 503, 504})
"""Answers that say: try again later."""
MAYBE_DONE: Final = frozenset({502, 503, 504})
"""Those after which the call may have been executed: the service itself has lost a reply, or a proxy one of it."""
UNSENT: Final = httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout
"""Errors before anything was sent."""
WORKER_PROCESS: Final = "Worker-Process"
"""Header of a fetch, with a word that each process makes up: a worker that has another one than before has died."""
TOKEN: Final = r"[A-Za-z0-9._~+/-]+=*"
_log: Final = Log("penstock.hqueue")


@dataclass(frozen=True)
class Answer:
    """A success; ``body`` is parsed JSON, None if it is empty."""

    status: int
    body: Any
    repeated: bool
    """Whether the call was sent before, and that may have been executed: its answer was lost."""


class Http:
    """Calls one service: ``await http("GET", "/queues/a/info")``; raises ``AnswerError`` for what is no success.

    While the service is away, or says that it is, a call is repeated for ``patience`` seconds; then it raises
    ``Unavailable``. None waits without end.
    """

    def __init__(
        self, url: str, token: str | None, patience: float | None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        if patience is not None and not patience >= 0:
            raise WrongCall(f"patience={patience!r}: expected seconds, or None to wait without end")
        self.url, self.patience, self.hurry = _checked(url), inf if patience is None else patience, inf
        self._authorization = {} if token is None else {"authorization": f"Bearer {_secret(token)}"}
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._outage = Outage(_log, "hqueue away", "hqueue back", url=self.url)

    async def open(self) -> None:
        """Get ready for calls; connect with the first one."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._client = httpx.AsyncClient(
            headers=self._authorization | {"accept": "application/json"}, limits=limits, transport=self._transport
        )

    async def close(self) -> None:
        """End all connections."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    def twin(self) -> "Http | None":
        """Return the same, not opened; None with a transport of the program's, which belongs to one event loop."""
        if self._transport is not None:
            return None
        found = copy(self)
        found._client, found._outage = None, Outage(None)
        return found

    async def __call__(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        query: dict[str, str | int | float] | None = None,
        wait: float = 0.0,
        repeatable: bool = True,
        patience: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Call, and repeat while the service is away.

        ``wait`` is how long (s) the service itself waits before it answers. If the call is not ``repeatable``, since a
        second run would do more than one, raise ``Unconfirmed`` if the answer is lost. ``patience`` replaces
        that of all calls.
        """
        call, repeated = f"{method} {path}", False

        async def attempt() -> Answer:
            nonlocal repeated
            try:
                response = await self._send(method, path, body, query, wait, headers or {})
            except UNSENT as error:
                raise Disconnected(f"cannot reach {self.url}: {reason_of(error)}") from error
            except httpx.TransportError as error:
                trouble = f"{call}: no answer: {reason_of(error)}"
                if not repeatable:
                    raise Unconfirmed(f"{trouble}; the service may have done it, or not") from error
                repeated = True
                raise Disconnected(trouble) from error
            if response.status_code not in PASSING:
                self._outage.over()  # also if it is an error: the service is there
                return _answer(response, call, repeated)
            trouble = f"{call}: {response.status_code} {words_of(_problem(response))}".rstrip()
            if response.status_code in MAYBE_DONE:
                if not repeatable:
                    raise Unconfirmed(f"{trouble}; the service may have done it, or not")
                repeated = True
            raise Pause(Refused(trouble), _retry_after(response))

        own = self.patience if patience is None else patience
        return await again(attempt, self._outage, most=lambda: min(own, self.hurry))

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: dict[str, str | int | float] | None,
        wait: float,
        more: Mapping[str, str],
    ) -> httpx.Response:
        if self._client is None:
            raise WrongCall("expected `async with Queues(...) as queues:` around this call")
        headers = {**more} if body is None else {"content-type": "application/json", **more}
        timeout = httpx.Timeout(ANSWER_SECONDS, read=ANSWER_SECONDS + wait, connect=CONNECT_SECONDS, pool=None)
        url = f"{self.url}{path}"
        return await self._client.request(method, url, content=body, params=query, headers=headers, timeout=timeout)


def _checked(url: str) -> str:
    """Return ``url`` without a slash at its end. Raise ``WrongCall``, without quoting a login, if it is none."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises if it is no number
    except ValueError:
        raise WrongCall("not a URL: expected e.g. http://localhost:8080") from None
    if "@" in parts.netloc:
        raise WrongCall("the URL has a login: expected one without, and the token as `token`")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise WrongCall("not the URL of hqueue: expected e.g. http://localhost:8080, without a query")
    if re.search(r"[\s\x00-\x20\x7f]", url):
        raise WrongCall("the URL has a space or a control character")
    return url.rstrip("/")


def _secret(token: str) -> str:
    """Return the token that ``token`` is, or refers to as @FILE or env:NAME. Never quote it."""
    if token.startswith("env:") and not os.environ.get(token[4:]):
        raise WrongCall(f"the variable {token[4:]} is empty or not set: expected a token in it")
    found = resolve_reference(token, os.environ)
    if not re.fullmatch(TOKEN, found):
        raise WrongCall("the token has letters that no token has: expected it as `penstock token add` printed it")
    return found


def reason_of(error: BaseException) -> str:
    """Return the error of the operating system, e.g. ``connection refused``, else what httpx says."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and (cause.errno or 0) > 0:
            return os.strerror(cause.errno or 0).lower()
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _answer(response: httpx.Response, call: str, repeated: bool) -> Answer:
    if not response.is_success:
        raise error_of(response.status_code, _problem(response), call, repeated=repeated)
    if not response.content:
        return Answer(response.status_code, None, repeated)
    try:
        return Answer(response.status_code, parse_whole(response.content), repeated)
    except ValueError:
        problem = {"detail": "the answer is no JSON: check the URL: is it that of hqueue?"}
        raise error_of(response.status_code, problem, call) from None


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        found = json.loads(response.content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        found = {"title": response.reason_phrase}
    if response.is_redirect:
        found["detail"] = f"it redirects to {response.headers['location'][:200]}: name that URL"
    return found


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), MAX_RETRY_AFTER) if re.fullmatch(r"[0-9]{1,6}", text) else 0.0
