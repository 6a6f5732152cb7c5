"""Producers: add and cancel tasks, retry dead ones, rewind a queue."""

import json
from hashlib import sha1
from typing import Any

from common.http.answers import JSON
from penstock.base.exact_json import as_json
from services.hqueue.bodies import Backoff, NewTask, Rewind, read
from services.hqueue.content import content_of, parse
from services.hqueue.problem import Problem
from services.hqueue.request import Request, Response
from services.hqueue.seals import OPEN, Lock, place
from services.hqueue.served import NO_TASK, PAGE, Served, several
from services.hqueue.store import New


class ProducerActions:
    """The verbs of producers."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def add(self, request: Request) -> Response:
        """Add a task, or several."""
        given = parse(request.exchange.body)
        bodies = [read(NewTask, each) for each in (several(given) if isinstance(given, list) else [given])]
        lock = await self._served.seals.of(request.owner)
        added: list[tuple[str, int, str, bool]] | None = []
        while added == []:
            new = [await self._new(request.queue, body, lock) for body in bodies]
            added = await self._served.store.add(request.queue, new)
        if added is None:
            raise Problem(429, f"the queue has {self._served.settings.capacity:,} tasks: setting capacity")
        shown = [{"taskId": id, "index": index, "state": state} for id, index, state, _ in added]
        status = 201 if any(is_new for *_, is_new in added) else 200
        if isinstance(given, list):
            return Response(status, as_json(shown) + b"\n")
        location = f"/queues/{request.route.service}/tasks/{added[0][0]}".encode()
        return Response(status, as_json(shown[0]) + b"\n", (JSON, (b"location", location)))

    async def _new(self, queue: str, body: NewTask, lock: Lock) -> New:
        """Return a task as it is stored; names and keys are not sealed, keys are digests."""
        settings = self._served.settings
        backoff = body.backoff or Backoff(initial=settings.backoff_base, factor=2.0, cap=settings.backoff_cap)
        attempts = settings.attempts if body.attempts is None else body.attempts
        ends = body.ttl if "ttl" in body.model_fields_set else settings.task_expire
        record: dict[str, Any] = {"ends": ends, "attempts": attempts, "backoff": backoff.model_dump()}
        optional = {"startBy": body.start_timeout, "attemptTimeout": body.attempt_timeout}
        record |= {name: value for name, value in optional.items() if value is not None}
        if body.id is not None:
            record |= {"name": body.id, "xid": body.id}
        if body.key is not None:
            record["key"] = sha1(f"{queue}|{body.key}".encode(), usedforsecurity=False).hexdigest()
        more = {"token": body.token} if "token" in body.model_fields_set else {}
        if body.non_retryable:
            (record if lock is OPEN else more)["nonRetryable"] = body.non_retryable
        if body.reply_to is not None:
            record["replyTo"] = body.reply_to
        if body.webhook is not None:
            if refusal := self._served.webhooks.refusal(body.webhook):
                raise Problem(422, f"webhook: {refusal}")
            record["hook"], more["webhook"] = True, body.webhook
        id = await self._served.store.new_id()
        value = lock.seal(content_of(body, "value"), place(queue, id, "value"))
        sealed = lock.seal(as_json(more), place(queue, id, "more")) if more else b""
        return New(id, as_json(record), value, sealed, body.delay)

    async def cancel(self, request: Request) -> Response:
        """End a task that nobody has; tell a worker that has it."""
        state = await self._served.store.cancel(request.queue, request.route.id)
        if state is None:
            raise Problem(404, NO_TASK)
        if state == "held":
            return Response(
                202, as_json({"taskId": request.route.id, "state": "held", "cancelRequested": True}) + b"\n"
            )
        if state != "cancelled":
            raise Problem(409, f"the task has ended: it is {state}", state=state)
        return Response(204, b"", ())

    async def retry(self, request: Request) -> Response:
        """Let a dead task wait again."""
        id = request.route.id
        is_done = await self._served.store.again(request.queue, [id], dead_only=True)
        record, *_ = await self._served.store.show(request.queue, id)
        if record is None:
            raise Problem(404, NO_TASK)
        state = json.loads(record)["state"]  # it waits, or is blocked by another one with its key
        if not is_done:
            raise Problem(409, "the task is not dead", state=state)
        return Response(200, as_json({"taskId": id, "state": state}) + b"\n")

    async def rewind(self, request: Request) -> Response:
        """Let tasks behind an index that have ended wait again."""
        after, count = read(Rewind, parse(request.exchange.body)).last, 0
        while found := await self._served.store.page(request.queue, after, PAGE):
            count += await self._served.store.again(request.queue, [id for id, _ in found], dead_only=False)
            after = json.loads(found[-1][1])["index"]
        return Response(200, as_json({"rewound": count}) + b"\n")
