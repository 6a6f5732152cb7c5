"""Watches the event loop from a thread: what a processor blocks must not lose the jobs in hand to others."""

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.core.connection import connect

if TYPE_CHECKING:
    from penstock.jobs.worker import Worker

NAME: Final = "penstock-jobs-renew"
"""Name of the connections in CLIENT LIST."""
SHARE: Final = 12
"""How often it looks in the time after which others claim a job."""
LEAST_SECONDS: Final = 0.05
BLOCKED: Final = 3
"""Looks without a sign of life after which the event loop is blocked."""
_log: Final = Log("penstock.jobs")


class Watchdog:
    """Renews in a thread what ``worker`` has in hand while its event loop is blocked, and says by which job."""

    def __init__(self, worker: "Worker") -> None:
        self._worker, self._loop = worker, asyncio.get_running_loop()
        self._interval = max(LEAST_SECONDS, worker.options.claim_after / SHARE)
        self._beaten = time.monotonic()
        self._beat_next: asyncio.TimerHandle | None = None
        self._blames: dict[str, Any] | None = None
        """What has blocked the event loop, until it goes on."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        if self._beat_next:
            self._beat_next.cancel()

    def _beat(self) -> None:
        now = time.monotonic()
        blames, self._blames, seconds = self._blames, None, now - self._beaten
        self._beaten = now
        if blames is not None:
            _log.warning("the event loop goes on after it was blocked", **blames, seconds=round(seconds, 1))
        self._beat_next = self._loop.call_later(self._interval, self._beat)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            silent = time.monotonic() - self._beaten
            if silent < BLOCKED * self._interval:
                continue
            if self._blames is None:
                self._blames = self._running()
                _log.warning("a processor blocks the event loop", **self._blames, seconds=round(silent, 1))
            asyncio.run(self._renew())

    def _running(self) -> dict[str, Any]:
        """Return stream and job of the processor that runs."""
        task = asyncio.current_task(self._loop)
        for attempt in [*self._worker.in_hand]:
            if attempt._task is not None and attempt._task is task:
                return {"stream": attempt.stream, "group": attempt.group, "job": attempt.id}
        return {"group": self._worker.consumer.group, "jobs": len(self._worker.in_hand)}

    async def _renew(self) -> None:
        """Renew all whose deadline is not over."""
        for reader in self._worker.readers:
            now, handlers = time.monotonic(), self._worker.options.handlers
            attempts = [
                each for each in self._worker.held_by(reader) if now - each._begun < handlers[each.stream].deadline
            ]
            if attempts:
                try:
                    async with connect(reader.node.url, name=NAME) as redis:
                        await reader.renew_through(redis, attempts)
                except (RedisError, OSError, PenstockError) as error:
                    what = {"server": reader.node.address, "reason": str(error)}
                    _log.warning("cannot renew jobs while the event loop is blocked", **what)
