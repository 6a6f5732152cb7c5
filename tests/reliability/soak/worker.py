"""Worker that may be killed or cut off at any time: it keeps each message and reports `done` in one script.

It uses no code of Penstock: it does what docs/tracking.md requires of any worker.
"""

import json
import os
import random
import time
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.reliability.soak.payloads import xid_of

SETTLE: Final = """
-- Settle the oldest message in hand if it is ARGV[1], then take another one; return the oldest in hand.
for place = 1, #KEYS do
  local kind = redis.call('TYPE', KEYS[place]).ok
  if kind ~= 'list' and kind ~= 'none' then return redis.error_reply('WRONGTYPE ' .. KEYS[place]) end
end
local settles = redis.call('LINDEX', KEYS[1], -1) == ARGV[1]
if settles and ARGV[2] ~= '' then
  if ARGV[3] == 'keep' then redis.call('LPUSH', KEYS[2], ARGV[1]) end
  redis.call('LPUSH', KEYS[3], ARGV[2])
end
if settles then redis.call('RPOP', KEYS[1]) end
redis.call('LMOVE', KEYS[4], KEYS[1], 'RIGHT', 'LEFT')
return redis.call('LINDEX', KEYS[1], -1)
"""


class Worker:
    """Worker that takes from ``work``, copies to ``kept`` and reports to ``done``, except one in ten the first time.

    With ``loses`` above 0 it is broken: it reports every ``loses``-th message `done` without keeping it.
    """

    def __init__(self, environment: Any) -> None:
        self._redis: Any = Redis.from_url(environment["WORKER_REDIS"], retry=Retry(NoBackoff(), 0), socket_timeout=15)
        self._work, self._hand = environment["WORKER_WORK"], environment["WORKER_HAND"]
        self._kept, self._done = environment["WORKER_KEPT"], environment["WORKER_DONE"]
        self._plain = environment["WORKER_PLAIN"] == "True"
        self._loses, self._count = int(environment.get("WORKER_LOSES", 0)), 0
        self._rng = random.Random()
        self._silent: set[str] = set()
        """Correlation ids not reported yet; they are reported at the next delivery."""
        self._settle = self._redis.register_script(SETTLE)

    def work(self) -> None:
        while True:
            try:
                self._redis.blmove(self._work, self._hand, 0.5, "RIGHT", "LEFT")
                message = self._redis.lindex(self._hand, -1)
                while message is not None:
                    message = self._finish(message)
            except RedisError:
                time.sleep(0.05)

    def _finish(self, message: bytes) -> bytes | None:
        """Settle ``message``; return the next one, None if nothing waits."""
        xid = xid_of(message)
        answers = xid in self._silent or self._rng.random() < 0.9
        report = self._answer(message) if answers else ""
        (self._silent.discard if answers else self._silent.add)(xid)
        self._count += 1
        keeps = not self._loses or self._count % self._loses > 0
        keys = [self._hand, self._kept, self._done, self._work]
        following: bytes | None = self._settle(keys=keys, args=[message, report, "keep" if keeps else ""])
        return following

    def _answer(self, message: bytes) -> str:
        """Return the report that ``message`` is done: a bare number for a bare number if ``plain``, otherwise JSON."""
        xid = xid_of(message)
        if self._plain and message.isdigit():
            return xid
        return json.dumps({"xid": xid})


if __name__ == "__main__":
    Worker(os.environ).work()
