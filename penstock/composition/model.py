"""What a composition is made of: its parts, the keys that each reads and writes, and on which server."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

from penstock.connection import hosts_of
from penstock.errors import Problem

if TYPE_CHECKING:
    from penstock.acl import Rights
    from penstock.composition.service import ServiceSettings

Use = Literal["reads", "writes", "keeps"]
"""What a part does with a key: takes from it, puts into it, or both by itself, as with what it has in hand."""
Kind = Literal["list", "stream"]
Promise = Literal["once", "at-least-once"]
ID_HERE: Final = "{id}"
"""Where a message of ``Chaos`` has its id."""


@dataclass(frozen=True, order=True)
class Place:
    """A key on a server; ``server`` is host, port and database, so that two URLs of one server are the same."""

    key: str
    server: str = ""


@dataclass(frozen=True)
class End:
    """A key that a part works on, the ``role`` it has there, and the ``setting`` that names it.

    ``copies``: it gets every message that the part takes, beside the others that do.
    """

    key: str
    role: str
    use: Use
    setting: str
    url: str
    kind: Kind = "list"
    copies: bool = False
    origin: str | None = None
    """``mpush.yaml:4``, where it is known."""

    @property
    def place(self) -> Place:
        return Place(self.key, server_of(self.url))

    @property
    def where(self) -> tuple[str | None, int | None]:
        """File and line."""
        file, _, line = (self.origin or "").rpartition(":")
        return (file, int(line)) if line.isdigit() else (self.origin, None)

    def problem(self, message: str) -> Problem:
        return Problem(message, *self.where, self.setting)


@dataclass(frozen=True)
class Part:
    """One process: of a ``service`` of ours, or a program of the user's own, for which ``service`` is None."""

    name: str
    service: str | None = None
    namespace: str | None = None
    file: str | None = None
    ends: tuple[End, ...] = ()
    settings: "ServiceSettings | None" = None
    """None for a program."""
    promise: Promise = "once"
    """How often a message comes out, whatever happens."""
    ordered: bool = False
    """Whether messages come out in the order in which they came in, whatever happens."""
    again: float = 0
    """Seconds after which a message is delivered again that nobody finished; 0 where that is never done."""
    command: str | None = None
    """As the Procfile or compose.yaml has it; None where no process is started."""
    module: tuple[str, ...] = ()
    """What the command runs, and its arguments, where that is no more than ``python -m``."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """What the command sets for itself."""

    @property
    def server(self) -> str:
        """Return the server of the service's own lists, or of a program's first list; empty if it has none."""
        if self.settings is not None:
            return server_of(self.settings.redis)
        return next((end.place.server for end in (*self.using("reads", "keeps"), *self.ends)), "")

    @property
    def urls(self) -> tuple[str, str]:
        """Return the URLs of a service's lists and of its registrations, which may be the same; empty for a program."""
        if self.settings is None:
            return "", ""
        return self.settings.redis, self.settings.service_redis or self.settings.redis

    @property
    def shape(self) -> "Shape":
        """Return the shape of a service's settings; an empty one for a program."""
        return Shape() if self.settings is None else self.settings.shape()

    @property
    def rights(self) -> "Mapping[str, Rights]":
        """Return the minimal ACL of a service, by URL of the server; empty for a program."""
        return {} if self.settings is None else self.settings.rights()

    def setting(self, name: str) -> Any:
        """Return a field that not all services have; None if this part does not have it."""
        return getattr(self.settings, name, None)

    def using(self, *uses: Use) -> Iterator[End]:
        return (end for end in self.ends if end.use in uses)


@dataclass(frozen=True)
class Outside:
    """What others read and write, by declaration: names or patterns such as ``shop:*``."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    def does(self, use: Use, key: str) -> bool:
        return any(fnmatchcase(key, name) for name in (self.reads if use == "reads" else self.writes))


@dataclass(frozen=True)
class Chaos:
    """How ``penstock chaos`` is to break the composition, where its own choice does not suit."""

    message: str = f'{{"id": "{ID_HERE}"}}'
    """What is pushed; ``ID_HERE`` in it becomes the message's own, by which it is found again."""
    into: tuple[str, ...] = ()
    """Lists to push to; by default those that are read and never written."""
    out: tuple[str, ...] = ()
    """Lists that every message must reach; by default those that are written and never read."""
    promise: Promise = "once"
    """What the programs promise."""
    without: tuple[str, ...] = ()
    """Processes that are not started."""


@dataclass(frozen=True)
class Topology:
    """A composition as a whole; ``problems`` are those of its single files."""

    parts: tuple[Part, ...]
    outside: Outside = Outside()
    problems: tuple[Problem, ...] = ()
    directory: str | None = None
    chaos: Chaos = field(default_factory=Chaos)
    declared: str | None = None
    """The file that says what programs and others do, if there is one."""

    def ends(self, *uses: Use) -> Iterator[tuple[Part, End]]:
        return ((part, end) for part in self.parts for end in part.using(*uses))

    def at(self, place: Place, *uses: Use) -> list[tuple[Part, End]]:
        """Who uses this key so."""
        return [(part, end) for part, end in self.ends(*uses) if end.place == place]

    def sources(self) -> list[End]:
        """Where messages come in: lists that are read, and written by no part but those that give back."""
        written = {end.place for _, end in self.ends("writes")}
        return _distinct(end for part, end in self.ends("reads") if end.role == "in" and end.place not in written)

    def sinks(self) -> list[End]:
        """Where messages go out: lists that are written and read by no part, but for dead letters."""
        read = {end.place for _, end in self.ends("reads")}
        ends = (end for _, end in self.ends("writes") if end.kind == "list" and end.role not in ("dead", "replies"))
        return _distinct(end for end in ends if end.place not in read)


@dataclass
class Shape:
    """What the settings of a service say of its place in a composition."""

    ends: list[End] = field(default_factory=list)
    watched: list[End] = field(default_factory=list)
    """What whoever watches the service's namespace does there."""
    watches: list[str] = field(default_factory=list)
    """Namespaces, or patterns of them."""
    promise: Promise = "once"
    ordered: bool = False
    again: float = 0


def connected(parts: Iterable[tuple[Part, Shape]]) -> tuple[Part, ...]:
    """The parts, each with the ends of its shape, and those that come to it from the namespaces it watches."""
    pairs = list(parts)
    whole = []
    for part, shape in pairs:
        ends = [*shape.ends]
        for other, theirs in pairs:
            if other.namespace and any(fnmatchcase(other.namespace, name) for name in shape.watches):
                ends += theirs.watched
        ordered = shape.ordered or bool(part.setting("ordered"))
        whole.append(replace(part, ends=tuple(ends), promise=shape.promise, ordered=ordered, again=shape.again))
    return tuple(_with_streams(part, whole) for part in whole)


def _with_streams(part: Part, all: Iterable[Part]) -> Part:
    """The part with the streams that it reads by a pattern, as far as another part writes them."""
    written = [end.key for other in all for end in other.using("writes") if end.kind == "stream"]
    ends = list[End]()
    for end in part.ends:
        by_pattern = end.kind == "stream" and end.use == "reads"
        found = dict.fromkeys(key for key in written if by_pattern and fnmatchcase(key, end.key))
        ends += [replace(end, key=key) for key in found] or [end]
    return replace(part, ends=tuple(ends))


def server_of(url: str) -> str:
    """Host, port and database of a server's URL, or its socket, without a password: what makes it the same one."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    if "+" in parts.scheme:  # many hosts, one service, or one cluster
        hosts = hosts_of(url, 26379 if "sentinel" in parts.scheme else 6379)
        database = dict(parse_qsl(parts.query)).get("db", "0")
        return f"{','.join(f'{host}:{port}' for host, port in sorted(hosts))}{parts.path.rstrip('/')}/{database}"
    host = "localhost" if parts.hostname in ("127.0.0.1", "::1", None) else str(parts.hostname)
    return f"{host}:{parts.port or 6379}/{parts.path.strip('/') or 0}"


def _distinct(ends: Iterable[End]) -> list[End]:
    return list({end.place: end for end in ends}.values())
