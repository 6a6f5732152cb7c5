"""One run of a consumer: takes jobs of its servers, has them done, and ends when it shall."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from penstock.base.errors import PenstockError, WrongCall
from penstock.base.log import Log
from penstock.core import consumer as core
from penstock.core.connection import MAX_SILENCE
from penstock.core.link import again
from penstock.core.runner import Runner
from penstock.core.tasks import Tasks
from penstock.jobs.attempt import Batch, Unit, attempts_of
from penstock.jobs.consumer import Consumer
from penstock.jobs.handling import Durations, Handling
from penstock.jobs.producer import DISTRIBUTED
from penstock.jobs.servers import Servers
from penstock.jobs.source import LOOK_SECONDS, StreamSource

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.jobs.ledger import Ledger

WAIT_SECONDS: Final = 0.2
"""How long a job that was read ahead waits before it goes to others."""
_log: Final = Log("penstock.jobs")


class Run:
    """From the first job that is taken to the last one that is settled."""

    def __init__(self, servers: Servers, consumer: Consumer, ledger: "Ledger | None" = None) -> None:
        if not consumer.options.handlers:
            raise WrongCall(f"group {consumer.group}: no stream has a processor: expected @consumer.job(stream)")
        self._consumer, options = consumer, consumer.options
        self._stop_timeout = options.stop_timeout
        self._durations = Durations()
        self.runner = Runner[Unit](
            self._handle, options.concurrency, _log, counts=_counts, settled=self._settled, changed=self._changed,
        )  # fmt: skip
        nodes = servers.nodes if options.route is DISTRIBUTED else [servers.node(str(options.route))]
        alone = [[name] for name, handler in options.handlers.items() if handler.limit or handler.size]
        others = [name for name, handler in options.handlers.items() if not handler.limit and not handler.size]
        together = [*alone, others] if others else alone
        self._sources = [
            StreamSource(servers, node, streams, consumer, self.runner, self._durations, ledger, self.resume)
            for node in nodes
            for streams in together
        ]
        self._handlings: dict[object, Handling] = {
            source.held: Handling(options, source.held, self._durations) for source in self._sources
        }
        self._consumers = core.Consumers(_log, blames=self._blames)
        self._tasks = Tasks(_log)
        self._takers = dict[asyncio.Task[None], StreamSource]()
        self._loop = asyncio.get_running_loop()
        self._looks = False
        self._ended = asyncio.Event()

    @property
    def running(self) -> int:
        """Return how many jobs run."""
        return len(attempts_of(self.runner.running))

    def _handle(self, unit: Unit) -> Awaitable[None]:
        return self._handlings[unit._origin].handle(unit)

    async def run(self) -> None:
        """Take and work until ``stop``; then wait for what is in hand, and hand back the rest."""
        self._consumer.joined(self)
        self.runner.is_paused = self._consumer.is_paused
        try:
            async with self._consumers:
                try:
                    await self._take_all()
                    await self._finish()
                finally:
                    await self._end()
        finally:
            await asyncio.gather(*(processes.close() for processes in self._consumer.processes))
            await self.runner.close()
            self._consumer.left(self)
            self._ended.set()

    async def _take_all(self) -> None:
        for source in self._sources:
            taker = core.Consumer(self._consumers, source, source)
            self._takers[self._tasks.begin(self._take_on(taker, source))] = source
        try:
            await asyncio.wait(self._takers, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in self._takers:
                task.cancel()
            ends = await asyncio.gather(*self._takers, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _take_on(self, taker: core.Consumer[Unit], source: StreamSource) -> None:
        """Take until all shall stop, whatever becomes of the server."""
        take = partial(self._take, taker)
        await again(take, source.outage, lasts=_is_bug, mend=source.mend, until=source.news, ends_outage=False)
        self._begin(await source.drain())

    async def _take(self, taker: core.Consumer[Unit]) -> None:
        while units := await taker.batch():
            self._begin(units)
            await asyncio.sleep(0)  # jobs that end at once are settled before more are read

    def _begin(self, units: Sequence[Unit]) -> None:
        """Begin what was taken, now or as soon as there is room."""
        self.runner.add(each for each in units if not each._is_suspect)
        if suspects := [each for each in units if each._is_suspect]:
            self.runner.add(suspects, suspects=True)
        if self._consumer.is_paused:
            self.hand_back()
        elif self.runner.waiting and not self._looks:
            self._looks = True
            self._loop.call_later(WAIT_SECONDS, self._look)

    def _look(self) -> None:
        """Hand back what waits for longer than it should: another consumer may have room."""
        self._looks = False
        if waiting := attempts_of(self.runner.waiting):
            if monotonic() - waiting[0]._begun > WAIT_SECONDS / 2:
                self._durations.forget()
                self.hand_back(suspects=False)
            else:
                self._looks = True
                self._loop.call_later(WAIT_SECONDS, self._look)

    def hand_back(self, *, suspects: bool = True) -> None:
        """Hand back what has not begun."""
        for attempt in attempts_of(self.runner.take_back(suspects=suspects)):
            in_hand = self._handlings[attempt._origin].in_hand
            in_hand.ended(attempt)
            in_hand.hand_back(attempt)

    def _changed(self) -> None:
        """Take note that there may be room."""
        for source in self._sources:
            if source.needs_room:
                source.note()

    async def _settled(self) -> None:
        """Return once what has ended is settled."""
        for source in self._sources:
            while not source.node.is_away and not source.settlement.is_idle:  # one that is away stops no other
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await source.settlement.idle()
        self.look()

    def resume(self) -> None:
        """Begin and claim what there is room for."""
        self.runner.is_paused = self._consumer.is_paused
        self.runner.resume()
        self._changed()

    def look(self) -> None:
        """Look at once for what is due."""
        for source in self._sources:
            source.scheduler.within(0)

    def note_node(self, node: "Instance") -> None:
        """Note that ``node`` has come or gone."""
        for source in self._sources:
            if source.node is node:
                source.note()

    def _blames(self) -> Mapping[str, object]:
        """Return stream and job of the processor that runs."""
        task = asyncio.current_task(self._loop)
        for attempt in attempts_of([*self.runner.running]):
            if attempt._task is not None and attempt._task is task:
                return {"stream": attempt.stream, "group": attempt.group, "job": attempt.id}
        return {"group": self._consumer.group, "jobs": len(self.runner.running)}

    # The end

    def stop(self) -> None:
        """End ``run``."""
        if not self._consumers.stopping:
            self._consumers.stop()
            self._consumer.play()
            self.runner.is_paused = True  # what has not begun goes back
            self.hand_back()
            for task, source in self._takers.items():  # a reply may have jobs
                self._loop.call_later(0 if source.node.is_away else MAX_SILENCE, task.cancel)

    async def ended(self) -> None:
        """Return once ``run`` has ended."""
        await self._ended.wait()

    async def pause(self) -> None:
        """Begin and read nothing more, hand back what has not begun, and return once nothing runs."""
        self.resume()
        self.hand_back()
        await asyncio.gather(*(source.end_read() for source in self._sources))
        await self.runner.idle.wait()

    async def _finish(self) -> None:
        self.hand_back()
        try:
            async with asyncio.timeout(self._stop_timeout):
                await self.runner.idle.wait()
        except TimeoutError:
            what = {"group": self._consumer.group, "many": self.running, "seconds": self._stop_timeout}
            _log.warning("jobs have not ended in time: coroutines are cancelled, threads are waited for", **what)

    async def _end(self) -> None:
        """Give up what runs, and settle what has ended."""
        self._consumers.stop()
        self.hand_back()
        for unit, task in tuple(self.runner.running.items()):
            for attempt in attempts_of([unit]):
                attempt._give_up("stop")
            if isinstance(unit, Batch):
                task.cancel()
        await self.runner.idle.wait()
        self.hand_back()
        await asyncio.gather(*(source.settlement.finish() for source in self._sources))


def _counts(unit: Unit) -> bool:
    """Return whether a job of ``unit`` was not given up."""
    return any(attempt.why is None for attempt in attempts_of([unit]))


def _is_bug(error: Exception) -> bool:
    return not isinstance(error, RedisError | OSError | PenstockError)
