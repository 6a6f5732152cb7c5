"""Blocking queues over HTTP; the types that editors and type checkers see are in hqueue.pyi."""

import signal
from collections.abc import AsyncIterable, Iterable
from functools import partial
from typing import Any

from penstock.hqueue import server as _server
from penstock.hqueue.answers import Fetched
from penstock.hqueue.task import Settles, TaskInHand
from penstock.sync.entered import Entered
from penstock.sync.portal import Portal
from penstock.sync.twin import Twin

__all__ = ["Queue", "Queues", "Task"]


class Queues(Entered, of="penstock.hqueue.server:Queues", names="__init__ stopping __getitem__ stop"):
    """As ``penstock.hqueue.Queues``: ``with Queues("http://localhost:8080") as queues: queues["a"].add(1)``."""

    def __init__(self, url: str, stop_signals: Iterable[signal.Signals], **options: Any) -> None:
        super().__init__(_server.Queues(url, **options), stop_signals)

    stop = Entered._stop


class Queue(
    Twin,
    of="penstock.hqueue.queue:Queue",
    names="add add_many fetch fetch_many ack fail release heartbeat info rewind status result cancel retry statuses"
    " tasks",
):
    """As ``penstock.hqueue.Queue``."""

    service: str

    def add_many(self, values: Iterable[Any] | AsyncIterable[Any], **options: Any) -> Any:
        return self._feed("add_many", values, **options)

    def tasks(self, worker: str | None, time_to_recover: float, batch: int) -> Any:
        run = self._host.run
        return self._inner.consumer(worker, time_to_recover, batch, partial(Task, run=run)).blocking(run)


class Task(TaskInHand, Twin, of="penstock.hqueue.task:Task", names="progress"):
    """As ``penstock.hqueue.Task``: ``with task: task.finish(resize(task.value))``."""

    def __init__(self, fetched: Fetched, source: Settles, run: Portal) -> None:
        TaskInHand.__init__(self, fetched, source)
        self._run = run

    def progress(self, progress: Any) -> bool:
        return self._run(self._source.beat(self, progress))
