"""Keys as a test names them: alone, or with their server, ``KEY @ HOST:PORT``."""

from collections.abc import Iterable
from typing import Final

from penstock.base.shape import Place
from penstock.base.urls import split_server
from penstock.composition.model import Part
from penstock.composition.service import DEFAULT_URL
from penstock.testing.sandbox import host_of
from penstock.testing.spec.schema import did_you_mean

AT: Final = " @ "
ONLY_SERVER: Final = "server"
"""The name of the server in a composition with only one."""


class Places:
    """The places of the keys of a composition; only servers of processes that are ``started`` exist."""

    def __init__(self, parts: Iterable[Part], started: Iterable[Part]) -> None:
        self._known: dict[str, set[Place]] = {}
        for end in (end for part in parts for end in part.ends if end.kind == "list"):
            self._known.setdefault(end.key, set()).add(end.place)
        ends = (end for part in started for end in part.ends)
        self.hosts = sorted({host_of(DEFAULT_URL), *(host_of(end.url) for end in ends)})

    def find(self, text: str) -> Place:
        """Return the place of a key. Raise ``ValueError`` if it is unknown or on several servers."""
        key, at, server = text.rpartition(AT)
        if at:
            host, database = split_server(server)
            return Place(key, f"{self.host(host)}/{database}")
        found = [place for place in self._known.get(text, ()) if split_server(place.server)[0] in self.hosts]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f"{text} is on {' and '.join(place.server for place in sorted(found))}: add {AT}SERVER")
        if text in self._known:
            where = ", ".join(place.server for place in self._known[text])
            raise ValueError(f"{text} is on {where}, which no process of this test uses")
        hint = did_you_mean(text, sorted(self._known))
        raise ValueError(f"no process is known to use {text}: {hint}; any other key with its server: {text}{AT}SERVER")

    def host(self, name: str) -> str:
        """Return host and port of a server, as in the settings. Raise ``ValueError`` if no process uses it."""
        if name == ONLY_SERVER and len(self.hosts) == 1:
            return self.hosts[0]
        if name not in self.hosts:
            raise ValueError(f"no process of this test uses the server {name}: expected {' or '.join(self.hosts)}")
        return name
