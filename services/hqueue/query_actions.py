"""Queries: counts of a queue, its tasks, and one task."""

import json
from typing import Any, Final

from penstock.base.exact_json import as_json
from services.hqueue.bodies import Listing, Look, read_query
from services.hqueue.outcome import contents_of, status_of
from services.hqueue.problem import Problem
from services.hqueue.request import Request, Response
from services.hqueue.served import NO_STORE, NO_TASK, PAGE, Served
from services.hqueue.steps import Step

HELD: Final = 100
"""Maximum number of tasks in hand that ``info`` lists."""
LOOKED_AT: Final = 1_000
"""Maximum number of records that one request looks at."""


class QueryActions:
    """The verbs that change nothing."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def info(self, request: Request) -> Response:
        """Count the tasks of a queue."""
        last, waiting, delayed, blocked, held, kept, oldest, now, found = await self._served.store.info(
            request.queue, HELD
        )
        records = zip(found[::2], found[1::2], strict=True)
        pairs = [(id.decode(), json.loads(record)) for id, record in records if record]
        if request.route.is_original:
            old = {task["worker"]: f"{task['index']:.0f}:{task['taken'] * 1000:.0f}" for _, task in pairs}
            fetched = max((task["index"] for _, task in pairs), default=0)
            return Response(200, as_json({"INDEX": int(float(last)), "FETCHED": int(fetched)} | old) + b"\n", NO_STORE)
        age = None if oldest is None else max(0.0, round(int(now) - json.loads(oldest)["added"], 3))
        shown = {
            "service": request.route.service, "index": int(float(last)), "waiting": waiting, "delayed": delayed,
            "blocked": blocked, "inHand": held, "ended": kept - waiting - delayed - blocked - held, "oldest": age,
            "held": [
                {
                    "taskId": id, "index": int(task["index"]), "worker": task["worker"],
                    "attempt": int(task["attempt"]), "leaseEnd": task["lease"],
                }
                for id, task in pairs
            ],
        }  # fmt: skip
        return Response(200, as_json(shown) + b"\n", NO_STORE)

    async def page(self, request: Request) -> Response:
        """List tasks without their values; ``next`` is where to go on, if there may be more."""
        wanted = read_query(Listing, request.exchange.query)
        index = wanted.after
        shown: list[dict[str, Any]] = []
        for _ in range(LOOKED_AT // PAGE):
            found = await self._served.store.page(request.queue, index, PAGE)
            for id, record in found:
                task = json.loads(record)
                index = int(task["index"])
                if wanted.state in (None, task["state"]):
                    shown.append(status_of(id, task))
                    if len(shown) == wanted.most:
                        return Response(200, as_json({"tasks": shown, "next": index}) + b"\n", NO_STORE)
            if len(found) < PAGE:
                return Response(200, as_json({"tasks": shown}) + b"\n", NO_STORE)
        return Response(200, as_json({"tasks": shown, "next": index}) + b"\n", NO_STORE)

    async def show(self, request: Request) -> Response:
        """Show a task; with ``wait`` only once it has ended, or the time is over."""
        wait = read_query(Look, request.exchange.query).wait
        what = f"{request.route.id} {request.queue}"
        waiter = self._served.ends.add(what, wait) if wait and self._served.may_wait else None
        if waiter:
            request.exchange.when_gone(lambda: self._served.ends.leave(waiter))
        try:
            found = await self._served.store.show(request.queue, request.route.id)
            if waiter and found[0] and "ended" not in json.loads(found[0]) and not request.exchange.is_draining:
                await Step[bool](waiter)
                found = await self._served.store.show(request.queue, request.route.id)
        finally:
            if waiter:
                self._served.ends.leave(waiter)
        if found[0] is None:
            raise Problem(404, NO_TASK)
        lock = await self._served.seals.of(request.owner, *found[1:])
        id, task = request.route.id, json.loads(found[0])
        contents = contents_of(request.queue, id, task, found[1:], lock)
        return Response(200, contents.as_json(status_of(id, task)) + b"\n", NO_STORE)
