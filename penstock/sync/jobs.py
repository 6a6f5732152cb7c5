"""``penstock.jobs``, blocking: processors are functions, each job in a thread."""

import asyncio
import inspect
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

from penstock.base.errors import WrongCall
from penstock.core.backoff import Backoff
from penstock.jobs import attempt as _attempt
from penstock.jobs import consumer as _consumer
from penstock.jobs import job as _job
from penstock.jobs import producer as _producer
from penstock.jobs import repeating as _repeating
from penstock.jobs import server as _server
from penstock.jobs.completion import Completion
from penstock.jobs.consumer import DEADLINE
from penstock.jobs.dead import DeadJob, Retried
from penstock.jobs.job import WEEK
from penstock.jobs.keys import PREFIX
from penstock.jobs.limit import Limit
from penstock.jobs.producer import Route
from penstock.jobs.threads import Threads
from penstock.sync.calls import blocking, iterate
from penstock.sync.entered import Entered
from penstock.sync.portal import Portal

F = TypeVar("F", bound=Callable[["Attempt"], Any])
B = TypeVar("B", bound=Callable[[list["Attempt"]], Any])


class Jobs(Entered[_server.Jobs]):
    """As ``penstock.jobs.Jobs``: ``with Jobs("redis://localhost") as jobs:``."""

    def __init__(
        self,
        *urls: str,
        prefix: str = PREFIX,
        routes: Mapping[str | int, int] | None = None,
        patience: float | None = 60.0,
        stop_signals: Iterable[signal.Signals] = (),
    ) -> None:
        self._urls = urls
        self._options: dict[str, Any] = {"prefix": prefix, "routes": routes, "patience": patience}
        super().__init__(stop_signals)

    async def _open(self) -> _server.Jobs:
        return await _server.Jobs(*self._urls, **self._options).__aenter__()

    def job(self, id: str | None = None) -> "Job":
        """Return a job, with a random id by default."""
        portal = self.portal
        return Job(self._inner.job(id), portal)

    def producer(self, id: str | None = None) -> "Producer":
        """Return what sends jobs, under a random id by default."""
        portal = self.portal
        return Producer(self._inner.producer(id), portal)

    def run(self, consumer: "Consumer") -> None:
        """Do the jobs of ``consumer`` until it is stopped; then wait for those in hand."""
        portal = self.portal
        portal(consumer.run_in(portal, self._inner))

    @property
    def repeats(self) -> "Repeats":
        """Return the jobs that are repeated."""
        portal = self.portal
        return Repeats(self._inner.repeats, portal)

    @contextmanager
    def keeping(self, *streams: str) -> Iterator[None]:
        """As ``penstock.jobs.Jobs.keeping``: keep what Node's consumers publish of ``streams``."""
        entered, portal = self._inner.keeping(*streams), self.portal
        portal(_enter(entered))
        try:
            yield
        finally:
            portal(_leave(entered))

    def pause(self, stream: str, *, route: str | Route | None = None) -> None:
        """As ``penstock.jobs.Jobs.pause``."""
        self.portal(self._inner.pause(stream, route=route))

    def play(self, stream: str, *, route: str | Route | None = None) -> None:
        """As ``penstock.jobs.Jobs.play``."""
        self.portal(self._inner.play(stream, route=route))

    def cancel(
        self, stream: str, entry: str | None = None, *, job: str | None = None, route: str | Route | None = None
    ) -> list[str]:
        """As ``penstock.jobs.Jobs.cancel``."""
        return self.portal(self._inner.cancel(stream, entry, job=job, route=route))

    def dead(
        self, stream: str, *, group: str | None = None, job: str | None = None, route: str | Route | None = None
    ) -> Iterator[DeadJob]:
        """As ``penstock.jobs.Jobs.dead``: ``for dead in jobs.dead("resize"): jobs.retry(dead)``."""
        portal = self.portal
        return iterate(self._inner.dead(stream, group=group, job=job, route=route), portal)

    def retry(self, dead: DeadJob, *, ttl: float = WEEK) -> Retried | None:
        """As ``penstock.jobs.Jobs.retry``."""
        return self.portal(self._inner.retry(dead, ttl=ttl))


class Job:
    """As ``penstock.jobs.Job``: ``job.set("in", 1).push()``, and elsewhere ``[page] = job.get("in").pull()``."""

    def __init__(self, inner: _job.Job, run: Portal) -> None:
        self.inner, self.run = inner, run

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def id(self) -> str:
        """Return its id."""
        return self.inner.id

    def set(self, key: str, value: Any, *, ttl: float = WEEK) -> Self:
        """Set a value, bytes or anything that is JSON, for ``ttl`` seconds."""
        self.inner.set(key, value, ttl=ttl)
        return self

    def get(self, key: str, kind: Any = None) -> Self:
        """Read a value: as JSON, as ``bytes``, or as any other type that pydantic knows."""
        self.inner.get(key, kind)
        return self

    def delete(self, key: str) -> Self:
        """Delete a value, after what is read."""
        self.inner.delete(key)
        return self

    push: Final = blocking(_job.Job.push)

    def pull(self) -> list[Any]:
        """As ``penstock.jobs.Job.pull``."""
        return self.run(self.inner.pull())


class Attempt(Job):
    """As ``penstock.jobs.Attempt``: a job that a consumer has."""

    inner: _attempt.Attempt

    def __init__(self, inner: _attempt.Attempt, run: Portal) -> None:
        super().__init__(inner, run)
        self.stream, self.group, self.entry, self.number = inner.stream, inner.group, inner.entry, inner.number
        """``number`` counts from 1."""
        self.producer, self.key, self.values = inner.producer, inner.key, inner.values

    @property
    def is_given_up(self) -> bool:
        """Return whether its outcome does not count any more: a thread cannot be cancelled, but it may look."""
        return self.inner.is_given_up

    progress: Final = blocking(_attempt.Attempt.progress)

    def fail(self, error: BaseException) -> None:
        """Let this job of a batch fail, whatever becomes of the others."""
        self.inner.fail(error)

    def release(self) -> None:
        """Let another job begin in this one's place though it goes on; it is acknowledged when it ends."""
        self.run.loop.call_soon_threadsafe(self.inner.release)


class Sent:
    """As ``penstock.jobs.Sent``: a job that was sent."""

    def __init__(self, inner: _producer.Sent, run: Portal) -> None:
        self.inner, self.run = inner, run
        self.job, self.stream, self.entry, self.due = Job(inner.job, run), inner.stream, inner.entry, inner.due

    def __repr__(self) -> str:
        return repr(self.inner)

    finished: Final = blocking(_producer.Sent.finished)
    result: Final = blocking(_producer.Sent.result)
    progress: Final = blocking(_producer.Sent.progress)


class Producer:
    """As ``penstock.jobs.Producer``: ``jobs.producer().send("resize", {"page": 7})``."""

    def __init__(self, inner: _producer.Producer, run: Portal) -> None:
        self.inner, self.run, self.id = inner, run, inner.id

    def job(self, id: str | None = None) -> Job:
        """Return a job, with a random id by default."""
        return Job(self.inner.job(id), self.run)

    def send(
        self,
        stream: str,
        job: Job | Mapping[str, Any] | None = None,
        *,
        wait_for: Iterable[str] = (),
        route: str | Route | None = None,
        capped: int | None = None,
        delay: float = 0.0,
        key: str | None = None,
        ttl: float = WEEK,
    ) -> Sent:
        """As ``penstock.jobs.Producer.send``."""
        plain = job.inner if isinstance(job, Job) else job
        options: dict[str, Any] = {"wait_for": wait_for, "route": route, "capped": capped, "delay": delay}
        return Sent(self.run(self.inner.send(stream, plain, **options, key=key, ttl=ttl)), self.run)

    finished: Final = blocking(_producer.Producer.finished)

    @contextmanager
    def completions(self, stream: str) -> Iterator["Completions"]:
        """Hear the completions of all producers' jobs: ``with producer.completions("resize") as heard: heard.get()``.

        As ``penstock.jobs.Producer.completions``: the oldest of 10,000 go if nobody gets them.
        """
        entered = self.inner.completions(stream)
        queue = self.run(_enter(entered))
        try:
            yield Completions(queue, self.run)
        finally:
            self.run(_leave(entered))


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


class Repeats:
    """As ``penstock.jobs.Jobs.repeats``."""

    def __init__(self, inner: _repeating.Repeats, run: Portal) -> None:
        self.inner, self.run = inner, run

    set: Final = blocking(_repeating.Repeats.set)
    remove: Final = blocking(_repeating.Repeats.remove)
    all: Final = blocking(_repeating.Repeats.all)


class Consumer:
    """As ``penstock.jobs.Consumer``: a group of consumers, whose processors are functions.

        consumer = Consumer("thumbnails", concurrency=10)

        @consumer.job("resize", deadline=60)
        def resize(job: Attempt) -> None: ...

        jobs.run(consumer)

    Each job has a thread; ``concurrency`` is how many run at a time.
    """

    def __init__(
        self,
        group: str,
        *,
        id: str | None = None,
        concurrency: int = 1,
        attempts: int = 3,
        backoff: Backoff | None = None,
        claim_after: float = 60.0,
        route: str | Route | None = None,
        trim: bool = True,
        stop_timeout: float = 10.0,
    ) -> None:
        self.inner = _consumer.Consumer(
            group, id=id, concurrency=concurrency, attempts=attempts, backoff=backoff, claim_after=claim_after,
            route=route, trim=trim, stop_timeout=stop_timeout,
        )  # fmt: skip
        self.group, self.id = self.inner.group, self.inner.id
        self._threads = Threads()
        self._task: asyncio.Task[None] | None = None
        self._portal: Portal | None = None

    def job(
        self,
        stream: str,
        *,
        deadline: float | None = DEADLINE,
        start: str = "0",
        result: str | None = None,
        values: Sequence[str] = (),
        limit: Limit | None = None,
        in_process: bool = False,
    ) -> Callable[[F], F]:
        """Decorate a function that does the jobs of ``stream``; see ``penstock.jobs.Consumer.job``.

        A thread cannot be cancelled: after its deadline it goes on, and what it returns then does not count. With
        ``in_process`` the function gets a ``ProcessJob``.
        """

        def decorate(processor: F) -> F:
            _check_plain(processor)

            async def call(attempt: _attempt.Attempt) -> Any:
                return await self._threads(processor, Attempt(attempt, self._where()), [attempt])

            add = self.inner.job(
                stream, deadline=deadline, start=start, result=result, values=values, limit=limit, in_process=in_process
            )
            add(processor if in_process else call)  # type: ignore[type-var]  # a process gets a ProcessJob
            return processor

        return decorate

    def batch(
        self, stream: str, size: int, *, deadline: float | None = DEADLINE, start: str = "0", values: Sequence[str] = ()
    ) -> Callable[[B], B]:
        """Decorate a function that does up to ``size`` jobs of ``stream`` at once: a list of ``Attempt``."""

        def decorate(processor: B) -> B:
            _check_plain(processor)

            async def call(attempts: list[_attempt.Attempt]) -> Any:
                portal = self._where()
                return await self._threads(processor, [Attempt(each, portal) for each in attempts], attempts)

            self.inner.batch(stream, size, deadline=deadline, start=start, values=values)(call)
            return processor

        return decorate

    @property
    def running(self) -> int:
        """Return how many jobs run."""
        return self.inner.running

    @property
    def is_paused(self) -> bool:
        """Return whether no job begins."""
        return self.inner.is_paused

    def pause(self, timeout: float | None = None) -> None:
        """Begin no job any more, and wait for those that run. Raise ``PauseTimeout`` after ``timeout`` seconds."""
        portal = self._portal
        pausing = self.inner.pause(timeout)
        if portal is None:
            asyncio.run(pausing)
        else:
            portal(pausing)

    def play(self) -> None:
        """Begin jobs again."""
        self._soon(self.inner.play)

    def stop(self) -> None:
        """End ``Jobs.run``."""
        self._soon(self.inner.stop)

    async def run_in(self, portal: Portal, jobs: _server.Jobs) -> None:
        """Run in the loop of ``portal``. Raise ``WrongCall`` if it runs already."""
        if self._task is not None:
            raise WrongCall(f"the consumer of {self.group} runs already: make another one")
        self._task = asyncio.create_task(jobs.run(self.inner))
        try:
            await asyncio.sleep(0)  # from now on it can be stopped
            self._portal = portal
            await self._task
        finally:
            self._task.cancel()
            self._task = self._portal = None

    def _where(self) -> Portal:
        assert self._portal
        return self._portal

    def _soon(self, call: Callable[[], None]) -> None:
        portal = self._portal
        if portal is None:
            call()
        else:
            portal.loop.call_soon_threadsafe(call)


def _check_plain(processor: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(processor):
        raise WrongCall("a processor of a blocking consumer is a function: penstock.jobs has one for coroutines")


async def _enter(entered: Any) -> "asyncio.Queue[Completion]":
    queue: asyncio.Queue[Completion] = await entered.__aenter__()
    return queue


async def _leave(entered: Any) -> None:
    await entered.__aexit__(None, None, None)
