"""Access in numbers: what was asked and answered since the last look."""

from bisect import bisect_left
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.script import Script

if TYPE_CHECKING:
    from redis.asyncio import Redis

LUA: Final = Path(__file__).parent / "lua"
_count: Final = Script.read(LUA / "count.lua")
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that are counted by name; all others count as ``other``."""
CLASSES: Final = {status: f"{status // 100}xx" for status in range(100, 600)}
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds (s) of the time that a request took: each request counts in the first that it does not exceed."""
WITHIN: Final = (*(f"within:{bound:g}" for bound in BOUNDS), "longer")
"""Names of the counters by time."""


class Access:
    """Counters to be written as a hash, and the slowest request."""

    def __init__(self) -> None:
        self._counters = Counter[str](requests=0)  # so that the hash is there from the beginning on
        self._answered = Counter[tuple[str, str, str]]()
        """How many requests had the same method, class of status and time, and are not in ``_counters`` yet."""
        self._received = self._sent = 0
        self.slowest = 0.0
        """Seconds from the head of a request to its answer, of the slowest one since ``take``."""

    @property
    def counters(self) -> Counter[str]:
        """Return what was counted since ``take``."""
        counters = self._counters
        for names, many in self._answered.items():
            for name in ("requests", *names):
                counters[name] += many
        if self._answered:
            counters.update(received=self._received, sent=self._sent)
            self._answered.clear()
            self._received = self._sent = 0
        return counters

    def answered(self, method: str, status: int, received: int, sent: int, seconds: float) -> None:
        """Count a request with ``received`` bytes of body, and its answer with ``sent``."""
        name = method if method in METHODS else "other"
        self._answered[name, CLASSES[status], WITHIN[bisect_left(BOUNDS, seconds)]] += 1
        self._received += received
        self._sent += sent
        if seconds > self.slowest:
            self.slowest = seconds

    def count(self, name: str, many: int = 1) -> None:
        """Count what a service counts besides; nothing is noted, nor written, for 0 of it."""
        if many:
            self._counters[name] += many

    def refused(self, status: int) -> None:
        """Count a request that breaks a rule of HTTP or a limit."""
        self._counters["refused"] += 1
        self._counters[f"refused:{status}"] += 1

    def take(self) -> tuple[Counter[str], float]:
        """Return the counters and the slowest request since the last call, and begin anew."""
        counters, slowest = self.counters, self.slowest
        self._counters, self.slowest = Counter[str](), 0.0
        return counters, slowest

    def put_back(self, counters: Counter[str], slowest: float) -> None:
        """Undo ``take``: what it returned could not be written."""
        self._counters.update(counters)
        self.slowest = max(self.slowest, slowest)


async def write_access(redis: "Redis", key: str, access: Access) -> None:
    """Add what was counted to the hash ``key``; put it back if that fails."""
    counted, slowest = access.take()
    if not counted:
        return
    try:
        await _count(redis, counters=key, slowest=f"{slowest:.3f}", counted=[*chain.from_iterable(counted.items())])
    except BaseException:
        access.put_back(counted, slowest)
        raise
