"""The model of a composition: its parts, the keys that each reads and writes, and their servers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import Problem
from penstock.base.shape import End, Place, Promise, Shape, Use
from penstock.base.urls import server_of

if TYPE_CHECKING:
    from penstock.composition.service import PartSettings
    from penstock.core.acl import Rights

ID_HERE: Final = "{id}"
"""The placeholder of the id in a message of ``Chaos``."""


@dataclass(frozen=True)
class Part:
    """One process: a ``service`` of Penstock, or a program of the user, for which ``service`` is None."""

    name: str
    service: str | None = None
    namespace: str | None = None
    file: str | None = None
    ends: tuple[End, ...] = ()
    settings: "PartSettings | None" = None
    """None for a program."""
    promise: Promise = "once"
    """How often a message is delivered, even after failures."""
    ordered: bool = False
    """True if messages keep their order, even after failures."""
    again: float = 0
    """Seconds after which an unfinished message is redelivered; 0 for never."""
    command: str | None = None
    """The command in the Procfile or compose.yaml; None if no process is started."""
    module: tuple[str, ...] = ()
    """The module and its arguments, if the command is only ``python -m``."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that the command sets."""
    url: str = ""
    """The server of a service that is known by its registration alone."""

    @property
    def server(self) -> str:
        """Return the server of the service's own lists, or of a program's first list; empty if there is none."""
        if self.settings is not None and self.settings.redis:
            return server_of(self.settings.redis)
        own = server_of(self.url) if self.url else ""
        return next((end.place.server for end in (*self.using("reads", "keeps"), *self.ends)), own)

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
class External:
    """The lists that clients outside of the composition read and write: names or patterns such as ``shop:*``."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    def does(self, use: Use, key: str) -> bool:
        return any(fnmatchcase(key, name) for name in (self.reads if use == "reads" else self.writes))


@dataclass(frozen=True)
class Chaos:
    """Options of ``penstock chaos`` in composition.yaml."""

    message: str = f'{{"id": "{ID_HERE}"}}'
    """The message to push; ``ID_HERE`` in it is replaced by the id of each message."""
    into: tuple[str, ...] = ()
    """Lists to push to; by default those that are read and never written."""
    out: tuple[str, ...] = ()
    """Lists that every message must reach; by default those that are written and never read."""
    promise: Promise = "once"
    """The delivery guarantee of the programs."""
    without: tuple[str, ...] = ()
    """Processes that are not started."""


@dataclass(frozen=True)
class Composition:
    """A composition; ``problems`` are those found in one file at a time, not between files."""

    parts: tuple[Part, ...]
    external: External = External()
    problems: tuple[Problem, ...] = ()
    directory: str | None = None
    chaos: Chaos = field(default_factory=Chaos)
    declared: str | None = None
    """The path of composition.yaml; None if there is none."""

    def ends(self, *uses: Use) -> Iterator[tuple[Part, End]]:
        return ((part, end) for part in self.parts for end in part.using(*uses))

    def at(self, place: Place, *uses: Use) -> list[tuple[Part, End]]:
        """Return the parts that use ``place`` in one of these ways."""
        return [(part, end) for part, end in self.ends(*uses) if end.place == place]

    def sources(self) -> list[End]:
        """Return the lists through which messages enter: they are read, and no part writes them."""
        written = {end.place for _, end in self.ends("writes")}
        return _distinct(end for part, end in self.ends("reads") if end.role == "in" and end.place not in written)

    def sinks(self) -> list[End]:
        """Return the lists through which messages leave: no part reads them; dead letters and replies excluded."""
        read = {end.place for _, end in self.ends("reads")}
        ends = (end for _, end in self.ends("writes") if end.kind == "list" and end.role not in ("dead", "replies"))
        return _distinct(end for end in ends if end.place not in read)


def connected(parts: Iterable[tuple[Part, Shape]]) -> tuple[Part, ...]:
    """Return the parts with the ends of their shapes, and those of the namespaces that they watch."""
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
    """Replace patterns of streams that the part reads by the streams that other parts write."""
    written = [end.key for other in all for end in other.using("writes") if end.kind == "stream"]
    ends = list[End]()
    for end in part.ends:
        by_pattern = end.kind == "stream" and end.use == "reads"
        found = dict.fromkeys(key for key in written if by_pattern and fnmatchcase(key, end.key))
        ends += [replace(end, key=key) for key in found] or [end]
    return replace(part, ends=tuple(ends))


def _distinct(ends: Iterable[End]) -> list[End]:
    return list({end.place: end for end in ends}.values())
