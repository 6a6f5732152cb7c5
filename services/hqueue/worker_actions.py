"""Workers: fetch, acknowledge, and renew a lease."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from common.http.answers import JSON
from penstock.base.errors import Unopenable
from penstock.base.exact_json import as_json
from penstock.hqueue.http import WORKER_PROCESS
from services.hqueue.bodies import Ack, B, Fetch, Heartbeat, OldAck, OldFetch, read, read_query
from services.hqueue.content import JSON_KIND, content_of, member, opened, parse
from services.hqueue.outcome import more_of
from services.hqueue.problem import Problem
from services.hqueue.request import Request, Response
from services.hqueue.seals import OPEN, is_sealed, place
from services.hqueue.served import Served, several
from services.hqueue.steps import Step
from services.hqueue.store import Ended, Given
from services.hqueue.task_token import Attempt

LEFT_SECONDS: Final = 2.0
"""How long a sealed task waits that an instance without keys leaves to one that has them."""
PROCESS: Final = WORKER_PROCESS.lower().encode()
MAX_PROCESS: Final = 128
STALE: Final = "the worker does not have this task any more: its lease ended, or it was acknowledged"
FORGED: Final = "this is no task token of this queue"
_log: Final = structlog.get_logger("penstock.hqueue")


class Shown(NamedTuple):
    """What a worker gets of a task, with its kind in front."""

    value: bytes
    progress: bytes | None


class WorkerActions:
    """The verbs of workers."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._loop = asyncio.get_running_loop()

    async def fetch(self, request: Request) -> Response:
        """Give a worker its task, or wait for one."""
        is_original = request.route.is_original
        if is_original:
            old = _old(OldFetch, request)
            worker, span, wait, most = old.worker_id, old.time_to_recover, 0.0, None
        else:
            body = read(Fetch, parse(request.exchange.body))
            worker, span, wait, most = body.worker_id, body.time_to_recover, body.wait, body.max
            if body.time_to_recover_ms is not None:
                span = body.time_to_recover_ms / 1000
        tokens = self._served.tokens  # before a task is given that nobody could acknowledge
        await self._served.seals.of(
            request.owner
        )  # before a task is given: those of an owner that is forgotten are not
        shown, until = list[tuple[Given, Shown]](), self._loop.time() + wait
        while not shown:  # again, if none could be shown
            left = max(0.0, until - self._loop.time())
            length = span or self._served.settings.time_to_recover
            given = await self._fetched(request, worker, length, left, most or 1)
            if not given or request.exchange.is_gone:
                return Response(204, b"", ())
            shown = await self._opened(request, given)
        if is_original:
            value = shown[0][1].value
            kind = JSON if value[:1] == JSON_KIND else (b"content-type", b"application/octet-stream")
            return Response(200, value[1:], (kind,))
        tasks = [_given(task, each, tokens.make(request.queue, task.id, task.attempt)) for task, each in shown]
        if not most:
            return Response(200, tasks[0] + b"\n")
        return Response(200, b'{"tasks":[%b]}\n' % b",".join(tasks))

    async def _opened(self, request: Request, given: Sequence[Given]) -> list[tuple[Given, Shown]]:
        """Return the tasks that can be opened. End the attempts of all others, so that they keep no worker waiting.

        Such a task is dead, with the reason. Without keys it may be another instance that has them: then the task waits
        for its next attempt.
        """
        queue, seals = request.queue, self._served.seals
        lock = await seals.of(request.owner, *(each for task in given for each in (task.value, task.progress)))
        shown, ended = list[tuple[Given, Shown]](), list[Ended]()
        for task in given:
            try:
                value = opened(lock, task.value, place(queue, task.id, "value"))
                progress = task.progress and opened(lock, task.progress, place(queue, task.id, "progress"))
                shown.append((task, Shown(value, progress)))
            except Unopenable as error:
                _log.error("cannot be opened", task=task.id, queue=queue, reason=str(error))
                why, again = {"type": "Unopenable", "message": f"the task cannot be opened: {error}"}, "0"
                content = lock.seal(JSON_KIND + as_json(why), place(queue, task.id, "error"))
                if lock is OPEN and is_sealed(task.value, task.progress):
                    content, again = b"", f"+{LEFT_SECONDS}"
                ended.append(Ended("", task.id, task.attempt, "unopenable", content, "", again))
        if ended:
            await self._served.store.ack(queue, ended)
        return shown

    async def _fetched(self, request: Request, worker: str, span: float, wait: float, most: int) -> list[Given]:
        """Return tasks for a worker; wait for one until the time is over, the client has gone, or the service stops.

        Who waits is on the list before the queue is looked at, so that no task that comes meanwhile goes unnoticed.
        """
        exchange, until = request.exchange, self._loop.time() + wait
        process = dict(exchange.headers).get(PROCESS, b"")[:MAX_PROCESS].decode("latin-1")
        fetch = partial(self._served.store.fetch, request.queue, worker, span, most, process)
        if wait <= 0 or not self._served.may_wait:
            return await fetch()
        while True:
            waiter = self._served.tasks.add(request.queue, max(0.0, until - self._loop.time()))
            exchange.when_gone(lambda waiter=waiter: self._served.tasks.leave(waiter))  # type: ignore[misc]
            try:
                given = await fetch()
                if not given and not exchange.is_draining:
                    await Step[bool](waiter)
            finally:
                self._served.tasks.leave(waiter)
            woken = waiter.value()
            if given or exchange.is_gone or exchange.is_draining:
                if woken:
                    self._served.tasks.wake(request.queue, 1)  # it was for somebody else
                return given
            if not woken:
                return []

    async def ack(self, request: Request) -> Response:
        """End an attempt, or several, each for itself."""
        if request.route.is_original:
            return await self._old_ack(request)
        given = parse(request.exchange.body)
        if not isinstance(given, list):
            [found] = await self._ack(request, [read(Ack, given)])
            if isinstance(found, Problem):
                raise found
            return Response(200, as_json(_acknowledged(found)) + b"\n")
        bodies = [read(Ack, each) for each in several(given)]
        if any(body.worker_id for body in bodies):  # which task a worker fetched last depends on the one before
            states = [state for body in bodies for state in await self._ack(request, [body])]
        else:
            states = await self._ack(request, bodies)
        return Response(200, as_json([_acknowledged(state) for state in states]) + b"\n")

    async def _ack(self, request: Request, bodies: Sequence[Ack]) -> list[str | Problem]:
        """End attempts in one call; return the state of each task, or why nothing has changed."""
        found: list[Ended | Problem] = []
        for body in bodies:
            try:
                found.append(await self._ended(request, body))
            except Problem as problem:
                found.append(problem)
        ended = [each for each in found if isinstance(each, Ended)]
        states = iter(await self._served.store.ack(request.queue, ended) if ended else [])
        return [each if isinstance(each, Problem) else next(states) or Problem(409, STALE) for each in found]

    async def _ended(self, request: Request, body: Ack) -> Ended:
        worker = body.worker_id or ""
        attempt = (
            self._attempt(request.queue, body.task_token) if not worker else await self._last_of(request.queue, worker)
        )
        again = "0" if not body.retry else "" if body.delay is None else f"+{body.delay:.6f}"
        return await self._sealed(request, attempt, body, again, worker)

    async def _old_ack(self, request: Request) -> Response:
        """End the task that a worker fetched last; an error is final, as in the original."""
        body = _old(OldAck, request)
        try:
            attempt = await self._last_of(request.queue, body.worker_id)
        except Problem:
            return Response(200, b"false")
        ended = await self._sealed(request, attempt, body, "0", body.worker_id)
        [state] = await self._served.store.ack(request.queue, [ended])
        return Response(200, b"true" if state else b"false")

    async def _sealed(self, request: Request, attempt: Attempt, body: Ack | OldAck, again: str, worker: str) -> Ended:
        if isinstance(body, Ack) and body.release:
            return Ended(worker, attempt.id, attempt.attempt, "release", b"", "", again)
        outcome = "error" if "error" in body.model_fields_set else "result"
        found = body.error.get("type") if isinstance(body.error, dict) else None
        kind = found if isinstance(found, str) else ""
        lock = await self._served.seals.of(request.owner)
        if kind and lock is not OPEN:  # the server sees no word of it
            if again != "0" and await self._is_final(request, attempt.id, kind):
                again = "0"
            kind = ""
        content = lock.seal(content_of(body, outcome), place(request.queue, attempt.id, outcome))
        return Ended(worker, attempt.id, attempt.attempt, outcome, content, kind, again)

    async def _is_final(self, request: Request, id: str, kind: str) -> bool:
        """Return whether no attempt follows an error of type ``kind``; False if its task does not say, or not to us."""
        record, more, *_ = await self._served.store.show(request.queue, id)
        final = json.loads(record).get("nonRetryable", []) if record else []  # as a former version has stored it
        lock = await self._served.seals.of(request.owner, more)
        with suppress(Unopenable):
            final += more_of(lock.open(more, place(request.queue, id, "more"))).get("nonRetryable", []) if more else []
        return kind in final

    async def _last_of(self, queue: str, worker: str) -> Attempt:
        """Return the task that ``worker`` fetched last. What is sealed belongs to a task, so its id is needed first."""
        id = await self._served.store.last_of(queue, worker)
        if id is None:
            raise Problem(409, "the worker has no task")
        return Attempt(id, 0)

    def _attempt(self, queue: str, token: object) -> Attempt:
        attempt = self._served.tokens.read(queue, token)
        if attempt is None:
            raise Problem(409, FORGED)
        return attempt

    async def heartbeat(self, request: Request) -> Response:
        """Renew a lease."""
        body = read(Heartbeat, parse(request.exchange.body))
        attempt = self._attempt(request.queue, body.task_token)
        progress = b""
        if "progress" in body.model_fields_set:
            lock = await self._served.seals.of(request.owner)
            progress = lock.seal(content_of(body, "progress"), place(request.queue, attempt.id, "progress"))
        found = await self._served.store.heartbeat(
            request.queue, attempt.id, attempt.attempt, body.time_to_recover, progress
        )
        if not found:
            raise Problem(409, STALE)
        return Response(200, b'{"cancelRequested":%b,"leaseEnd":%b}\n' % (b"true" if found[1] else b"false", found[0]))


def _old(kind: type[B], request: Request) -> B:
    """Return what the original takes from the body or, without one, from the query."""
    body = request.exchange.body
    return read(kind, parse(body)) if body else read_query(kind, request.exchange.query)


def _acknowledged(state: str | Problem) -> dict[str, Any]:
    """Return what a client hears of an acknowledgement."""
    if isinstance(state, Problem):
        return {"acknowledged": False} | state.content
    return {"acknowledged": True, "state": state}


def _given(task: Given, shown: Shown, token: str) -> bytes:
    head = b'{"taskId":"%b","index":%d,"attempt":%d,"taskToken":"%b","leaseEnd":%.3f,' % (
        task.id.encode(), task.index, task.attempt, token.encode(), task.lease_end,
    )  # fmt: skip
    value = member("value", shown.value)
    return head + value + (b"," + member("progress", shown.progress) if shown.progress else b"") + b"}"
