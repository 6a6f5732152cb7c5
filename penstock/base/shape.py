"""The shape of a service: the keys that it reads and writes, their servers, and what it promises."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from penstock.base.encoding import decoded
from penstock.base.errors import Problem
from penstock.base.urls import server_of, url_of

Use = Literal["reads", "writes", "keeps"]
"""A part takes messages from a key, puts messages into it, or keeps its own there, as in a pending list."""
Kind = Literal["list", "stream"]
Promise = Literal["once", "at-least-once"]


@dataclass(frozen=True, order=True)
class Place:
    """A key on a server; ``server`` is host, port and database, equal for all URLs of one server."""

    key: str
    server: str = ""


@dataclass(frozen=True)
class End:
    """A key that a part uses, its ``role``, and the ``setting`` that names it.

    ``copies``: it is one of several outputs that each get every message.
    """

    key: str
    role: str
    use: Use
    setting: str
    url: str
    kind: Kind = "list"
    copies: bool = False
    origin: str | None = None
    """Such as ``mpush.yaml:4``; None if not known."""

    @property
    def place(self) -> Place:
        return Place(self.key, server_of(self.url))

    @property
    def where(self) -> tuple[str | None, int | None]:
        """Return file and line; None if not known."""
        file, _, line = (self.origin or "").rpartition(":")
        return (file, int(line)) if line.isdigit() else (self.origin, None)

    def problem(self, message: str) -> Problem:
        return Problem(message, *self.where, self.setting)


@dataclass
class Shape:
    """The part of a service's settings that matters to a composition."""

    ends: list[End] = field(default_factory=list)
    watched: list[End] = field(default_factory=list)
    """Ends of whichever part watches the service's namespace."""
    watches: list[str] = field(default_factory=list)
    """Namespaces that the service watches, or patterns of them."""
    promise: Promise = "once"
    ordered: bool = False
    again: float = 0


class Shaped(Protocol):
    """What ``shape_json`` needs of a service's settings."""

    service: ClassVar[str]
    redis: str
    service_redis: str | None

    def shape(self) -> Shape:
        """Return the lists that the service reads, writes and keeps, and the namespaces that it watches."""


def shape_json(settings: Shaped) -> str:
    """Return the shape of a service as JSON, for the key ``Keys.shape``; it has no password.

    The service's own server is left out, since other hosts may know it by another name.
    """
    shape = settings.shape()
    ends, watched = ([_end_as_json(end, settings.redis) for end in each] for each in (shape.ends, shape.watched))
    known = {"service": settings.service, "ends": ends, "watched": watched, "watches": shape.watches}
    registry = server_of(settings.service_redis or settings.redis)
    return json.dumps(known | ({} if registry == server_of(settings.redis) else {"registry": registry}))


def parse_shape(reply: bytes, url: str) -> tuple[str, Shape] | None:
    """Return the service and its shape from what ``shape_json`` wrote, for lists at ``url``; else None."""
    try:
        said: Mapping[str, Any] = json.loads(decoded(reply))
        ends, watched = ([_parse_end(each, url) for each in said[name]] for name in ("ends", "watched"))
        return str(said["service"]), Shape(ends, watched, [str(name) for name in said["watches"]])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _parse_end(said: Mapping[str, Any], url: str) -> End:
    server = said.get("server")
    there = url if server is None else url_of(server)
    copies = bool(said.get("copies", False))
    return End(said["key"], said["role"], said["use"], "", there, kind=said["kind"], copies=copies)


def _end_as_json(end: End, url: str) -> dict[str, Any]:
    server = server_of(end.url)
    elsewhere = {"server": server} if server != server_of(url) else {}
    copies = {"copies": True} if end.copies else {}
    return {"key": end.key, "role": end.role, "use": end.use, "kind": end.kind, **copies, **elsewhere}


def property_of(field: str) -> str:
    """Return the name of a settings field in files: ``pop_timeout`` is ``popTimeout``, ``in_`` is ``in``."""
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), field.rstrip("_"))
