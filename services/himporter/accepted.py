"""Requests that are answered with 202 at once: their status, their progress, and their answers for a time."""

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final

from common.http.access import Access
from common.http.answers import JSON, Header, error_body
from common.http.direct import Exchange
from common.http.message import Answer, failed
from penstock.base.errors import NotDurable
from penstock.base.exact_json import as_json
from penstock.base.keys import Keys
from penstock.core.link import LostReply
from penstock.core.script import Script
from penstock.core.wire import Reply
from services.himporter.bridge import RETRY_AFTER, Bridge, Build
from services.himporter.events import MAX_NEWS, Events
from services.himporter.settings import Settings
from services.himporter.states import NOTE_OF_ACCEPTANCE, State, note_of_cancellation, state_of, unknown

ANSWER: Final = "/answer"
ID: Final = re.compile(r"[0-9]+-[0-9a-f]{32}").fullmatch
"""The id of an accepted request; ids of importers and of other requests name lists that are not for all."""
NOTHING: Final = State([], False, None)
MOST_REMEMBERED: Final = 10_000
"""Requests of which is remembered what was read, with at most ``MAX_REMEMBERED`` bytes of progress together."""
MAX_REMEMBERED: Final = 16_777_216
_accept, _cancel = (Script.read(Path(__file__).parent / "lua" / f"{verb}.lua") for verb in ("accept", "cancel"))


class Accepted:
    """Accepts requests for later, and shows what becomes of them below the path ``statusPath``."""

    def __init__(
        self, settings: Settings, keys: Keys, bridge: Bridge, access: Access, *, call: Callable[..., bool]
    ) -> None:
        """Push with ``call``, which has the signature of ``Bridge.call``."""
        self._count = access.count
        self._settings, self._keys, self._bridge, self._call = settings, keys, bridge, call
        self._path = settings.status_path.rstrip("/") + "/"
        self._events = Events(keys, bridge)
        self._looks: dict[tuple[str, bool], list[Callable[[int, State], None]]] = {}
        self._next_looks: dict[tuple[str, bool], list[Callable[[int, State], None]]] = {}
        """Who waits for a look that is under way, by id and ``whole``, and who has come since."""
        self._known: dict[str, tuple[int, State]] = {}
        """What the oldest messages of a list say, without the body of an answer, and how many these are: a client may
        ask again and again."""
        self._remembered = 0
        """At least the bytes of their progress."""

    def wants(self, exchange: Exchange, headers: list[Header]) -> bool:
        """Return whether a request is to be answered with 202: the settings or its client say so."""
        for pattern in self._settings.accept:
            if fnmatchcase(exchange.path, pattern):
                return True
        return self._settings.prefer and _prefers(headers)

    def accept(self, exchange: Exchange, build: Build, otherwise: Answer | None = None) -> None:
        """Push a request, and answer 202 once the server has it; if it cannot have it, answer ``otherwise``, or 503."""
        if exchange.is_gone:
            return
        away = otherwise or failed(503, "the server of the lists is away", retry_after=RETRY_AFTER)
        asked = self._bridge.new_request(self._settings.accept_timeout)
        if asked is None:
            _respond(exchange, away)
            return
        id, deadline = asked
        name = self._keys.response(id)
        called = self._call(
            _accept,
            partial(self._accepted, exchange, id, otherwise),
            **self._bridge.pushing,
            replies=self._keys.responses,
            list=name,
            note=NOTE_OF_ACCEPTANCE,
            message=build(id, name, deadline, self._settings.accept_timeout),
            keep=self._settings.accept_timeout + self._settings.accept_expire,
            most=self._settings.max_accepted,
        )
        if not called:
            _respond(exchange, away)

    def _accepted(self, exchange: Exchange, id: str, otherwise: Answer | None, reply: Reply) -> None:
        location = (b"location", f"{self._path}{id}".encode())
        if isinstance(reply.error, NotDurable | LostReply):
            self._count("unconfirmed")
            status = 503 if isinstance(reply.error, NotDurable) else 504
            # Without Retry-After: a client that sends the request anew may have it done twice.
            answer = failed(status, "this request may be done, but that is not confirmed: see Location", id)
            exchange.respond(status, [*answer.headers, location], answer.body)
        elif reply.error:
            self._count("away")
            reason = "the server of the lists accepts nothing now"
            _respond(exchange, otherwise or failed(503, reason, id, RETRY_AFTER))
        elif not reply.value():
            self._count("busy")
            _respond(exchange, otherwise or failed(503, "too many requests are accepted", id, RETRY_AFTER))
        else:
            applied = [(b"preference-applied", b"respond-async")] if _prefers(exchange.headers) else []
            body = as_json({"id": id, "state": "pending", "status": location[1].decode()}) + b"\n"
            exchange.respond(202, [JSON, location, *applied], body)

    # The status

    def is_status(self, exchange: Exchange) -> bool:
        """Return whether a request asks what becomes of another one."""
        return exchange.path.startswith(self._path)

    def show(self, exchange: Exchange) -> None:
        """Answer with the state as JSON or as a stream of events; with the answer itself for its path."""
        rest = exchange.path.removeprefix(self._path)
        id = rest.removesuffix(ANSWER)
        if not ID(id):
            _respond(exchange, unknown(404, id))
        elif exchange.method == "DELETE" and id == rest:
            self._look(id, partial(self._cancel, exchange, id))
        elif exchange.method not in ("GET", "HEAD"):
            expected = "GET, HEAD, DELETE" if id == rest else "GET, HEAD"
            exchange.respond(405, [JSON, (b"allow", expected.encode())], error_body(f"expected {expected}"))
        elif id != rest:
            self._look(id, partial(_show_answer, exchange, id), whole=True)
        elif exchange.method == "GET" and any(b"text/event-stream" in value for value in _values(exchange, b"accept")):
            self._events.listen(exchange, id)
        else:
            self._look(id, partial(self._show_state, exchange, id))

    def _look(self, id: str, then: Callable[[int, State], None], *, whole: bool = False) -> None:
        """Call ``then`` with the status of the look (200, 404 or 503) and the state of the request.

        Only with ``whole`` it surely has the body of the answer.
        """
        if (id, whole) in self._looks:
            self._next_looks.setdefault((id, whole), []).append(then)
        else:
            self._looks[id, whole] = [then]
            self._read(id, whole=whole)

    def _read(self, id: str, *, whole: bool) -> None:
        """Look once for all who wait for it, and again for those that have come meanwhile."""

        def end(status: int, state: State = NOTHING) -> None:
            for then in self._looks.pop((id, whole)):
                then(status, state)
            if waiting := self._next_looks.pop((id, whole), None):
                self._looks[id, whole] = waiting
                self._read(id, whole=whole)

        self._read_behind(id, *((0, NOTHING) if whole else self._known.get(id, (0, NOTHING))), end)

    def _read_behind(self, id: str, seen: int, state: State, end: Callable[..., None]) -> None:
        """Read behind the ``seen`` oldest messages, which say ``state``; nothing counts after an answer."""
        name = self._keys.response(id)
        exists = Reply()

        def looked(last: Reply) -> None:
            if exists.error or last.error:
                end(503)
            elif exists.value() is None:
                end(404)
            elif state.answer:
                end(200, state)
            else:
                messages, found = last.value(), state.then(state_of(last.value()))
                if messages:
                    self._remember(id, seen + len(messages), found)
                if found.answer or len(messages) < MAX_NEWS:
                    end(200, found)
                else:
                    self._read_behind(id, seen + len(messages), found, end)

        ask = ("LLEN", name) if state.answer else ("LRANGE", name, -seen - MAX_NEWS, -seen - 1)
        if not self._bridge.fetch(("ZSCORE", self._keys.responses, name), exists) or not self._bridge.fetch(
            ask, Reply(looked)
        ):
            end(503)

    def _remember(self, id: str, seen: int, state: State) -> None:
        size = len(as_json(state.progress))
        if len(self._known) >= MOST_REMEMBERED or self._remembered + size > MAX_REMEMBERED:
            self._known.clear()
            self._remembered = 0
        if size <= MAX_REMEMBERED:
            self._remembered += size
            answer = state.answer and state.answer._replace(headers=[], body=b"")
            self._known[id] = seen, state._replace(answer=answer)

    def _cancel(self, exchange: Exchange, id: str, status: int, state: State) -> None:
        """Cancel a request that has no answer."""
        if status != 200 or state.answer:
            self._show_state(exchange, id, status, state, done=409)
            return

        def cancelled(reply: Reply) -> None:
            status = 503 if reply.error else 200 if reply.value() else 404
            self._show_state(exchange, id, status, state._replace(is_cancelled=True))

        called = self._bridge.call(
            _cancel,
            cancelled,
            replies=self._keys.responses,
            list=self._keys.response(id),
            cancelled=self._keys.cancelled(id),
            channel=self._keys.cancellations,
            id=id,
            note=note_of_cancellation(id),
        )
        if not called:
            _respond(exchange, unknown(503, id))

    def _show_state(self, exchange: Exchange, id: str, status: int, state: State, done: int = 200) -> None:
        """Answer with the state as JSON, of a request that has an answer with the status ``done``."""
        if status != 200:
            _respond(exchange, unknown(status, id))
            return
        word = "done" if state.answer else "cancelled" if state.is_cancelled else "pending"
        shown: dict[str, Any] = {"id": id, "state": word}
        if state.progress:
            shown["progress"] = state.progress[-1]
        if state.answer:
            shown |= {"status": state.answer.status, "answer": f"{self._path}{id}{ANSWER}"}
        retry = [(b"retry-after", b"%d" % RETRY_AFTER)] if word == "pending" else []
        headers = [JSON, (b"cache-control", b"no-store"), *retry]
        exchange.respond(done if state.answer else 200, headers, as_json(shown) + b"\n")


def _values(exchange: Exchange, name: bytes) -> Iterator[bytes]:
    return (value for each, value in exchange.headers if each == name)


def _prefers(headers: list[Header]) -> bool:
    """Return whether a client sent ``Prefer: respond-async``."""
    values = (value.lower() for name, value in headers if name == b"prefer")
    return any(each.partition(b";")[0].strip() == b"respond-async" for value in values for each in value.split(b","))


def _respond(exchange: Exchange, answer: Answer) -> None:
    exchange.respond(answer.status, answer.headers, answer.body)


def _show_answer(exchange: Exchange, id: str, status: int, state: State) -> None:
    without = failed(404, "no answer yet", id) if status == 200 else unknown(status, id)
    _respond(exchange, state.answer or without)
