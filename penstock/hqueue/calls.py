"""The calls of one queue of a service."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from penstock.base.errors import WrongCall
from penstock.hqueue.answers import Fetched, Lease, Status
from penstock.hqueue.http import WORKER_PROCESS, Answer, Http
from penstock.hqueue.task import Outcome
from penstock.hqueue.values import as_json

SERVICE: Final = r"[A-Za-z0-9._~-]{1,128}"


class Calls:
    """Those of the queue ``service``, by ``http``."""

    def __init__(self, http: Http, service: str) -> None:
        if not re.fullmatch(SERVICE, service) or service in (".", ".."):
            raise WrongCall(f"{service!r} is no name of a queue: expected 1 to 128 of A-Z a-z 0-9 . _ ~ -")
        self.http, self.service, self.path = http, service, f"/queues/{service}"

    @asynccontextmanager
    async def elsewhere(self) -> AsyncIterator["Calls | None"]:
        """Yield the same for another event loop; None with a transport of the program's, which has only one."""
        http = self.http.twin()
        if http is None:
            yield None
            return
        await http.open()
        try:
            yield Calls(http, self.service)
        finally:
            await http.close()

    async def take(
        self,
        worker: str,
        most: int | None,
        time_to_recover: float,
        wait: float,
        patience: float | None,
        process: str | None = None,
    ) -> list[Fetched]:
        """Do one fetch; ``process`` is what a loop says of itself."""
        fields: dict[str, Any] = {"workerId": worker, "timeToRecover": time_to_recover}
        fields |= ({"wait": wait} if wait else {}) | ({} if most is None else {"max": most})
        headers = {} if process is None else {WORKER_PROCESS: process}
        answer = await self.post("/fetch", as_json(fields), wait=wait, patience=patience, headers=headers)
        if answer.body is None:
            return []
        return [Fetched.read(each) for each in ([answer.body] if most is None else answer.body["tasks"])]

    async def prolong(
        self, task_token: str, progress: Any, time_to_recover: float | None, patience: float | None
    ) -> Lease:
        """Do one heartbeat."""
        fields: dict[str, Any] = {"taskToken": task_token}
        fields |= {} if progress is None else {"progress": progress}
        fields |= {} if time_to_recover is None else {"timeToRecover": time_to_recover}
        return Lease.read((await self.post("/heartbeat", as_json(fields), patience=patience)).body)

    async def acknowledge(self, outcome: Outcome, patience: float | None = None) -> str:
        """Do one acknowledgement."""
        return str((await self.post("/ack", outcome.body, patience=patience)).body["state"])

    async def status(self, id: str, wait: float = 0.0) -> Status:
        """Return how far the task is; wait ``wait`` (s) until it has ended."""
        query: dict[str, str | int | float] = {"wait": wait} if wait > 0 else {}
        return Status.read((await self.get(f"/tasks/{checked(id)}", query, wait)).body)

    async def post(
        self,
        path: str,
        body: bytes | None,
        *,
        wait: float = 0.0,
        repeatable: bool = True,
        patience: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Call one operation."""
        url = self.path + path
        return await self.http("POST", url, body, wait=wait, repeatable=repeatable, patience=patience, headers=headers)

    async def get(self, path: str, query: dict[str, str | int | float] | None = None, wait: float = 0.0) -> Answer:
        """Ask for something."""
        return await self.http("GET", self.path + path, query=query, wait=wait)


def checked(id: str) -> str:
    """Return ``id``. Raise ``WrongCall`` if it is none of a task."""
    if not re.fullmatch(r"[0-9]{1,20}", id):
        raise WrongCall(f"{id!r} is no id of a task: expected digits")
    return id
