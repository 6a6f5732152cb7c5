"""Requests of HTTP to the bridge, and its answers back."""

from functools import partial
from typing import Final

from common.http.answers import Header, end_to_end
from common.http.direct import Exchange
from common.http.message import Answer, failed, request_message
from common.http.proxies import Proxies
from common.http.tokens import Tokens, Verdict
from services.himporter.accepted import Accepted
from services.himporter.bridge import Bridge, Build
from services.himporter.cache import READS, Cache
from services.himporter.page import Page
from services.himporter.waiting import Then

REFUSALS: Final[dict[int, tuple[str, Header]]] = {
    401: ("expected a token: Authorization: Bearer pst_...", (b"www-authenticate", b"Bearer")),
    403: ("the token does not allow this", (b"cache-control", b"no-store")),
    503: ("the server of the tokens is away", (b"retry-after", b"1")),
}
"""Why a token does not suffice, and a header of the answer."""
ACCEPTED: Final = Answer(202, [], b"")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")


class RequestHandler:
    """The handler of all requests: call it with one."""

    def __init__(
        self, bridge: Bridge, proxies: Proxies, tokens: Tokens | None, accepted: Accepted, cache: Cache, *, probes: bool
    ) -> None:
        self._bridge, self._proxies, self._tokens, self._probes = bridge, proxies, tokens, probes
        self._accepted, self._cache = accepted, cache

    def __call__(self, exchange: Exchange) -> None:
        """Answer a probe; hand any other request to the bridge."""
        if self._probes and exchange.path in ("/live", "/ready") and exchange.method in ("GET", "HEAD"):
            self._answer_probe(exchange)
            return
        if self._tokens:
            self._tokens.check(exchange.headers, partial(self._judged, exchange))
        else:
            self._ask(exchange, exchange.headers)

    def _judged(self, exchange: Exchange, verdict: Verdict) -> None:
        """Go on with a request that shows a token, without the token; refuse any other."""
        if verdict.status == 200:
            headers = [pair for pair in exchange.headers if pair[0] != b"authorization"]
            self._ask(exchange, headers, verdict.owner)
            return
        reason, more = REFUSALS[verdict.status]
        answer = failed(verdict.status, reason)
        exchange.respond(answer.status, [*answer.headers, more], answer.body)

    def _ask(self, exchange: Exchange, headers: list[Header], owner: str = "") -> None:
        if exchange.is_gone:
            return
        if self._accepted.is_status(exchange):
            self._accepted.show(exchange)
            return
        headers = self._proxies.forwarded(end_to_end(headers), exchange.address)
        build = partial(_message, exchange, headers, owner)
        if self._accepted.wants(exchange, headers):
            self._accept(exchange, build, headers)
            return
        seconds = self._cache.seconds_for(exchange)
        if not seconds:
            self._push(exchange, build, partial(self._answered, exchange, build, None))
        elif exchange.method in READS and not exchange.body:
            page = Page(self._cache, exchange, headers, seconds)
            page.look(partial(self._looked, exchange, build, page))
        else:
            self._push(exchange, build, partial(self._changed, exchange, build, headers))

    def _accept(self, exchange: Exchange, build: Build, headers: list[Header], otherwise: Answer | None = None) -> None:
        """Accept a request; the page that it may change is cleared before."""
        accept = partial(self._accepted.accept, exchange, build, otherwise)
        if self._cache.seconds_for(exchange):
            self._cache.clear_after(exchange, headers, ACCEPTED, accept)
        else:
            accept()

    def _looked(self, exchange: Exchange, build: Build, page: Page, found: Answer | None) -> None:
        """Answer with the page, or ask for it."""
        if found:
            _respond(exchange, found)
        elif not exchange.is_gone:
            self._push(exchange, build, partial(self._answered, exchange, build, page))

    def _push(self, exchange: Exchange, build: Build, then: Then) -> None:
        bridge = self._bridge
        id = bridge.ask(exchange.method, build, then)
        if id is not None:
            exchange.when_gone(lambda: bridge.leave(id, forget=exchange.is_gone))

    def _answered(self, exchange: Exchange, build: Build, page: Page | None, answer: Answer) -> None:
        if answer.otherwise == "accept":
            self._accepted.accept(exchange, build, answer)
        elif answer.otherwise == "cached" and page:
            page.look(lambda found: _respond(exchange, found or answer), stale=True)
        else:
            _respond(exchange, page.keep(answer) if page else answer)

    def _changed(self, exchange: Exchange, build: Build, headers: list[Header], answer: Answer) -> None:
        """Answer a request that may have changed the page of its path."""
        if answer.otherwise == "accept":
            self._accept(exchange, build, headers, answer)
        elif answer.otherwise:
            _respond(exchange, answer)
        else:
            self._cache.clear_after(exchange, headers, answer, partial(_respond, exchange, answer))

    def _answer_probe(self, exchange: Exchange) -> None:
        if exchange.path == "/ready" and not self._bridge.is_open:
            exchange.respond(503, [TEXT], b"the server of the lists is away\n")
        else:
            exchange.respond(200, [TEXT], b"ok\n")


def _message(
    exchange: Exchange, headers: list[Header], owner: str, id: str, reply_to: str, deadline: float, budget: float
) -> bytes:
    return request_message(
        id, reply_to, exchange.method, exchange.path, exchange.query, headers, exchange.body, deadline, budget, owner
    )


def _respond(exchange: Exchange, answer: Answer) -> None:
    exchange.respond(answer.status, answer.headers, answer.body)
