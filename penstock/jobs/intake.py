"""Makes units to handle of the entries that were read or claimed: with their permits, and the values of their jobs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError
from penstock.core.script import Script
from penstock.jobs.attempt import Attempt, Batch, Unit
from penstock.jobs.consumer import Consumer, Handler
from penstock.jobs.in_hand import InHand
from penstock.jobs.permits import Permit, Permits
from penstock.jobs.scheduler import LOST, Scheduler
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.jobs.ledger import Ledger

NEW, SUSPECT, DEAD = b"new", b"suspect", b"dead"
"""How a job came: see ``lua/tend.lua``."""
MAX_VALUES: Final = 500
"""Maximum number of values that are read at once."""
MAX_VALUE_BYTES: Final = 1 << 23
"""Bytes of values after which a read ends: meanwhile the server answers nobody."""
Entry = tuple[bytes, int, Sequence[bytes], bytes]
"""Its id, the number of the attempt, its fields, and how it came."""
_values: Final = Script.read(Path(__file__).parent / "lua" / "values.lua")


class Intake:
    """Entries of streams of one server; what cannot begin is settled."""

    def __init__(
        self, servers: Servers, consumer: Consumer, in_hand: InHand, scheduler: Scheduler, permits: Permits | None,
        ledger: "Ledger | None",
    ) -> None:  # fmt: skip
        self._servers, self._keys, self._consumer, self._options = servers, servers.keys, consumer, consumer.options
        self._in_hand, self._scheduler, self._permits, self._ledger = in_hand, scheduler, permits, ledger
        self.is_anew = False
        """Whether the group was made again, so that what is in hand may come as new."""
        self.paused = set[str]()
        """Streams of which no job begins."""

    async def accept(self, stream: str, found: Sequence[Entry], permits: list[Permit] | None = None) -> list[Unit]:
        """Return what may begin, each with one of ``permits`` if there are any."""
        attempts = await self._of_group(stream, found)
        if stream in self.paused:
            for attempt in attempts:
                self._in_hand.hand_back(attempt)
            return []
        handler = self._options.handlers[stream]
        if self._permits and permits is None:
            attempts = await self._permitted(attempts, self._permits)
        if handler.values and not all(each.values.keys() >= handler.wanted for each in attempts):
            attempts = await self._with_values(attempts, handler)
        if permits:
            for attempt in attempts:
                attempt._permit = permits.pop()
        for attempt in [each for each in attempts if each.number > self._options.attempts]:
            attempts.remove(attempt)
            self._in_hand.bury(attempt, LOST)
            self._in_hand.ended(attempt)
        if self._ledger:
            attempts = await self._noted(self._ledger, stream, attempts)
        size = handler.size
        if not size:
            return [*attempts]
        apart = [[each for each in attempts if each._is_suspect == is_suspect] for is_suspect in (False, True)]
        return [Batch(some[first : first + size]) for some in apart for first in range(0, len(some), size)]

    async def _of_group(self, stream: str, found: Sequence[Entry]) -> list[Attempt]:
        """Return attempts at jobs that are for this group, that are not in hand already, and not dead."""
        servers, group, in_hand = self._servers, self._consumer.group, self._in_hand
        attempts, others = list[Attempt](), list[bytes]()
        for entry, number, fields, how in found:
            attempt = Attempt(servers, stream, group, entry, number, fields, in_hand, in_hand.runner, is_new=how == NEW)
            if attempt._only_for != group:
                others.append(entry)
            elif (how == NEW and not self.is_anew) or not in_hand.renumber(attempt):
                if how == DEAD:
                    in_hand.bury(attempt, LOST)
                else:
                    attempt._is_suspect = how == SUSPECT
                    attempts.append(attempt)
        if others:  # sent again for another group
            names = encoded(self._keys.stream(stream)), encoded(self._keys.group(group))
            await in_hand.node.command("XACK", *names, *others)
        return attempts

    async def _noted(self, ledger: "Ledger", stream: str, attempts: list[Attempt]) -> list[Attempt]:
        """Note that attempts begin; return those that others do not have by now."""
        names = {"jobs": self._keys.stream(stream), "group": self._keys.group(self._consumer.group)}
        consumer = self._consumer.id
        lost = await ledger.begin(self._in_hand.node, attempts, **names, consumer=consumer, stream=stream)
        for attempt in attempts:
            if attempt.entry in lost:
                self._in_hand.lost(attempt)
                self._in_hand.ended(attempt)
        return [each for each in attempts if each.entry not in lost]

    async def _permitted(self, attempts: list[Attempt], permits: Permits) -> list[Attempt]:
        """Return those that have a permit; the others are claimed once there may be one."""
        by_key = permits.limit.by_key
        wanted = [(_without_spaces(each.key or "") if by_key else "", decoded(each.entry)) for each in attempts]
        granted, after = await permits.take(wanted, parks=True)
        if after is not None:
            self._scheduler.within(after)
        for attempt, permit in zip(attempts, wanted, strict=True):
            attempt._permit = permit
        return [attempt for attempt, is_ours in zip(attempts, granted, strict=True) if is_ours]

    async def _with_values(self, attempts: Sequence[Attempt], handler: Handler) -> list[Attempt]:
        """Read values of many jobs at once, of each server; return the jobs without those whose server is away.

        These are handed back for a while, and lose no attempt.
        """
        by_node = dict["Instance", list[Attempt]]()
        for attempt in attempts:
            if not attempt.values.keys() >= handler.wanted:
                by_node.setdefault(attempt._node, []).append(attempt)
        for node, some in by_node.items():
            names = [self._keys.payload(each.id, key) for each in some for key in handler.values]
            try:
                if node.is_away and node.is_up is not None:
                    raise node.reason
                found = await _read(node, [*dict.fromkeys(names)])
            except (RedisError, OSError, PenstockError) as error:
                for attempt in some:
                    self._in_hand.ended(attempt)
                    self._in_hand.hand_back_for_a_while(attempt, str(error))
                continue
            self._in_hand.without_values.discard(node)
            read = map(found.__getitem__, names)
            for attempt in some:
                attempt.values = dict(zip(handler.values, read, strict=False))
        return [each for each in attempts if not each._is_settled]


async def _read(node: "Instance", keys: Sequence[str]) -> dict[str, bytes | None]:
    """Return values by their keys, read some at a time."""
    found = dict[str, bytes | None]()
    while left := keys[len(found) : len(found) + MAX_VALUES]:
        if len(left) == 1:
            read = await node.ask("MGET", *left)
        else:
            read = await node.run(_values, keys=[*left], most=MAX_VALUE_BYTES)
        found |= zip(left, read, strict=False)
    return found


def _without_spaces(key: str) -> str:
    """Return a name for a key of a limit: a space ends it where it stands before the id of an entry."""
    return key.replace("%", "%25").replace(" ", "%20")
