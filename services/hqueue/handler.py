"""The handler of all requests: checks token and route, and answers with a response or a problem."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import structlog
from redis.exceptions import ConnectionError, RedisError

from common.http.answers import JSON, Header
from common.http.direct import Exchange
from common.http.settings import is_loopback
from common.http.tokens import Tokens, Verdict
from penstock.base.errors import Forgotten, PenstockError, Unauthorized, Unavailable, Unopenable, WrongMasterKey
from penstock.base.exact_json import as_json
from penstock.core.link import LostReply, is_full, passes
from services.hqueue.actions import Action
from services.hqueue.browsers import Browsers
from services.hqueue.keys import queue_name
from services.hqueue.openapi import document
from services.hqueue.page import PUBLIC, Page
from services.hqueue.problem import Problem
from services.hqueue.request import Request, Route, not_allowed, route_of
from services.hqueue.settings import Settings
from services.hqueue.steps import run_steps

REFUSALS: Final = {
    401: "expected a token: Authorization: Bearer pst_...",
    403: "the token does not allow this",
    503: "the server of the tokens is away",
}
TEXT: Final[Header] = (b"content-type", b"text/plain; charset=utf-8")
READ: Final = ("GET", "HEAD")
_log: Final = structlog.get_logger("penstock.hqueue")


class RequestHandler:
    """Call it with a request. ``actions`` are by verb."""

    def __init__(
        self,
        actions: Mapping[str, Action],
        tokens: Tokens | None,
        is_ready: Callable[[], bool],
        trouble: Callable[[Exception], None],
        settings: Settings,
    ) -> None:
        self._actions, self._tokens, self._is_ready = actions, tokens, is_ready
        self._trouble = trouble
        """Called with errors of the server, for the log."""
        described = document(settings)
        self._document, self._page = as_json(described) + b"\n", Page(described)
        hosts, is_open = settings.allowed_hosts, settings.insecure and not is_loopback(settings.listen_host)
        self._browsers = None if tokens else Browsers(hosts, only_known=not is_open)
        """Judges requests that show no token; a browser adds none to those of another site."""
        self._public = {
            "/": self._answer_page,
            "/openapi.json": self._answer_document,
            "/live": self._answer_probe,
            "/ready": self._answer_probe,
        }

    def __call__(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        if public := self._public.get(exchange.path):
            if exchange.method in READ:
                public(exchange)
            else:
                _refuse(exchange, not_allowed(READ))
            return
        try:
            if self._browsers:
                self._browsers.check(exchange.headers)
            route = route_of(exchange.method, exchange.path)
        except Problem as problem:
            _refuse(exchange, problem)
            return
        if self._tokens is None:
            self._judged(exchange, route, Verdict(200))
        else:
            self._tokens.check(exchange.headers, partial(self._judged, exchange, route), route.rights)

    def _answer_page(self, exchange: Exchange) -> None:
        exchange.respond(200, *self._page.answer(exchange.headers))

    def _answer_document(self, exchange: Exchange) -> None:
        exchange.respond(200, [JSON, *PUBLIC], self._document)

    def _answer_probe(self, exchange: Exchange) -> None:
        if exchange.path == "/ready" and not self._is_ready():
            exchange.respond(503, [TEXT], b"the server of the queues is away\n")
        else:
            exchange.respond(200, [TEXT], b"ok\n")

    def _judged(self, exchange: Exchange, route: Route, verdict: Verdict) -> None:
        """Go on with a request that shows a token; the token's service replaces that of the path."""
        if verdict.status != 200:
            _refuse(exchange, Problem(verdict.status, REFUSALS[verdict.status]))
            return
        if verdict.service:
            route = route._replace(service=verdict.service)
        request = Request(exchange, route, verdict.owner, queue_name(verdict.owner, route.service))
        run_steps(self._serve(request))

    async def _serve(self, request: Request) -> None:
        try:
            answer = await self._actions[request.route.verb](request)
        except Problem as problem:
            _refuse(request.exchange, problem)
        except Exception as error:  # noqa: BLE001  # the client gets an answer, and the log the error
            _refuse(request.exchange, self._problem_of(error))
        else:
            request.exchange.respond(answer.status, answer.headers, answer.body)

    def _problem_of(self, error: Exception) -> Problem:
        """Return what a client is answered after an error of ours, or of the server."""
        if isinstance(error, Forgotten):
            return Problem(410, "the keys of this owner are gone: nothing of it can be read or written any more")
        if isinstance(error, LostReply):
            return Problem(503, "the server went away before it replied: it may have done this, or not")
        if isinstance(error, Unopenable):
            _log.error("cannot be opened", reason=str(error))
            return Problem(500, "what is stored of this task cannot be opened")
        if isinstance(error, ConnectionError):
            return Problem(503, "the server of the queues is away")
        if isinstance(error, Unavailable | Unauthorized | WrongMasterKey):
            _log.error("no keys", reason=str(error))
            return Problem(503, "the keys with which tasks are sealed cannot be had now")
        if isinstance(error, RedisError | PenstockError) and (passes(error) or is_full(error)):
            self._trouble(error)
            return Problem(503, "the server of the queues accepts nothing now")
        _log.error("failed", reason=str(error) or type(error).__name__, exc_info=error)
        return Problem(500, "an error of this service: its log says more")


def _refuse(exchange: Exchange, problem: Problem) -> None:
    exchange.respond(problem.status, problem.headers, problem.body)
