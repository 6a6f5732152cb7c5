"""The servers of jobs, and what is on which."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from penstock.base.errors import WrongCall
from penstock.core.instance import Instance, check_url
from penstock.core.patience import Patience
from penstock.jobs.keys import JobKeys, new_id
from penstock.jobs.outgoing import Outgoing
from penstock.jobs.recorder import Recorder
from penstock.jobs.routing import Routes

BUFFER: Final = 10_000
"""Calls that wait for one server."""
NAME: Final = "penstock-jobs"
"""Name of the connections in CLIENT LIST."""


class Servers:
    """Those at ``urls``, in the order of hfxbus's nodes; ``changed`` hears which one has come or gone."""

    def __init__(
        self,
        urls: tuple[str, ...],
        prefix: str,
        routes: Mapping[str | int, int] | None,
        patience: float | None,
        changed: Callable[[Instance, Exception | None], None],
    ) -> None:
        if not urls:
            raise WrongCall("expected the URL of a server")
        for url in urls:
            check_url(url)
        self.keys, self.routes, self.patience = JobKeys(prefix), Routes(len(urls), routes), Patience(patience)
        self.nodes = [Instance(url, self.patience, BUFFER, changed, name=NAME) for url in urls]
        self._outgoing = dict[tuple[Instance, str], Outgoing]()
        self._recorders = dict[Instance, Recorder]()

    def start(self) -> None:
        """Connect to all."""
        self.patience.hurries = False
        for node in self.nodes:
            node.start()

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.gather(*(each.close() for each in self._recorders.values()))
        self._recorders.clear()
        await asyncio.gather(*(node.close() for node in self.nodes))

    def node(self, name: str) -> Instance:
        """Return the server of ``name``: of a job its id, of a stream its route."""
        return self.nodes[self.routes.place(name) if len(self.nodes) > 1 else 0]

    def new_id(self) -> str:
        """Return an id for a job."""
        return new_id()

    def recorder(self, stream: str) -> Recorder:
        """Return what records completions of Node's consumers on the server of ``stream``."""
        node = self.node(stream)
        if node not in self._recorders:
            self._recorders[node] = Recorder(node, self.keys)
        return self._recorders[node]

    async def listening(self, node: Instance, confirmed: "asyncio.Future[None]") -> None:
        """Return once a subscription is ``confirmed``. Raise ``Unavailable`` if that takes longer than patience."""
        async with self.patience.bounded(lambda: f"{node.address}: {node.reason}"):
            await asyncio.shield(confirmed)

    def outgoing(self, node: Instance, stream: str) -> Outgoing:
        """Return what sends jobs of ``stream`` to ``node``."""
        found = self._outgoing.get((node, stream))
        if found is None:
            if len(self._outgoing) >= BUFFER:
                self._outgoing.clear()
            found = self._outgoing[node, stream] = Outgoing(node, self.keys, stream)
        return found
