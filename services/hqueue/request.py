"""A request, its route, and its response."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from common.http.answers import JSON, Header
from common.http.direct import Exchange
from services.hqueue.problem import Problem

SERVICE: Final = re.compile(r"[A-Za-z0-9._~-]{1,128}").fullmatch
ID: Final = re.compile(r"[1-9][0-9]{0,15}").fullmatch
FORMS: Final = {
    ("POST", "tasks"): "add",
    ("GET", "tasks"): "page",
    ("POST", "fetch"): "fetch",
    ("POST", "ack"): "ack",
    ("POST", "heartbeat"): "heartbeat",
    ("GET", "info"): "info",
    ("POST", "rewind"): "rewind",
}
"""Verbs of a queue, by method and the last part of the path."""
OF_TASKS: Final = {("GET", ""): "show", ("DELETE", ""): "cancel", ("POST", "retry"): "retry"}
"""Verbs of one task, by method and what follows its id."""
ORIGINAL: Final = frozenset({"fetch", "ack", "info"})
"""The original's paths, ``/api/queue/{serviceId}/...``."""
RIGHTS: Final = {
    "add": "add",
    "cancel": "add",
    "fetch": "fetch",
    "ack": "ack",
    "heartbeat": "ack",
    "rewind": "rewind",
    "retry": "admin",
    "info": "info",
    "page": "info",
    "show": "info",
}
"""The right that a token needs for a verb; ``admin`` is enough for all."""

NO_PATH: Final = "there is no such path: expected /queues/SERVICE/tasks, fetch, ack, heartbeat, info or rewind"


class Response(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes = b""
    headers: tuple[Header, ...] = (JSON,)


class Route(NamedTuple):
    """What method and path of a request name: a verb, a queue's service and, for some verbs, a task."""

    verb: str
    service: str
    id: str = ""
    is_original: bool = False

    @property
    def rights(self) -> tuple[str, str]:
        """Return the rights of which a token needs one."""
        return RIGHTS[self.verb], "admin"


class Request(NamedTuple):
    """A request that is allowed."""

    exchange: Exchange
    route: Route
    owner: str
    queue: str


def route_of(method: str, path: str) -> Route:
    """Return the route of a request. Raise ``Problem`` if there is no such path, or not with this method."""
    head, *parts = path.removeprefix("/").split("/")
    if head == "api" and len(parts) == 3 and parts[0] == "queue" and parts[2] in ORIGINAL:
        if method not in ("GET", "POST"):
            raise not_allowed(["GET", "POST"])
        return Route(parts[2], _service(parts[1]), is_original=True)
    if head != "queues" or not 2 <= len(parts) <= 4:
        raise Problem(404, NO_PATH)
    service, what, *rest = parts
    if rest and what == "tasks":
        return _of_task(method, _service(service), rest)
    verb = None if rest else FORMS.get((method, what))
    if verb is None:
        allowed = [each for each, name in FORMS if name == what and not rest]
        raise not_allowed(allowed)
    return Route(verb, _service(service))


def _of_task(method: str, service: str, rest: list[str]) -> Route:
    id, form = rest[0], rest[1] if len(rest) > 1 else ""
    verb = OF_TASKS.get((method, form))
    if verb is None:
        raise not_allowed([each for each, name in OF_TASKS if name == form])
    if not ID(id):
        raise Problem(404, "there is no such task")
    return Route(verb, service, id)


def not_allowed(allowed: Sequence[str]) -> Problem:
    """Return 405 for a path that has other methods; 404 for one that has none."""
    if allowed:
        return Problem(405, f"expected {' or '.join(allowed)}", allow=[*allowed])
    return Problem(404, NO_PATH)


def _service(name: str) -> str:
    if not SERVICE(name) or name in (".", ".."):  # which clients and proxies take out of a path
        raise Problem(404, "expected the name of a service: 1 to 128 of A-Z a-z 0-9 . _ ~ -, and neither . nor ..")
    return name
