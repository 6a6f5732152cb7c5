"""Workers on lists as processes, and whether each message has arrived once."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from redis import Redis

from penstock.core.orphaned import Watchdog
from tests.support.harness import ROOT, until

MESSAGES = [b"%d" % number for number in range(20_000)]
WORKER = [sys.executable, "-m", "tests.reliability.list_worker", "in", "out"]


@contextmanager
def worker(url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a worker; at the end let it stop."""
    with subprocess.Popen(WORKER, cwd=ROOT, env=os.environ | {"REDIS": url}) as process:
        watchdog = Watchdog(process.pid)
        try:
            yield process
            process.terminate()
            assert process.wait(30) in (0, -signal.SIGKILL, -signal.SIGTERM), "SIGTERM ends one that is starting"
        finally:
            process.kill()
            process.wait()
            watchdog.release()


def assert_all_arrived_once(redis: "Redis", messages: Sequence[bytes] = MESSAGES) -> None:
    until(lambda: redis.llen("out") >= len(messages), timeout=120)
    assert Counter(redis.lrange("out", 0, -1)) == Counter(messages)
    assert redis.llen("in") == 0
