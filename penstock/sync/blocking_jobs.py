"""Blocking jobs: processors are functions, each job in a thread. The types for editors and checkers are in jobs.pyi."""

import asyncio
import inspect
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from penstock.base.errors import WrongCall
from penstock.jobs import attempt as _attempt
from penstock.jobs import consumer as _consumer
from penstock.jobs import server as _server
from penstock.jobs.completion import Completion
from penstock.jobs.threads import Threads
from penstock.sync.calls import entered
from penstock.sync.entered import Entered
from penstock.sync.portal import Portal
from penstock.sync.twin import Host, Twin

__all__ = ["Attempt", "Completions", "Consumer", "Job", "Jobs", "Producer", "Repeats", "Sent"]


class Jobs(
    Entered,
    of="penstock.jobs.server:Jobs",
    names="__init__ job producer keeping repeats pause play cancel dead retry stop",
):
    """As ``penstock.jobs.Jobs``: ``with Jobs("redis://localhost") as jobs:``."""

    def __init__(self, *urls: str, stop_signals: Iterable[signal.Signals], **options: Any) -> None:
        make = partial(_server.Jobs, *urls, **options)
        super().__init__(make(), stop_signals, again=make)

    def run(self, consumer: "Consumer") -> None:  # type: ignore[override]  # what is there called so
        """Do the jobs of ``consumer`` until it is stopped; then wait for those in hand."""
        portal = self._host.run
        portal(consumer._run_in(portal, self._inner))

    stop = Entered._stop


class Job(Twin, of="penstock.jobs.job:Job", names="set get delete push pull"):
    """As ``penstock.jobs.Job``: ``job.set("in", 1).push()``, and elsewhere ``[page] = job.get("in").pull()``."""

    id: str


class Attempt(Job, of="penstock.jobs.attempt:Attempt", names="is_given_up progress fail release"):
    """As ``penstock.jobs.Attempt``: a job that a consumer has."""

    stream: str
    group: str
    entry: bytes
    number: int
    producer: str
    key: str | None
    values: dict[str, bytes | None]

    def release(self) -> None:
        self._host.run.loop.call_soon_threadsafe(self._inner.release)


class Sent(Twin, of="penstock.jobs.producer:Sent", names="finished result progress"):
    """As ``penstock.jobs.Sent``: a job that was sent."""

    job: Job
    stream: str
    entry: str | None
    due: float | None


class Producer(Twin, of="penstock.jobs.producer:Producer", names="job send finished"):
    """As ``penstock.jobs.Producer``: ``jobs.producer().send("resize", {"page": 7})``."""

    id: str

    @contextmanager
    def completions(self, stream: str) -> Iterator["Completions"]:
        """Hear the completions of all producers' jobs: ``with producer.completions("resize") as heard: heard.get()``.

        As ``penstock.jobs.Producer.completions``: the oldest of 10,000 go if nobody gets them.
        """
        run = self._host.run
        with entered(self._inner.completions(stream), run) as queue:
            yield Completions(queue, run)


class Completions:
    """Completions that were heard, in order."""

    def __init__(self, queue: "asyncio.Queue[Completion]", run: Portal) -> None:
        self._queue, self._run = queue, run

    def get(self, timeout: float | None = None) -> Completion:
        """Return the next one. Raise ``TimeoutError`` after ``timeout`` seconds."""

        async def get() -> Completion:
            async with asyncio.timeout(timeout):
                return await self._queue.get()

        return self._run(get())


class Repeats(Twin, of="penstock.jobs.repeating:Repeats", names="set remove all"):
    """As ``penstock.jobs.Jobs.repeats``."""


class Consumer(Twin, of="penstock.jobs.consumer:Consumer", names="__init__ job batch running pause play stop"):
    """As ``penstock.jobs.Consumer``: a group of consumers, whose processors are functions.

        consumer = Consumer("thumbnails", concurrency=10)

        @consumer.job("resize", deadline=60)
        def resize(job: Attempt) -> None: ...

        jobs.run(consumer)

    Each job has a thread; ``concurrency`` is how many run at a time.
    """

    group: str
    id: str
    is_paused: bool

    def __init__(self, group: str, **options: Any) -> None:
        super().__init__(_consumer.Consumer(group, **options), Host("Jobs"))
        self._threads = Threads()
        self._task: asyncio.Task[None] | None = None

    def job(self, stream: str, in_process: bool, **options: Any) -> Any:
        async def call(processor: Callable[..., Any], attempt: _attempt.Attempt) -> Any:
            return await self._threads(processor, Attempt(attempt, self._host), [attempt])

        add = self._inner.job(stream, in_process=in_process, **options)
        return _adding(add, None if in_process else call)  # a process gets a ProcessJob

    def batch(self, stream: str, size: int, **options: Any) -> Any:
        async def call(processor: Callable[..., Any], attempts: list[_attempt.Attempt]) -> Any:
            return await self._threads(processor, [Attempt(each, self._host) for each in attempts], attempts)

        return _adding(self._inner.batch(stream, size, **options), call)

    def pause(self, timeout: float | None) -> None:
        portal, pausing = self._host.portal, self._inner.pause(timeout)
        if portal is None:
            asyncio.run(pausing)
        else:
            portal(pausing)

    def play(self) -> None:
        self._soon(self._inner.play)

    def stop(self) -> None:
        self._soon(self._inner.stop)

    def _soon(self, call: Callable[[], None]) -> None:
        portal = self._host.portal
        if portal is None:
            call()
        else:
            portal.loop.call_soon_threadsafe(call)

    async def _run_in(self, portal: Portal, jobs: _server.Jobs) -> None:
        """Run in the loop of ``portal``. Raise ``WrongCall`` if it runs already."""
        if self._task is not None:
            raise WrongCall(f"the consumer of {self.group} runs already: make another one")
        self._task = asyncio.create_task(jobs.run(self._inner))
        try:
            await asyncio.sleep(0)  # from now on it can be stopped
            self._host.portal = portal
            await self._task
        finally:
            self._task.cancel()
            self._task = self._host.portal = None


def _adding(add: Callable[..., Any], call: Callable[..., Any] | None) -> Any:
    """Return a decorator that has ``call`` called with the function; without one, ``add`` the function itself."""

    def decorate(processor: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(processor):
            raise WrongCall("a processor of a blocking consumer is a function: penstock.jobs has one for coroutines")
        add(partial(call, processor) if call else processor)
        return processor

    return decorate
