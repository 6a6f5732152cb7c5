"""Worker that needs no library of Penstock: ``python -m compose.tracked.worker archive|alert``.

It moves readings to its own list, acts on them, and reports to ``<branch>:done`` those that are done, in one MULTI. If
it is killed before, it finds them in its list after a restart. It reports a reading by its correlation id: a number is
its own id; any other text has its SHA-1.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from argparse import ArgumentParser
from typing import Final, cast

import redis
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.retry import Retry

BATCH: Final = 500
WAIT_SECONDS: Final = 1
"""Maximum wait for a reading, and so for the exit after a SIGTERM (s)."""
WARM: Final = 70.0
"""Readings (F) of at least this fail in their first attempt."""


class Worker:
    """The only worker of a branch. A signal handler may call ``stop``."""

    def __init__(self, server: redis.Redis, branch: str) -> None:
        self.server, self.act = server, {"archive": archive, "alert": alert}[branch]
        self.out, self.working = f"tracked:{branch}:out", f"tracked:{branch}:working"
        self.running = True

    def run(self) -> None:
        while self.running:
            try:
                if self.server.exists(self.working) or self.take():
                    self.server.transaction(self.settle, self.working)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                print(f"waiting for the server: {error}", file=sys.stderr)
                time.sleep(random.uniform(0.1, 0.5))

    def stop(self, *_: object) -> None:
        self.running = False

    def take(self) -> bool:
        """Move the next reading, and the backlog behind it, to the working list."""
        if self.server.blmove(self.out, self.working, WAIT_SECONDS, src="RIGHT", dest="LEFT") is None:
            return False
        backlog = min(self.server.llen(self.out), BATCH - 1)
        with self.server.pipeline(transaction=False) as moves:
            for _ in range(backlog):
                moves.lmove(self.out, self.working, src="RIGHT", dest="LEFT")
            moves.execute()
        return True

    def settle(self, transaction: Pipeline) -> None:
        rows = cast(list[bytes], transaction.lrange(self.working, 0, -1))[::-1]
        known = transaction.smismember("tracked:archive:refused", rows) if rows else []
        transaction.multi()
        for row, failed_before in zip(rows, known, strict=True):
            self.act(transaction, row, failed_before=bool(failed_before))
        transaction.delete(self.working)


def archive(transaction: Pipeline, row: bytes, *, failed_before: bool) -> None:
    """Keep the reading, or report an error: a warm reading is delivered again, an invalid one is not."""
    report = row.decode() if row.isdigit() else hashlib.sha1(row).hexdigest()
    try:
        _, temperature = row.split(b",")
        warm = float(temperature) >= WARM
    except ValueError:
        report = json.dumps({"xid": report, "error": "no reading", "retry": False})
    else:
        if warm and not failed_before:
            report = json.dumps({"xid": report, "error": f"{WARM:g} F or more: look twice"})
            transaction.sadd("tracked:archive:refused", row)
        else:
            transaction.lpush("tracked:archive:kept", row)
    transaction.lpush("tracked:archive:done", report)


def alert(transaction: Pipeline, row: bytes, *, failed_before: bool) -> None:
    """Record the reading, and never report it done."""
    transaction.lpush("tracked:alert:taken", row)


def main(branch: str) -> None:
    url = os.environ.get("REDIS", "redis://localhost:6379/0")
    # A BLMOVE that redis-py silently retries would take a second reading.
    server = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=WAIT_SECONDS + 10, protocol=2)
    worker = Worker(server, branch)
    signal.signal(signal.SIGTERM, worker.stop)
    signal.signal(signal.SIGINT, worker.stop)
    worker.run()


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m compose.tracked.worker", description=__doc__)
    parser.add_argument("branch", choices=["archive", "alert"])
    main(parser.parse_args().branch)
