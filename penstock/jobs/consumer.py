"""What a group of consumers does: its processors, by stream, and how many jobs at a time."""

import asyncio
import inspect
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from penstock.base.errors import WrongCall
from penstock.core.backoff import Backoff
from penstock.jobs.errors import PauseTimeout
from penstock.jobs.keys import OURS, checked_name
from penstock.jobs.limit import Limit
from penstock.jobs.processes import Processes
from penstock.jobs.producer import DISTRIBUTED, Route
from penstock.jobs.threads import Threads

if TYPE_CHECKING:
    from penstock.jobs.attempt import Attempt

DEADLINE: Final = 30.0
"""Seconds that hfxbus gives a processor by default."""
Processor = Callable[["Attempt"], Any]
P = TypeVar("P", bound=Processor)
Q = TypeVar("Q", bound=Callable[[list["Attempt"]], Awaitable[Any]])
MAX_BATCH: Final = 500
START: Final = re.compile(r"\$|\d+(?:-\d+)?")


@dataclass(frozen=True)
class Handler:
    """The processor of one stream."""

    stream: str
    call: Callable[[Any], Awaitable[Any]]
    """Takes an ``Attempt``, or a list of them."""
    deadline: float
    """Seconds; infinite for none."""
    start: str
    """From which entry the group begins that is new: ``0`` for all, ``$`` for those that come from now on, or an id."""
    result: str | None
    """The key of the value that gets what the processor returns."""
    values: tuple[str, ...]
    """The keys of values that are read with each job."""
    limit: Limit | None
    size: int
    """Maximum number of jobs of a batch; 0: jobs come one by one."""

    @cached_property
    def wanted(self) -> frozenset[str]:
        """The same keys."""
        return frozenset(self.values)


@dataclass
class Options:
    """How a group works, checked."""

    concurrency: int
    attempts: int
    backoff: Backoff
    claim_after: float
    route: str | Route
    trim: bool
    stop_timeout: float
    handlers: dict[str, Handler] = field(default_factory=dict)


class Run(Protocol):
    """What runs a consumer."""

    @property
    def running(self) -> int:
        """Return how many jobs run."""

    def resume(self) -> None:
        """Begin and claim what there is room for, and what is not paused."""

    def look(self) -> None:
        """Look at once for what is due."""

    async def pause(self) -> None:
        """Begin and read nothing more, hand back what has not begun, and return once nothing runs."""

    def stop(self) -> None:
        """End it."""


class Consumer:
    """A group of consumers. Each group gets every job of its streams; within a group each job goes to one consumer.

        consumer = Consumer("thumbnails", concurrency=10)

        @consumer.job("resize", deadline=60)
        async def resize(job: Attempt) -> None: ...

        await jobs.run(consumer)

    ``concurrency`` is how many jobs run at a time. A job whose processor raises, or whose process dies, is tried
    again, up to ``attempts`` times in all, after delays by ``backoff`` (by default from 1 s, doubled up to 60 s); then
    it is a dead job. Another consumer takes a job that was not renewed for ``claim_after`` seconds, 0.1 to 86,400;
    those of Node are never renewed, so let it be longer than their deadline. ``id`` names this consumer in its group,
    by default at random. ``route`` is what the producers say, by default the group. ``trim`` removes from streams what
    all of their groups have done. At a stop jobs have ``stop_timeout`` seconds to end.

    Raise ``WrongCall`` for a name or a number that cannot be.
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
        for name, number in {"concurrency": concurrency, "attempts": attempts}.items():
            if number < 1:
                raise WrongCall(f"{name}={number}: expected at least 1")
        if not 0.1 <= claim_after <= 86_400:
            raise WrongCall(f"claim_after={claim_after}: expected seconds from 0.1 to 86,400")
        self.group = checked_name("group", group)
        self.id = f"{OURS}{secrets.token_hex(8)}" if id is None else checked_name("id", id)
        self.options = Options(
            concurrency, attempts, backoff or Backoff((), 1.0, 60.0), claim_after, group if route is None else route,
            trim, stop_timeout,
        )  # fmt: skip
        self._threads = Threads()
        self.processes: list[Processes] = []
        """Those of its processors."""
        self._runs = set[Run]()
        self.is_paused = False
        """Whether no job begins."""

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
    ) -> Callable[[P], P]:
        """Decorate what does the jobs of ``stream``: a coroutine function, or a function that runs in a thread.

        After ``deadline`` seconds a coroutine is cancelled; a thread cannot be: it goes on, and what it returns then
        does not count. None is no deadline. ``start`` says where a new group begins: with all jobs that are there, or
        with ``$`` those that come. What the processor returns becomes the value ``result`` of the job.
        ``values`` are keys of values that are read with the jobs, many at once: ``job.values["in"]`` has the bytes.
        ``limit`` holds for all consumers of the group together. With ``in_process`` a function runs in processes, which
        a deadline kills; it gets a ``ProcessJob``, with the values that are read with the job.
        """

        def decorate(processor: P) -> P:
            call: Callable[[Any], Awaitable[Any]]
            if in_process:
                call = Processes(processor)
                self.processes.append(call)
            else:
                call = processor if is_coroutine_function(processor) else partial(self._in_thread, processor)
            self._add(stream, call, deadline, start, result=result, values=values, limit=limit)
            return processor

        return decorate

    async def _in_thread(self, processor: Processor, attempt: "Attempt") -> Any:
        return await self._threads(processor, attempt, [attempt])

    def batch(
        self, stream: str, size: int, *, deadline: float | None = DEADLINE, start: str = "0", values: Sequence[str] = ()
    ) -> Callable[[Q], Q]:
        """Decorate what does up to ``size`` jobs of ``stream`` at once, as many as are there: a coroutine function.

        It gets a list of ``Attempt``. Those for which it calls ``fail`` are tried again, and all if it raises; the
        others are done. A batch counts as one job for ``concurrency``.
        """
        if not 1 <= size <= MAX_BATCH:
            raise WrongCall(f"size={size}: expected 1 to {MAX_BATCH}")

        def decorate(processor: Q) -> Q:
            self._add(stream, processor, deadline, start, values=values, size=size)
            return processor

        return decorate

    def _add(
        self, stream: str, call: Callable[[Any], Awaitable[Any]], deadline: float | None, start: str,
        *, result: str | None = None, values: Sequence[str] = (), limit: Limit | None = None, size: int = 0,
    ) -> None:  # fmt: skip
        checked_name("stream", stream, pattern=True)
        if stream in self.options.handlers:
            raise WrongCall(f"stream {stream!r} has a processor already")
        if deadline is not None and not deadline > 0:
            raise WrongCall(f"deadline={deadline}: expected seconds, or None for no deadline")
        if not START.fullmatch(start):
            raise WrongCall(f"start={start!r}: expected 0 for all jobs, $ for those that come, or the id of an entry")
        if isinstance(values, str):
            raise WrongCall(f"values={values!r}: expected a list of keys")
        values = tuple([checked_name("values", key) for key in values])
        if result is not None:
            checked_name("result", result)
        if limit and self.options.route is DISTRIBUTED:
            raise WrongCall("a limit needs one server: a stream that is distributed cannot have one")
        seconds = inf if deadline is None else deadline
        self.options.handlers[stream] = Handler(stream, call, seconds, start, result, values, limit, size)

    @property
    def running(self) -> int:
        """Return how many jobs run."""
        return sum(run.running for run in self._runs)

    async def pause(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Begin no job any more, and wait for those that run. Raise ``PauseTimeout`` after ``timeout`` seconds."""
        self.is_paused = True
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(run.pause() for run in self._runs))
        except TimeoutError:
            raise PauseTimeout(f"{self.running} jobs of {self.group} still run after {timeout:g} s") from None

    def play(self) -> None:
        """Begin jobs again."""
        self.is_paused = False
        for run in self._runs:
            run.resume()
            run.look()

    def stop(self) -> None:
        """End ``Jobs.run``."""
        for run in self._runs:
            run.stop()

    def joined(self, run: Run) -> None:
        """Note that ``run`` runs it."""
        self._runs.add(run)

    def left(self, run: Run) -> None:
        """Note that ``run`` has ended."""
        self._runs.discard(run)


def is_coroutine_function(function: Any) -> bool:
    """Return whether calling ``function``, which may be an object, returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
