"""Breakers: how long the lists of a rule make a request wait, measured, and which request would come too late."""

from collections.abc import Sequence
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Final

from penstock.base.encoding import encoded
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicRead
from penstock.core.metrics import parse_metric
from services.hrouter.rule import Rule

if TYPE_CHECKING:
    from redis.asyncio import Redis

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the lengths of lists."""
MAX_LISTS: Final = 1_000
"""Lists that breakers count; one look reads them all."""
ALPHA: Final = 0.05
"""Weight of one message in the moving average."""
WARM: Final = 10
"""Messages that must have left before the average counts."""
MARGIN: Final = 1.25
"""How much longer a wait is taken to be: a list kept as long as just possible would serve half of its requests late."""
MOST_WEIGHT: Final = 0.5
"""Weight of all messages that left between two looks: a batch that a service moves at once is no rate."""
MOST_INSTANCES: Final = 10
"""Maximum number of instances that are taken to let requests pass between two looks."""
MAX_RETRY_AFTER: Final = 300
"""Seconds; nobody knows for how long a list stands still, and a client shall notice that it is over."""


class Gate:
    """Lists through which the same requests go: measures how long a new one waits, and stops those that are in vain.

    Of what went in and what is left follows how many messages have left. Only while the lists were never empty does
    that tell how fast they can be, otherwise how fast they are at least. No function reads a clock or a key.
    """

    def __init__(self, lists: Sequence[str]) -> None:
        self.lists = lists
        self._seconds = 0.0
        """For each message that leaves: a moving average."""
        self._measured = 0
        """Messages that it is of; 0 for none."""
        self._at, self._length, self._delivered, self._left = 0.0, 0, 0, 0
        """Of the last look: its time, what waited, what had been delivered, and the difference."""
        self._since, self._base, self._never_empty = 0.0, 0, True
        """Time and difference of the last look at which messages had left, and whether some waited ever since."""
        self._passed = 0
        """Requests that have passed since the last look, here."""
        self._share = 1.0
        """How many passed for each of these between the two looks before, at all instances together."""

    def look(self, now: float, delivered: int, length: int) -> None:
        """Learn that ``length`` messages wait at time ``now`` (s) in the lists, which were given ``delivered``."""
        left = delivered - length
        if self._length == 0 or delivered < self._delivered:
            self._begin(now, left)
        else:
            self._never_empty &= left - self._left < self._length
            if left > self._base:
                self._learn((now - self._since) / (left - self._base), left - self._base)
                self._begin(now, left)
        if self._passed:
            self._share = min(max((delivered - self._delivered) / self._passed, 1), MOST_INSTANCES)
        self._at, self._length, self._delivered, self._left = now, length, delivered, left
        self._passed = 0

    def _begin(self, now: float, left: int) -> None:
        self._since, self._base, self._never_empty = now, left, True

    def _learn(self, seconds: float, count: int) -> None:
        """Note that ``count`` messages have left, each in ``seconds``: at most, if the lists were empty meanwhile."""
        if not self._never_empty and (self._measured == 0 or seconds > self._seconds):
            return
        known = self._measured + count
        weight = max(min(1 - (1 - ALPHA) ** count, MOST_WEIGHT), count / known)
        self._seconds += weight * (seconds - self._seconds)
        self._measured = min(known, ceil(1 / ALPHA))

    @property
    def turn(self) -> float:
        """Return when a request that passes now will have left the lists (s since the epoch).

        Lists from which nothing leaves are expected to stand still for as long again.
        """
        each = self._seconds if self._measured >= WARM else 0
        still = max(self._at - self._since - each, 0) if self._length else 0
        return self._at + MARGIN * (still + (self._length + self._passed * self._share) * each)

    def admits(self, deadline: float) -> bool:
        """Return whether a request passes: whether its turn comes before its deadline.

        No request is needed to find out whether the lists are served again: they become shorter.
        """
        if self.turn > deadline:
            return False
        self._passed += 1
        return True

    def retry_after(self, now: float) -> int:
        """Return the seconds after which a new request may have its turn."""
        return min(max(ceil(self.turn - now), 1), MAX_RETRY_AFTER)


def gates_of(rules: Sequence[Rule]) -> dict[str, Gate]:
    """Return the gate of each list that a breaker counts; rules that share a list share its gate."""
    groups: list[set[str]] = []
    for rule in rules:
        if rule.breaker:
            group = {rule.to, *rule.waits}
            apart = [each for each in groups if each.isdisjoint(group)]
            group.update(*(each for each in groups if each not in apart))
            groups = [*apart, group]
    return {name: gate for gate in map(Gate, map(sorted, groups)) for name in gate.lists}


class Lengths:
    """Reads for the gates of ``rules``, at one instant, what all instances of a namespace delivered, and what waits."""

    def __init__(self, redis: "Redis", keys: Keys, rules: Sequence[Rule]) -> None:
        self._redis, self._delivered = redis, encoded(keys.metric("delivered"))
        self.gates = gates_of(rules)
        names = {rule.to for rule in rules}
        gates = dict.fromkeys(self.gates.values())
        self._outs = {gate: [encoded(name) for name in gate.lists if name in names] for gate in gates}
        self._looked = 0.0

    async def look(self, now: float) -> None:
        """Read them, unless that was done within ``LOOK_SECONDS`` before ``now`` (s since the epoch)."""
        if not self.gates or now - self._looked < LOOK_SECONDS:
            return
        async with AtomicRead(self._redis) as snapshot:
            snapshot.time()
            for gate, outs in self._outs.items():
                snapshot.hmget(self._delivered, outs)
                for name in gate.lists:
                    snapshot.llen(encoded(name))
            (seconds, micros), *replies = await snapshot.execute()
        self._looked, found = seconds + micros / 1e6, iter(replies)
        for gate in self._outs:
            delivered = sum(int(parse_metric(field) or 0) for field in next(found))
            gate.look(self._looked, delivered, sum(islice(found, len(gate.lists))))
