"""The servers of jobs, and what is on which."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.base.encoding import encoded
from penstock.base.errors import WrongCall
from penstock.base.stop_signals import StopSignals
from penstock.core.instance import Instance, check_url
from penstock.core.patience import Patience
from penstock.core.script import Script
from penstock.jobs.cancelling import cancel, cancel_job
from penstock.jobs.consumer import Consumer
from penstock.jobs.dead import DeadJob, Retried, dead_jobs, retry
from penstock.jobs.job import WEEK, Job
from penstock.jobs.keeper import Keeper
from penstock.jobs.keys import PREFIX, JobKeys, checked_name, new_id
from penstock.jobs.ledger import Ledger
from penstock.jobs.outgoing import Outgoing
from penstock.jobs.producer import DISTRIBUTED, Producer, Route
from penstock.jobs.repeating import Repeats
from penstock.jobs.routing import Routes
from penstock.jobs.worker import Worker

_pause: Final = Script.read(Path(__file__).parent / "lua" / "pause.lua")
BUFFER: Final = 10_000
"""Calls that wait for one server."""
NAME: Final = "penstock-jobs"
"""Name of the connections in CLIENT LIST."""
DRAWS: Final = 1_000


class Jobs:
    """Jobs on one or several servers, shared with hfxbus 2.2.0: ``async with Jobs("redis://localhost") as jobs:``.

    Several URLs are in the order of hfxbus's nodes (``sequence``); ``routes`` are its ``staticRoutes``, places by name.
    ``patience`` is how long (s) a call waits while a server is away, full or read-only; None without end.
    ``stop_signals``, e.g. ``[signal.SIGTERM]``, call ``stop``.
    """

    def __init__(
        self,
        *urls: str,
        prefix: str = PREFIX,
        routes: Mapping[str | int, int] | None = None,
        patience: float | None = 60.0,
        stop_signals: Iterable[signal.Signals] = (),
    ) -> None:
        if not urls:
            raise WrongCall("expected the URL of a server")
        for url in urls:
            check_url(url)
        self.urls, self.keys = urls, JobKeys(prefix)
        self.routes = Routes(len(urls), routes)
        self._patience = Patience(patience)
        self.nodes = [Instance(url, self._patience, BUFFER, self._changed, name=NAME) for url in urls]
        self._is_entered = self._is_stopping = False
        self._workers = set[Worker]()
        self._outgoing = dict[tuple[Instance, str], Outgoing]()
        self._keepers = dict[Instance, Keeper]()
        self._signals = StopSignals(stop_signals, self.stop)

    async def __aenter__(self) -> Self:
        self._signals.enter(asyncio.get_running_loop())
        self._patience.hurries = self._is_stopping = False
        for node in self.nodes:
            node.start()
        self._is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        await asyncio.gather(*(worker.ended() for worker in self._workers))
        self._is_entered = False
        self._signals.leave()
        await asyncio.gather(*(keeper.close() for keeper in self._keepers.values()))
        self._keepers.clear()
        await asyncio.gather(*(node.close() for node in self.nodes))

    def node(self, name: str) -> Instance:
        """Return the server of ``name``: of a job its id, of a stream its route."""
        return self.nodes[self.routes.place(name) if len(self.nodes) > 1 else 0]

    def job(self, id: str | None = None) -> Job:
        """Return a job, with a random id by default."""
        return Job(self, id)

    def producer(self, id: str | None = None) -> Producer:
        """Return what sends jobs, under a random id by default."""
        self.check_entered()
        return Producer(self, id)

    async def run(self, consumer: Consumer, ledger: Ledger | None = None) -> None:
        """Do the jobs of ``consumer`` until it is stopped; then wait for those in hand. ``ledger`` is a service's."""
        self.check_entered()
        worker = Worker(self, consumer, ledger)
        if self._is_stopping:
            return
        self._workers.add(worker)
        try:
            await worker.run()
        finally:
            self._workers.discard(worker)

    @asynccontextmanager
    async def keeping(self, *streams: str) -> AsyncIterator[None]:
        """Keep in the block what Node's consumers publish of ``streams``, for producers that are away.

        Consumers of ours do so for their own streams, so this is for streams that only Node's consume. Several programs
        may do it: each completion is kept once. Raise ``Unavailable`` if the server stays away.
        """
        self.check_entered()
        added = list[str]()
        try:
            for stream in streams:
                node = self.node(checked_name("stream", stream, pattern=True))
                added.append(stream)
                listens = self.keeper(stream).add(stream)
                async with self._patience.bounded(lambda node=node: f"{node.address}: {node.reason}"):  # type: ignore[misc]
                    await listens.wait()
            yield
        finally:
            for stream in added:
                await self.keeper(stream).discard(stream)

    def keeper(self, stream: str) -> Keeper:
        """Return what keeps completions of Node's consumers on the server of ``stream``."""
        node = self.node(stream)
        if node not in self._keepers:
            self._keepers[node] = Keeper(node, self.keys)
        return self._keepers[node]

    def stop(self) -> None:
        """End all consumers that run, or are run from now on: what they have in hand is done, or goes to others."""
        self._is_stopping = True
        for worker in self._workers:
            worker.stop()

    @property
    def repeats(self) -> Repeats:
        """Return the jobs that are repeated."""
        self.check_entered()
        return Repeats(self)

    async def pause(self, stream: str, *, route: str | Route | None = None) -> None:
        """Let no consumer of ours, in no process, begin a job of ``stream``, until ``play``. Those that run go on."""
        for node in self._nodes_of(stream, route):
            await self.pause_at(node, stream)

    async def pause_at(self, node: Instance, stream: str) -> None:
        """Pause what one server has of ``stream``."""
        await node.run(_pause, paused=self.keys.paused(stream), control=self.keys.control(stream))

    async def play(self, stream: str, *, route: str | Route | None = None) -> None:
        """Let jobs of ``stream`` begin again."""
        for node in self._nodes_of(stream, route):
            await self.play_at(node, stream)

    async def play_at(self, node: Instance, stream: str) -> bool:
        """Resume what one server has of ``stream``; return whether it was paused."""
        found = await node.command("DEL", encoded(self.keys.paused(stream)))
        await node.command("PUBLISH", encoded(self.keys.control(stream)), "play")
        return bool(found)

    async def cancel(
        self, stream: str, entry: str | None = None, *, job: str | None = None, route: str | Route | None = None
    ) -> list[str]:
        """Cancel a job, by its entry or by its own ``id``, for all groups that have not done it; return these groups.

        By its id it is found among those that wait for their time, too; the whole stream is read. Their completions
        have the error ``CANCELLED``. Who runs it is told, and what it returns does not count.
        """
        if (entry is None) == (job is None):
            raise WrongCall("expected the entry of a job, or job=, its id")
        if entry is not None and route is DISTRIBUTED:
            raise WrongCall("several servers may have this entry: cancel the job by its id, with job=")
        found = list[str]()
        for node in self._nodes_of(stream, route):
            call = cancel(self, node, stream, entry) if entry else cancel_job(self, node, stream, job or "")
            found += await call or ()
        return found

    async def dead(
        self, stream: str, *, group: str | None = None, job: str | None = None, route: str | Route | None = None
    ) -> AsyncIterator[DeadJob]:
        """Yield dead jobs of ``stream``, the oldest first: of all groups and jobs, or of one."""
        for node in self._nodes_of(stream, route):
            async for each in dead_jobs(self, self.nodes.index(node), stream, group=group, job=job):
                yield each

    async def retry(self, dead: DeadJob, *, ttl: float = WEEK) -> Retried | None:
        """Send a dead job again, for its group; None if it is not dead any more.

        Values that are gone are set again; all live for ``ttl`` seconds at least. Other groups pass over it, but
        consumers of Node that have not read all that was sent before. Raise ``Unconfirmed`` as ``Producer.send``.
        """
        return await retry(self, dead, ttl)

    def _nodes_of(self, stream: str, route: str | Route | None) -> list[Instance]:
        return self.nodes if route is DISTRIBUTED else [self.node(stream if route is None else str(route))]

    def new_id(self) -> str:
        """Return an id for a job."""
        return new_id()

    async def listening(self, node: Instance, confirmed: "asyncio.Future[None]") -> None:
        """Return once a subscription is ``confirmed``. Raise ``Unavailable`` if that takes longer than patience."""
        async with self._patience.bounded(lambda: f"{node.address}: {node.reason}"):
            await asyncio.shield(confirmed)

    def avoid_away(self, job: Job) -> None:
        """Give a job whose id nobody knows one whose server answers, if one does."""
        if any(not node.is_away for node in self.nodes):
            for _ in range(DRAWS):
                if not job._node.is_away:
                    return
                job._renew_id()

    def outgoing(self, node: Instance, stream: str) -> Outgoing:
        """Return what sends jobs of ``stream`` to ``node``."""
        found = self._outgoing.get((node, stream))
        if found is None:
            if len(self._outgoing) >= BUFFER:
                self._outgoing.clear()
            found = self._outgoing[node, stream] = Outgoing(node, self.keys, stream)
        return found

    def check_entered(self) -> None:
        """Raise ``WrongCall`` outside ``async with``."""
        if not self._is_entered:
            raise WrongCall("expected `async with Jobs(...) as jobs:` around this call")

    def _changed(self, node: Instance, error: Exception | None) -> None:
        for worker in self._workers:
            worker.note_node(node)
