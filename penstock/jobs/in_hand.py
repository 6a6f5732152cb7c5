"""What a consumer has of one server: kept from being claimed by others, and settled as it ends."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.core.connection import connect
from penstock.core.runner import Runner
from penstock.core.script import Script
from penstock.core.tasks import Tasks
from penstock.core.watchdog import NAME
from penstock.jobs.attempt import Attempt, Unit, attempts_of
from penstock.jobs.consumer import Consumer
from penstock.jobs.keys import JobKeys
from penstock.jobs.permits import Permit, Permits
from penstock.jobs.settlement import GONE, Settlement

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.jobs.ledger import Ledger

AWAY_SECONDS: Final = 5.0
"""How long jobs wait whose values cannot be read until they are looked at again."""
MAX_RENEWED: Final = 1_000
_lua: Final = Path(__file__).parent / "lua"
_renew: Final = Script.read(_lua / "renew.lua")
_log: Final = Log("penstock.jobs")


class InHand:
    """Attempts that ``runner`` has or had of ``node``: running, ended, or not begun."""

    def __init__(
        self, node: "Instance", keys: JobKeys, consumer: Consumer, runner: Runner[Unit], settlement: Settlement,
        permits: Permits | None, ledger: "Ledger | None", tasks: Tasks,
    ) -> None:  # fmt: skip
        self.node, self._keys, self._consumer, self.runner = node, keys, consumer, runner
        self._group = keys.group(consumer.group)
        self._settlement, self._permits, self._ledger, self._tasks = settlement, permits, ledger, tasks
        self._unused: list[Permit] = []
        """Permits of attempts that have ended, which go back at the end of this turn of the loop."""
        self.without_values = set["Instance"]()
        """Servers that have kept jobs from reading or writing their values."""

    def attempts(self) -> list[Attempt]:
        """Return them all."""
        runner = self.runner
        units = [*runner.running, *runner.suspects, *runner.waiting]
        return [*(each for each in attempts_of(units) if each._origin is self), *self._settlement.waiting()]

    def renumber(self, claimed: Attempt) -> bool:
        """Return whether a job that was claimed is in hand already: then that attempt has the number of the new one.

        So it is after this process stood still, or had no server, for so long that it claims what it has itself.
        """
        for attempt in self.attempts():
            if (attempt.entry, attempt.stream, attempt.why) == (claimed.entry, claimed.stream, None):
                attempt.number = claimed.number
                return True
        return False

    def has_again(self, attempt: Attempt) -> bool:
        """Return whether another attempt at the same entry is in hand."""
        runner, entry = self.runner, (attempt.stream, attempt.entry)
        units = [*runner.running, *runner.suspects, *runner.waiting]
        return any((each.stream, each.entry) == entry and each._origin is self for each in attempts_of(units))

    # Ends of attempts

    def done(self, attempt: Attempt, result: tuple[str, bytes] | None = None) -> None:
        """Settle a job that was done; ``result`` is the key of a value, and the value."""
        self._settlement.settle(attempt, "done", result=result)
        if self.without_values:
            self.without_values.discard(attempt._node)

    def again(self, attempt: Attempt, error: Any, seconds: float) -> None:
        """Have it tried again in ``seconds``."""
        self._settlement.settle(attempt, "again", error, seconds)

    def bury(self, attempt: Attempt, error: Any) -> None:
        """Settle it as a dead job."""
        self._settlement.bury(attempt, error)

    def hand_back(self, attempt: Attempt, *, has_begun: bool = False) -> None:
        """Let another consumer have it; it loses no attempt. One that never began is new once more."""
        is_new = attempt._is_new and attempt.number == 1 and not has_begun
        self._settlement.settle(attempt, "unread" if is_new else "back")

    def hand_back_for_a_while(self, attempt: Attempt, reason: str) -> None:
        """The same, while the server of its values is away."""
        node = attempt._node
        if node not in self.without_values:
            _log.warning("jobs wait for the server of their values", server=node.address, reason=reason)
        self.without_values.add(node)
        self._settlement.settle(attempt, "back", wait=AWAY_SECONDS)

    def flush(self) -> None:
        """Settle at once what would be settled at the end of this turn of the loop."""
        self._settlement.flush()

    def ended(self, attempt: Attempt) -> None:
        """Give the permit back of an attempt that runs no more."""
        permit, attempt._permit = attempt._permit, None
        if permit:
            self._unused.append(permit)
            if len(self._unused) == 1:
                self._tasks.begin(self._give_back())

    async def _give_back(self) -> None:
        permits, self._unused = self._unused, []
        assert self._permits
        with suppress(RedisError, OSError, PenstockError):  # they end by themselves
            await self._permits.give_back(permits)

    async def gone(self, stream: str, entries: Sequence[bytes]) -> None:
        """Note that jobs have ended that nobody settles."""
        if self._ledger:
            with suppress(RedisError, OSError, PenstockError):
                await self._ledger.gone(self.node, stream, entries)

    # Attempts that are given up

    def cancel(self, stream: str, entry: bytes) -> None:
        """Give up a job that somebody has cancelled: its entry is gone."""
        self._tasks.begin(self._forget_tries(stream, entry))
        for attempt in self.attempts():
            if (attempt.entry, attempt.stream) == (entry, stream):
                self._give_up(attempt, "cancelled")

    async def _forget_tries(self, stream: str, entry: bytes) -> None:
        tries = encoded(self._keys.of_group(stream, self._consumer.group)["tries"])
        with suppress(RedisError, OSError, PenstockError):
            await self.node.command("HDEL", tries, entry, entry + b":suspect")
        await self.gone(stream, [entry])

    def lost(self, attempt: Attempt) -> None:
        """Give up an attempt that is another consumer's by now."""
        self._give_up(attempt, "lost")
        where: dict[str, Any] = {"stream": attempt.stream, "group": attempt.group, "job": attempt.id}
        what = "the job is no longer this consumer's: it was not renewed in time, or the server has lost it"
        _log.warning(what, **where, server=self.node.address)

    def _end_without_entry(self, attempt: Attempt) -> None:
        """End a job whose entry was removed from the stream: nobody could try it again, and its producer waits."""
        self._give_up(attempt, "gone")
        self.bury(attempt, GONE)
        where: dict[str, Any] = {"stream": attempt.stream, "group": attempt.group, "job": attempt.id}
        _log.warning("the entry of a job was removed from its stream before it was done", **where)

    def _give_up(self, attempt: Attempt, why: str) -> None:
        attempt._give_up(why)
        if self.runner.forget(attempt):
            self.ended(attempt)

    # Leases

    async def renew(self) -> None:
        """Renew all, with their permits, and give up those that others have. Raise the last error, if any."""
        failed: Exception | None = None
        for stream, some in _pieces(self.attempts()):
            try:
                await self._renew(stream, some)
            except (RedisError, OSError, PenstockError) as error:  # others claim them, and then they are given up
                failed = error
        if failed:
            raise failed

    async def _renew(self, stream: str, attempts: Sequence[Attempt]) -> None:
        numbers = [attempt.number for attempt in attempts]
        lost, gone = await self.node.run(_renew, **self._named(stream, attempts))
        if self._permits:
            await self._permits.renew([each._permit for each in attempts if each._permit])
        for attempt, number in zip(attempts, numbers, strict=True) if lost or gone else ():
            if attempt.why is None and not attempt._is_settled and attempt.number == number:
                if attempt.entry in lost:
                    self.lost(attempt)
                elif attempt.entry in gone:
                    self._end_without_entry(attempt)

    async def renew_elsewhere(self) -> None:
        """Renew in another event loop all whose deadline is not over, without giving up what others have."""
        now, handlers = monotonic(), self._consumer.options.handlers
        attempts = [each for each in self.attempts() if now - each._begun < handlers[each.stream].deadline]
        if attempts:
            async with connect(self.node.url, name=NAME) as redis:
                await self._renew_through(redis, attempts)

    async def _renew_through(self, redis: Redis, attempts: Sequence[Attempt]) -> None:
        for stream, some in _pieces(attempts):
            await _renew(redis, **self._named(stream, some))
        if self._permits:
            await self._permits.renew([each._permit for each in attempts if each._permit], redis)

    def _named(self, stream: str, attempts: Sequence[Attempt]) -> dict[str, Any]:
        words = [word for attempt in attempts for word in (attempt.entry, attempt.number)]
        named = {"stream": self._keys.stream(stream), "group": self._group, "consumer": self._consumer.id}
        return named | {"words": words}


def _pieces(attempts: Iterable[Attempt]) -> list[tuple[str, list[Attempt]]]:
    """Return attempts of one stream each, as many as are renewed at once."""
    by_stream = dict[str, list[Attempt]]()
    for attempt in attempts:
        by_stream.setdefault(attempt.stream, []).append(attempt)
    return [
        (stream, found[first : first + MAX_RENEWED])
        for stream, found in by_stream.items()
        for first in range(0, len(found), MAX_RENEWED)
    ]
