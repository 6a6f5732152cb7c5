"""Worker that may be killed at any time.

It moves each message to its own list, and reports it in the transaction that removes it from that list.
"""

import json
import os
import time
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Disconnected
from redis.retry import Retry

from penstock.base.keys import Keys
from tests.reliability.jobs import LATER, Job, parse_job

OUT: Final = "work:out"
RES: Final = "work:res"
KEYS: Final = Keys("demo")
REPORTS: Final = "test:said"
"""Stream of all reports of workers, for the test to compare with."""


def working_of(number: object) -> str:
    """Return the list of messages that worker ``number`` has in hand."""
    return f"worker:{number}"


def later_of(number: object) -> str:
    """Return the sorted set of messages that worker ``number`` will finish later, by time."""
    return f"worker:{number}:later"


class Worker:
    """Worker that handles one message at a time and sets aside those to finish later."""

    def __init__(self, url: str, number: str) -> None:
        self._redis: Any = Redis.from_url(url, retry=Retry(NoBackoff(), 0))  # so that nothing is moved twice
        self._working, self._later = working_of(number), later_of(number)

    def work(self) -> None:
        while True:
            try:
                self._redis.blmove(OUT, self._working, 0.05, "RIGHT", "LEFT")
                self._finish_what_is_ready()
                while message := self._redis.lindex(self._working, -1):
                    self._begin(parse_job(message))
            except Disconnected:
                time.sleep(0.01)

    def _begin(self, job: Job) -> None:
        attempt = self._attempt(job)
        with self._redis.pipeline(transaction=True) as transaction:
            transaction.rpop(self._working)
            if job.kind == "failing" or (job.kind == "flaky" and attempt == 1):
                self._report(transaction, job, "failed", attempt, error=f"no tea for {job.xid}")
            elif job.kind == "final":
                self._report(transaction, job, "final", error=f"no tea for {job.xid}", retry=False)
            elif seconds := LATER.get(job.kind):
                if job.kind == "touching":
                    self._report(transaction, job, "touch", touch=3)
                entry = json.dumps([job.message.decode(), attempt])
                transaction.zadd(self._later, {entry: time.time() + seconds}, nx=True)
            elif job.kind != "silent":
                self._report(transaction, job, "done")
            transaction.execute()

    def _finish_what_is_ready(self) -> None:
        for entry in self._redis.zrangebyscore(self._later, 0, time.time(), 0, 10):
            message, attempt = json.loads(entry)
            with self._redis.pipeline(transaction=True) as transaction:
                transaction.zrem(self._later, entry)
                self._report(transaction, parse_job(message.encode()), "done", attempt)
                transaction.execute()

    def _attempt(self, job: Job) -> int | None:
        """Return the number of the attempt, or None if the message has ended."""
        id = self._redis.hget(KEYS.xid(job.xid), "id")
        attempt = self._redis.hget(KEYS.message(id.decode()), "attempt") if id else None
        return int(attempt) if attempt else None

    def _report(self, transaction: Any, job: Job, verdict: str, attempt: int | None = None, **more: object) -> None:
        attempt_field = {} if attempt is None else {"attempt": attempt}
        if verdict == "done" and job.reply_to:
            transaction.lpush(RES, json.dumps({"meta": {"id": job.xid, **attempt_field}, "answer": job.xid}))
        elif more or attempt_field or len(job.xid) % 2:
            transaction.lpush(KEYS.done, json.dumps({"xid": job.xid, **attempt_field, **more}))
        else:
            transaction.lpush(KEYS.done, job.xid)
        transaction.xadd(REPORTS, {"xid": job.xid, "verdict": verdict, "attempt": attempt or ""})


if __name__ == "__main__":
    Worker(os.environ["WORKER_REDIS"], os.environ["WORKER_NUMBER"]).work()
