"""Jobs on one or several servers: send, do, pause, cancel, and what is dead."""

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
from penstock.core.instance import Instance
from penstock.core.script import Script
from penstock.jobs.cancelling import cancel, cancel_job
from penstock.jobs.consumer import Consumer
from penstock.jobs.dead import DeadJob, Retried, dead_jobs, retry
from penstock.jobs.job import WEEK, Job
from penstock.jobs.keys import PREFIX, checked_name
from penstock.jobs.ledger import Ledger
from penstock.jobs.producer import DISTRIBUTED, Producer, Route
from penstock.jobs.repeating import Repeats
from penstock.jobs.run import Run
from penstock.jobs.servers import Servers

_pause: Final = Script.read(Path(__file__).parent / "lua" / "pause.lua")


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
        self.servers = Servers(urls, prefix, routes, patience, self._changed)
        self.keys, self.routes, self.nodes = self.servers.keys, self.servers.routes, self.servers.nodes
        self._is_entered = self._is_stopping = False
        self._runs = set[Run]()
        self._signals = StopSignals(stop_signals, self.stop)

    async def __aenter__(self) -> Self:
        self._signals.enter(asyncio.get_running_loop())
        self._is_stopping = False
        self.servers.start()
        self._is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        await asyncio.gather(*(run.ended() for run in self._runs))
        self._is_entered = False
        self._signals.leave()
        await self.servers.close()

    def node(self, name: str) -> Instance:
        """Return the server of ``name``: of a job its id, of a stream its route."""
        return self.servers.node(name)

    def job(self, id: str | None = None) -> Job:
        """Return a job, with a random id by default."""
        return Job(self.servers, id)

    def producer(self, id: str | None = None) -> Producer:
        """Return what sends jobs, under a random id by default."""
        self.check_entered()
        return Producer(self.servers, id)

    async def run(self, consumer: Consumer, ledger: Ledger | None = None) -> None:
        """Do the jobs of ``consumer`` until it is stopped; then wait for those in hand. ``ledger`` is a service's."""
        self.check_entered()
        run = Run(self.servers, consumer, ledger)
        if self._is_stopping:
            return
        self._runs.add(run)
        try:
            await run.run()
        finally:
            self._runs.discard(run)

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
                listens = self.servers.recorder(stream).add(stream)
                async with self.servers.patience.bounded(lambda node=node: f"{node.address}: {node.reason}"):  # type: ignore[misc]
                    await listens.wait()
            yield
        finally:
            for stream in added:
                await self.servers.recorder(stream).discard(stream)

    def stop(self) -> None:
        """End all consumers that run, or are run from now on: what they have in hand is done, or goes to others."""
        self._is_stopping = True
        for run in self._runs:
            run.stop()

    @property
    def repeats(self) -> Repeats:
        """Return the jobs that are repeated."""
        self.check_entered()
        return Repeats(self.servers)

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
            call = (
                cancel(self.servers, node, stream, entry)
                if entry
                else cancel_job(self.servers, node, stream, job or "")
            )
            found += await call or ()
        return found

    async def dead(
        self, stream: str, *, group: str | None = None, job: str | None = None, route: str | Route | None = None
    ) -> AsyncIterator[DeadJob]:
        """Yield dead jobs of ``stream``, the oldest first: of all groups and jobs, or of one."""
        for node in self._nodes_of(stream, route):
            async for each in dead_jobs(self.servers, self.nodes.index(node), stream, group=group, job=job):
                yield each

    async def retry(self, dead: DeadJob, *, ttl: float = WEEK) -> Retried | None:
        """Send a dead job again, for its group; None if it is not dead any more.

        Values that are gone are set again; all live for ``ttl`` seconds at least. Other groups pass over it, but
        consumers of Node that have not read all that was sent before. Raise ``Unconfirmed`` as ``Producer.send``.
        """
        return await retry(self.servers, dead, ttl)

    def _nodes_of(self, stream: str, route: str | Route | None) -> list[Instance]:
        return self.nodes if route is DISTRIBUTED else [self.node(stream if route is None else str(route))]

    def check_entered(self) -> None:
        """Raise ``WrongCall`` outside ``async with``."""
        if not self._is_entered:
            raise WrongCall("expected `async with Jobs(...) as jobs:` around this call")

    def _changed(self, node: Instance, error: Exception | None) -> None:
        for run in self._runs:
            run.note_node(node)
