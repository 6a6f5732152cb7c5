"""Posts outcomes to the URLs that want them: signed, to hosts that the operator allows, and to none that is down."""

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Final, NamedTuple

import httpx
import structlog

from penstock.base.encoding import parse_number
from penstock.core.backoff import Backoff
from penstock.hqueue.http import reason_of
from penstock.webhook import ID, SIGNATURE, TIMESTAMP, owner_secret, sign

MAX_IN_FLIGHT: Final = 10
"""Maximum number of webhooks that one host gets at a time from an instance."""
BUSY_SECONDS: Final = 0.25
"""Shortest wait of a webhook whose host has as many as it gets."""
MAX_TURN: Final = 20.0
"""Longest wait of a webhook for its turn, besides the rest of a host that is down."""
REST: Final = Backoff((), 0.5, 30.0)
"""How long a host that is down is left alone."""
WARN_SECONDS: Final = 60.0
"""Seconds in which the log names a host once that answers, but does not accept."""
MAX_RETRY_AFTER: Final = 3_600.0
MAX_HOSTS: Final = 10_000
MAX_ANSWER: Final = 65_536
PORTS: Final = {"https": 443, "http": 80}
_log: Final = structlog.get_logger("penstock.hqueue")


class Posted(NamedTuple):
    """How an attempt ended: see ``lua/sent.lua``; ``wait`` is what the host asks for (s), None if it does not."""

    outcome: str
    wait: float | None = None


@dataclass
class Host:
    """What is known of a host: webhooks on their way, failures in turn, and when it is tried again (s, monotonic)."""

    in_flight: int = 0
    failures: int = 0
    rests_until: float = 0.0
    seconds: float = BUSY_SECONDS
    """How long its last answer took, failures left out."""
    turn: float = 0.0
    """When the last one has its turn of those that wait (s, monotonic)."""

    @property
    def most(self) -> int:
        """Return how many webhooks it gets at a time."""
        return 1 if self.failures else MAX_IN_FLIGHT

    def next_turn(self) -> float:
        """Return how long one more webhook waits (s), so that those that wait do not all ask again at the same time."""
        now = time.monotonic()
        first = max(now + BUSY_SECONDS, self.rests_until)
        self.turn = min(max(first, self.turn) + self.seconds / self.most, first + MAX_TURN)
        return self.turn - now


class Webhooks:
    """Posts to hosts of ``patterns``; ``secrets`` are what the secrets of owners are made of, the newest first."""

    def __init__(self, patterns: Sequence[str], secrets: Sequence[str], seconds: float) -> None:
        self._patterns = [_pattern(each) for each in patterns]
        self._secrets, self._seconds = secrets, seconds
        self._hosts: dict[str, Host] = {}
        self._warned: dict[str, float] = {}
        """When the log named a host that answers, but does not accept (s, monotonic)."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self._client = httpx.AsyncClient(timeout=seconds, limits=limits, headers={"user-agent": "penstock-hqueue"})
        self._client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def refusal(self, text: str) -> str | None:
        """Return why outcomes are not posted to the URL ``text``; None if they are."""
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, UnicodeError):
            return "expected an URL such as https://hooks.example.com/done"
        if url.scheme not in PORTS or not url.host or url.userinfo or url.fragment:
            return "expected an URL such as https://hooks.example.com/done, without a name, a password and a fragment"
        port = url.port or PORTS[url.scheme]
        if not any(pattern.fullmatch(f"{url.scheme}://{url.host}:{port}") for pattern in self._patterns):
            return "its host is not one of the setting webhookHosts of this service"
        return None

    async def post(self, text: str, owner: str, id: str, body: bytes) -> Posted:
        """Post ``body`` once; pass it on if this instance may not: another one may have other settings."""
        url = httpx.URL(text)
        name = f"{url.scheme}://{url.netloc.decode()}"
        if refusal := self.refusal(text):
            self._warn(name, reason=refusal)
            return Posted("passed")
        if len(self._hosts) >= MAX_HOSTS and name not in self._hosts:
            del self._hosts[next(each for each, host in self._hosts.items() if not host.in_flight)]
        host = self._hosts.setdefault(name, Host())
        if host.rests_until > time.monotonic() or host.in_flight >= host.most:
            return Posted("deferred", host.next_turn())
        host.in_flight += 1
        began = time.monotonic()
        try:
            status, retry_after, reason = await self._status_of(url, owner, id, body)
        finally:
            host.in_flight -= 1
            if not host.in_flight and not host.failures:
                self._hosts.pop(name, None)
        if status is None or status >= 500 or status == 429:
            host.failures += 1
            host.rests_until = time.monotonic() + REST.delay_after(host.failures)
            self._hosts[name] = host
            _log.warning("webhook failed", host=name, status=status, reason=reason, failures=host.failures)
            return Posted("failed", retry_after)
        host.seconds = time.monotonic() - began
        if host.failures:
            _log.info("webhooks are accepted again", host=name)
            host.failures, host.rests_until, host.turn = 0, 0.0, 0.0
            if not host.in_flight:
                self._hosts.pop(name, None)
        if 200 <= status < 300:
            return Posted("sent")
        self._warn(name, status=status)
        return Posted("refused" if status == 410 else "failed", retry_after)

    def _warn(self, name: str, **why: str | int) -> None:
        """Log that a host does not accept an outcome, unless that was logged a short time ago."""
        now = time.monotonic()
        if now - self._warned.get(name, -WARN_SECONDS) >= WARN_SECONDS:
            if len(self._warned) >= MAX_HOSTS:
                self._warned.clear()
            self._warned[name] = now
            _log.warning("webhook refused", host=name, **why)

    async def _status_of(
        self, url: httpx.URL, owner: str, id: str, body: bytes
    ) -> tuple[int | None, float | None, str | None]:
        """Return the status of the answer and its Retry-After (s), or why there is none; None for what there is not."""
        now = int(time.time())
        signatures = " ".join(sign(owner_secret(root, owner), id, now, body) for root in self._secrets)
        headers = {"content-type": "application/json", ID: id, TIMESTAMP: str(now), SIGNATURE: signatures}
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                read = 0
                async for chunk in answer.aiter_raw():
                    read += len(chunk)
                    if read > MAX_ANSWER:
                        break
                wait = parse_number(answer.headers.get("retry-after", ""))
                return answer.status_code, None if wait is None else min(max(wait, 0.0), MAX_RETRY_AFTER), None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ValueError) as error:
            return None, None, reason_of(error)


def _pattern(text: str) -> "re.Pattern[str]":
    """Return what ``scheme://host:port`` must match: https and its port, unless ``text`` says others."""
    scheme, _, rest = text.rpartition("://")
    scheme = scheme or "https"
    found = re.fullmatch(r"(.+?)(?::([0-9]+))?", rest) if not rest.endswith("]") else None
    host, port = (found[1], found[2]) if found else (rest, None)
    host = host.strip("[]")
    words = re.escape(host) if not host.startswith("*.") else r"[a-z0-9._-]+" + re.escape(host[1:])
    return re.compile(f"{scheme}://{words}:{port or PORTS[scheme]}")
