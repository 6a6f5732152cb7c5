"""``penstock.hqueue``, blocking: each method is the asynchronous one, run in the thread of the portal."""

import signal
from collections.abc import AsyncIterable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Unpack

from penstock.hqueue import queue as _queue
from penstock.hqueue import server as _server
from penstock.hqueue.answers import Added, Fetched
from penstock.hqueue.errors import AnswerError
from penstock.hqueue.options import TaskOptions
from penstock.hqueue.task import Settles, TaskInHand
from penstock.sync.calls import blocking
from penstock.sync.entered import Entered
from penstock.sync.portal import Portal

if TYPE_CHECKING:
    import httpx


class Queues(Entered[_server.Queues]):
    """As ``penstock.hqueue.Queues``: ``with Queues("http://localhost:8080") as queues: queues["a"].add(1)``."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        patience: float | None = 60.0,
        stop_signals: Iterable[signal.Signals] = (),
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        self._queues = _server.Queues(url, token=token, patience=patience, transport=transport)
        super().__init__(stop_signals)

    async def _open(self) -> _server.Queues:
        return await self._queues.__aenter__()

    @property
    def run(self) -> Portal:
        """Run a coroutine, and return its result."""
        return self.portal

    def __repr__(self) -> str:
        return repr(self._queues)

    def __getitem__(self, service: str) -> "Queue":
        return Queue(self._queues[service], self.run)


class Task(TaskInHand):
    """As ``penstock.hqueue.Task``: ``with task: task.finish(resize(task.value))``."""

    def __init__(self, fetched: Fetched, source: Settles, run: Portal) -> None:
        super().__init__(fetched, source)
        self._run = run

    def progress(self, progress: Any = None) -> bool:
        """Report any JSON, and prolong the lease; return ``is_cancelled``. Raise ``LeaseLost`` if it has ended."""
        return self._run(self._source.beat(self, progress))


class Queue:
    """As ``penstock.hqueue.Queue``."""

    def __init__(self, inner: _queue.Queue, run: Portal) -> None:
        self.inner, self.run, self.service = inner, run, inner.service

    add: Final = blocking(_queue.Queue.add)
    fetch: Final = blocking(_queue.Queue.fetch)
    fetch_many: Final = blocking(_queue.Queue.fetch_many)
    ack: Final = blocking(_queue.Queue.ack)
    fail: Final = blocking(_queue.Queue.fail)
    release: Final = blocking(_queue.Queue.release)
    heartbeat: Final = blocking(_queue.Queue.heartbeat)
    info: Final = blocking(_queue.Queue.info)
    rewind: Final = blocking(_queue.Queue.rewind)
    status: Final = blocking(_queue.Queue.status)
    result: Final = blocking(_queue.Queue.result)
    cancel: Final = blocking(_queue.Queue.cancel)
    retry: Final = blocking(_queue.Queue.retry)
    statuses: Final = blocking(_queue.Queue.statuses)

    def add_many(self, values: Iterable[Any] | AsyncIterable[Any], **options: Unpack[TaskOptions]) -> list[Added]:
        """As ``penstock.hqueue.Queue.add_many``; the values are iterated in the thread of the caller."""
        if isinstance(values, AsyncIterable | bytes | str | dict):
            return self.run(self.inner.add_many(values, **options))
        each, added = iter(values), list[Added]()
        while batch := [*islice(each, _queue.MAX_TASKS)]:
            try:
                added += self.run(self.inner.add_many(batch, **options))
            except AnswerError as error:
                error.add_note(f"and {len(added):,} before these")
                raise
        return added

    def tasks(self, *, worker: str | None = None, time_to_recover: float = 60.0, batch: int = 1) -> Iterator[Task]:
        """Take tasks: ``for task in queue.tasks():``, and then ``with task:`` around its handling.

        Heartbeats keep a task while the program computes. See ``penstock.hqueue.Queue.tasks``.
        """
        return self.inner.consumer(worker, time_to_recover, batch, partial(Task, run=self.run)).blocking(self.run)
