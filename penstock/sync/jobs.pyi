"""Generated from ``penstock.jobs``: ``python -m tests.support.stubs`` writes it anew."""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.core.backoff import Backoff
from penstock.jobs.completion import Completion
from penstock.jobs.dead import DeadJob, Retried
from penstock.jobs.limit import Limit
from penstock.jobs.producer import Route

Processor = Callable[[Attempt], Any]
P = TypeVar("P", bound=Processor)
Q = TypeVar("Q", bound=Callable[[list[Attempt]], Any])

class Jobs:
    """As ``penstock.jobs.Jobs``: ``with Jobs("redis://localhost") as jobs:``."""

    def __init__(
        self,
        *urls: str,
        prefix: str = ...,
        routes: Mapping[str | int, int] | None = None,
        patience: float | None = 60.0,
        stop_signals: Iterable[signal.Signals] = ...,
    ) -> None: ...
    def job(self, id: str | None = None) -> Job: ...
    def producer(self, id: str | None = None) -> Producer: ...
    @contextmanager
    def keeping(self, *streams: str) -> Iterator[None]: ...
    @property
    def repeats(self) -> Repeats: ...
    def pause(self, stream: str, *, route: str | Route | None = None) -> None: ...
    def play(self, stream: str, *, route: str | Route | None = None) -> None: ...
    def cancel(
        self, stream: str, entry: str | None = None, *, job: str | None = None, route: str | Route | None = None
    ) -> list[str]: ...
    def dead(
        self, stream: str, *, group: str | None = None, job: str | None = None, route: str | Route | None = None
    ) -> Iterator[DeadJob]: ...
    def retry(self, dead: DeadJob, *, ttl: float = ...) -> Retried | None: ...
    def stop(self) -> None: ...
    def run(self, consumer: Consumer) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Job:
    """As ``penstock.jobs.Job``: ``job.set("in", 1).push()``, and elsewhere ``[page] = job.get("in").pull()``."""

    id: str
    def set(self, key: str, value: Any, *, ttl: float = ...) -> Self: ...
    def get(self, key: str, kind: Any = None) -> Self: ...
    def delete(self, key: str) -> Self: ...
    def push(self) -> None: ...
    def pull(self) -> list[Any]: ...

class Attempt(Job):
    """As ``penstock.jobs.Attempt``: a job that a consumer has."""

    def pull(self) -> list[Any]: ...
    stream: str
    group: str
    entry: bytes
    number: int
    producer: str
    key: str | None
    values: dict[str, bytes | None]
    @property
    def is_given_up(self) -> bool: ...
    def progress(self, value: Any) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def release(self) -> None: ...

class Sent:
    """As ``penstock.jobs.Sent``: a job that was sent."""

    job: Job
    stream: str
    entry: str | None
    due: float | None
    def finished(self, timeout: float | None = None, *, reject: bool = False) -> dict[str, Completion]: ...
    def result(self, group: str, key: str, kind: Any = None, timeout: float | None = None) -> Any: ...
    def progress(self, group: str) -> Any: ...

class Producer:
    """As ``penstock.jobs.Producer``: ``jobs.producer().send("resize", {"page": 7})``."""

    id: str
    def job(self, id: str | None = None) -> Job: ...
    def send(
        self,
        stream: str,
        job: Job | Mapping[str, Any] | None = None,
        *,
        wait_for: Iterable[str] = ...,
        route: str | Route | None = None,
        capped: int | None = None,
        delay: float = 0.0,
        key: str | None = None,
        ttl: float = ...,
    ) -> Sent: ...
    def finished(
        self,
        stream: str,
        job: str,
        groups: Iterable[str],
        timeout: float | None = None,
        *,
        reject: bool = False,
        since: float | None = None,
    ) -> dict[str, Completion]: ...
    @contextmanager
    def completions(self, stream: str) -> Iterator[Completions]: ...

class Completions:
    """Completions that were heard, in order."""

    def get(self, timeout: float | None = None) -> Completion: ...

class Repeats:
    """As ``penstock.jobs.Jobs.repeats``."""

    def set(
        self,
        name: str,
        stream: str,
        values: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: float | None = None,
        zone: str = "UTC",
        key: str | None = None,
        route: str | None = None,
    ) -> float: ...
    def remove(self, name: str, stream: str, *, route: str | None = None) -> bool: ...
    def all(self, stream: str, *, route: str | None = None) -> dict[str, dict[str, Any]]: ...

class Consumer:
    """As ``penstock.jobs.Consumer``: a group of consumers, whose processors are functions."""

    group: str
    id: str
    is_paused: bool
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
    ) -> None: ...
    def job(
        self,
        stream: str,
        *,
        deadline: float | None = ...,
        start: str = "0",
        result: str | None = None,
        values: Sequence[str] = ...,
        limit: Limit | None = None,
        in_process: bool = False,
    ) -> Callable[[P], P]: ...
    def batch(
        self, stream: str, size: int, *, deadline: float | None = ..., start: str = "0", values: Sequence[str] = ...
    ) -> Callable[[Q], Q]: ...
    @property
    def running(self) -> int: ...
    def pause(self, timeout: float | None = None) -> None: ...
    def play(self) -> None: ...
    def stop(self) -> None: ...
