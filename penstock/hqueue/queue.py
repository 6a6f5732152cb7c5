"""One queue of a service, by name."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from math import inf
from typing import Any, Final, Unpack

from penstock.base.errors import RequestTimeout, WrongCall
from penstock.core.batches import payload_batches
from penstock.core.consumer import Consumer, Consumers
from penstock.hqueue.answers import STATES, Added, Fetched, Info, Lease, Status
from penstock.hqueue.calls import Calls, checked
from penstock.hqueue.errors import AnswerError, NoTask, TaskExpired, TaskFailed
from penstock.hqueue.http import Http
from penstock.hqueue.options import NewTask, TaskOptions, check
from penstock.hqueue.source import WAIT_SECONDS, TaskSource
from penstock.hqueue.task import Outcome, Task
from penstock.hqueue.values import as_json

MAX_TASKS: Final = 100
"""Maximum number of tasks in one call."""
MAX_LISTED: Final = 1_000
"""Maximum number of tasks that one call lists."""
MIN_WAIT_SECONDS: Final = 0.05
"""Pause between two questions for a result, if the service does not wait."""


class Queue:
    """The tasks of one service, which programs add, and workers take and acknowledge."""

    def __init__(self, http: Http, consumers: Consumers, service: str) -> None:
        self.calls, self._consumers, self.service = Calls(http, service), consumers, service

    async def add(self, value: Any = None, **options: Unpack[TaskOptions]) -> Added:
        """Add a task with ``value``, any JSON or bytes. See ``TaskOptions``.

        It is added once, even if an answer is lost and the call repeated: it has an id.
        """
        check(options)
        body = NewTask(value).body(options, secrets.token_hex(16))
        answer = await self.calls.post("/tasks", body)
        return Added.read(answer.body, is_new=answer.status == 201)

    async def add_many(self, values: Iterable[Any] | AsyncIterable[Any], **options: Unpack[TaskOptions]) -> list[Added]:
        """Add a task for each value, in order, at most 100 in one call, which adds all or none; return what was added.

        A ``NewTask(value, ...)`` among them has options of its own. An error says how many were added before.
        """
        check(options)
        if isinstance(values, bytes | str | dict):
            raise WrongCall("expected several values, found one: use add")
        if "id" in options:
            raise WrongCall("several tasks cannot have one id: give each its own, NewTask(value, id=...)")

        def body(value: Any) -> bytes:
            new = value if isinstance(value, NewTask) else NewTask(value)
            return new.body(options, secrets.token_hex(16))

        added = list[Added]()
        async with aclosing(payload_batches(values, body)) as found:
            async for batch in found:
                for first in range(0, len(batch), MAX_TASKS):
                    added += await self._add_all(batch[first : first + MAX_TASKS], len(added))
        return added

    async def _add_all(self, bodies: list[bytes], before: int) -> list[Added]:
        try:
            answer = await self.calls.post("/tasks", b"[" + b",".join(bodies) + b"]")
        except AnswerError as error:
            error.add_note(f"{before:,} tasks before these were added")
            raise
        return [Added.read(each, is_new=None) for each in answer.body]

    async def fetch(self, worker: str, *, time_to_recover: float = 60.0, wait: float = 0.0) -> Fetched | None:
        """Give ``worker`` the next task for ``time_to_recover`` (s), or again the one that it has not acknowledged.

        Wait ``wait`` (s) for one, at most 20; return None if none came. ``tasks`` is a loop that does the rest.
        """
        found = await self.calls.take(worker, None, time_to_recover, wait, None)
        return found[0] if found else None

    async def fetch_many(
        self, worker: str, most: int, *, time_to_recover: float = 60.0, wait: float = 0.0
    ) -> list[Fetched]:
        """As ``fetch``, up to ``most`` tasks, at most 100."""
        return await self.calls.take(worker, most, time_to_recover, wait, None)

    async def ack(self, task_token: str, result: Any = None) -> str:
        """End a task with ``result``, any JSON or bytes; return its state. Raise ``LeaseLost`` if it came too late.

        If an answer is lost, the call is repeated, and ``LeaseLost.repeated`` says that the first one may have done it:
        ask for the ``status``.
        """
        return await self.calls.acknowledge(Outcome.result(task_token, result))

    async def fail(self, task_token: str, error: Any, *, retry: bool = True, delay: float | None = None) -> str:
        """End an attempt with ``error``; return the state of the task. Raise as ``ack`` does."""
        return await self.calls.acknowledge(Outcome.error(task_token, error, retry=retry, delay=delay))

    async def release(self, task_token: str) -> str:
        """Give back a task that was not begun: the attempt does not count. Return its state, and raise as ``ack``."""
        return await self.calls.acknowledge(Outcome.release(task_token))

    async def heartbeat(self, task_token: str, *, progress: Any = None, time_to_recover: float | None = None) -> Lease:
        """Prolong the lease of a task, and report its progress. Raise ``LeaseLost`` if it has ended."""
        return await self.calls.prolong(task_token, progress, time_to_recover, None)

    async def info(self) -> Info:
        """Return how many tasks are in which state, and who holds which."""
        return Info.read((await self.calls.get("/info")).body)

    async def rewind(self, last: int) -> int:
        """Let all tasks after index ``last`` that have ended, and are still kept, wait again; return how many."""
        answer = await self.calls.post("/rewind", as_json({"last": last}), repeatable=False)
        return int(answer.body["rewound"])

    async def status(self, id: str, *, wait: float = 0.0) -> Status:
        """Return how far the task is; wait ``wait`` (s), at most 20, until it has ended. Raise ``NoTask``."""
        return await self.calls.status(id, wait)

    async def result(self, id: str, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109  # long polls
        """Wait until the task has ended, and return its result.

        Raise ``TaskFailed`` if it is dead, ``TaskExpired`` if its time is over, ``NoTask`` if it was cancelled, and
        ``RequestTimeout`` after ``timeout`` (s).
        """
        end = inf if timeout is None else time.monotonic() + timeout
        while True:
            begun = time.monotonic()
            status = await self.status(id, wait=max(min(WAIT_SECONDS, round(end - begun, 3)), 0))
            if status.has_ended:
                return _result(status)
            if (now := time.monotonic()) >= end:
                raise RequestTimeout(f"task {id} has not ended within {timeout:g} s: it is {status.state}")
            if now - begun < MIN_WAIT_SECONDS:
                await asyncio.sleep(MIN_WAIT_SECONDS)

    async def cancel(self, id: str) -> bool:
        """Take back a task: return True if it is gone, False if a worker has it, whose next heartbeat hears of it.

        Raise ``NoTask`` if there is none, and ``AnswerError`` with status 409 if it has ended, or was cancelled before.
        """
        try:
            answer = await self.calls.http("DELETE", f"{self.calls.path}/tasks/{checked(id)}")
        except AnswerError as error:
            if error.repeated and (isinstance(error, NoTask) or error.problem.get("state") == "dead"):
                return True
            raise
        return answer.status != 202

    async def retry(self, id: str) -> None:
        """Let a dead task wait again. Raise ``AnswerError`` with status 409 if it is not dead."""
        await self.calls.post(f"/tasks/{checked(id)}/retry", None, repeatable=False)

    async def statuses(self, state: str | None = None, *, after: int = 0, most: int = 100) -> list[Status]:
        """Return tasks, or those in ``state``, whose index is more than ``after``, in order, without results."""
        if state is not None and state not in STATES:
            raise WrongCall(f"state={state!r}: expected {', '.join(STATES)}")
        query: dict[str, str | int | float] = {} if state is None else {"state": state}
        found = list[Status]()
        next_: int | None = after
        while next_ is not None and len(found) < most:
            answer = await self.calls.get(
                "/tasks", query | {"after": next_, "most": min(most - len(found), MAX_LISTED)}
            )
            found += [Status.read(each) for each in answer.body["tasks"]]
            next_ = answer.body.get("next")
        return found

    def tasks(
        self, *, worker: str | None = None, time_to_recover: float = 60.0, batch: int = 1
    ) -> AsyncGenerator[Task]:
        """Take tasks until ``Queues.stop``: ``async for task in queue.tasks():``, and then ``with task:`` around its
        handling, which acknowledges it.

        Heartbeats keep a task in hand, also while its handler blocks the event loop, unless ``Queues`` has a
        ``transport``. If this process dies, or stands still for longer than ``time_to_recover`` (s), another worker
        gets it. ``worker`` names this loop, and no other one at the same time; after a restart of the process the same
        name gets its unfinished tasks again at once, as their next attempt. By default it is made up.

        At most ``batch`` tasks are taken at once; fewer while handling is slow, so that other workers get theirs.

        ``break`` acknowledges soon after; wait for it with ``contextlib.aclosing`` around the loop, or the end of
        ``async with Queues``. While the service is away, the loop waits and goes on. Raise ``NotAllowed`` if it refuses
        the token.
        """
        return self.consumer(worker, time_to_recover, batch, Task).messages()

    def consumer(self, name: str | None, time_to_recover: float, batch: int, make: Any) -> Consumer[Any]:
        """Return what ``tasks`` iterates."""
        source = TaskSource(self.calls, made_up() if name is None else name, time_to_recover, batch, make)
        return Consumer(self._consumers, source, batch)


def made_up() -> str:
    """Return a name for a worker that no other one has."""
    return f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"


def _result(status: Status) -> Any:
    if status.state == "done":
        return status.result
    kind = TaskExpired if status.state == "expired" or status.reason == "expired" else TaskFailed
    raise kind(status.id, status.state, status.error, status.reason, status.attempt)
