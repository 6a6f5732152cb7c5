"""A worker of hqueue as a process, by bare HTTP or with ``penstock.hqueue``; a journal says what was acknowledged.

It is set by its environment: QUEUE_WORKER_URLS (by commas; the client takes the first), _QUEUE, _WHO, _JOURNAL, and
_CLIENT, which is 1 for ``penstock.hqueue``. Tasks are numbers; the result of one is in ``outcome_of``.
"""

import asyncio
import http.client
import json
import os
import random
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from penstock.hqueue import Queues

LEASE = 1
"""Seconds until a task of a killed worker goes to another one."""
LONGEST = 0.05
"""Seconds that a task takes at most: long enough that workers have mostly one in hand, so that kills meet one."""
TRIED = (OSError, http.client.HTTPException, ValueError)


def outcome_of(number: int, attempt: int) -> dict[str, Any]:
    """Return what a worker says: of 10 tasks one always fails, and one fails at first."""
    if number % 10 == 3 or (number % 10 == 7 and attempt == 1):
        return {"error": {"type": "Busy", "number": number}}
    return {"result": {"double": 2 * number}}


class Journal:
    """Lines ``ID STATE`` of acknowledgements that were answered, which survive a kill."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, id: str, state: str) -> None:
        os.write(self._file, f"{id} {state}\n".encode())


class Bare:
    """A program that knows HTTP and nothing else."""

    def __init__(self, urls: list[str], queue: str) -> None:
        self._urls, self._queue = urls, queue
        self._connection: http.client.HTTPConnection | None = None

    def post(self, verb: str, body: Any) -> Any:
        """Ask until an instance answers; return None for no task, and for an acknowledgement that is refused."""
        while True:
            try:
                if self._connection is None:
                    host = urlsplit(random.choice(self._urls)).netloc
                    self._connection = http.client.HTTPConnection(host, timeout=10)
                self._connection.request("POST", f"/queues/{self._queue}/{verb}", json.dumps(body))
                reply = self._connection.getresponse()
                text = reply.read()
                if reply.status in (200, 204, 409):
                    return json.loads(text) if reply.status == 200 else None
                if reply.status != 503:
                    sys.exit(f"{verb}: {reply.status} {text!r}")
            except TRIED:
                pass
            if self._connection:
                self._connection.close()
            self._connection = None
            time.sleep(0.02)

    def work(self, who: str, journal: Journal) -> None:
        while True:
            found = self.post(
                "fetch", {"workerId": who, "timeToRecover": LEASE, "wait": 1, "max": random.randint(1, 3)}
            )
            for task in (found or {"tasks": []})["tasks"]:
                time.sleep(random.uniform(0, LONGEST))
                outcome = outcome_of(task["value"], task["attempt"])
                if reply := self.post("ack", {"taskToken": task["taskToken"], **outcome}):
                    journal.note(task["taskId"], reply["state"])


async def work_with_client(url: str, queue: str) -> None:
    async with Queues(url, patience=None) as queues:
        async for task in queues[queue].tasks(time_to_recover=LEASE):
            with task:
                await asyncio.sleep(random.uniform(0, LONGEST))
                outcome = outcome_of(task.value, task.attempt)
                if "error" in outcome:
                    task.fail(outcome["error"])
                else:
                    task.finish(outcome["result"])


def main() -> None:
    given = {name: os.environ[f"QUEUE_WORKER_{name}"] for name in ("URLS", "QUEUE", "WHO", "JOURNAL", "CLIENT")}
    urls = given["URLS"].split(",")
    if given["CLIENT"] == "1":
        asyncio.run(work_with_client(urls[0], given["QUEUE"]))
    else:
        Bare(urls, given["QUEUE"]).work(given["WHO"], Journal(given["JOURNAL"]))


if __name__ == "__main__":
    main()
