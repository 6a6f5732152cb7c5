"""Completions of one producer, heard or read afterwards."""

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import ref

from redis.exceptions import RedisError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.core.tasks import Tasks
from penstock.jobs.completion import Completion, parse, parsed_entries
from penstock.jobs.errors import FinishTimeout, Rejected
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance

PAGE: Final = 1_000
SKEW_SECONDS: Final = 60.0
"""How far clocks of two servers may differ."""
FOLLOW_SECONDS: Final = 0.1
MAX_FOLLOW_SECONDS: Final = 15.0
"""Shortest and longest time between two looks at what is kept, for who asks afterwards."""
_log: Final = Log("penstock.jobs")


def _position(since: float) -> str:
    """Return from which id to read what came since a time (s since the epoch)."""
    return f"{max(0.0, since - SKEW_SECONDS) * 1000:.0f}"


class Waiting:
    """Waits until groups have completed one job; what comes twice from a group counts once."""

    def __init__(self, stream: str, job: str, since: float) -> None:
        self.stream, self.job, self.since = stream, job, since
        """``since`` is when it was sent (s since the epoch)."""
        self.read_from = ""
        """The id from which completions that are kept were not read yet; empty before the first look."""
        self.completed: dict[str, Completion] = {}
        self._waiters = set[asyncio.Future[None]]()
        """Of those who wait for the next completion."""

    def note(self, completion: Completion, *, is_kept: bool) -> None:
        """Note a completion: the first one of a group that is heard, the last one of those that are kept."""
        if is_kept:  # a dead job may have been sent again
            self.completed[completion.group] = completion
        else:
            self.completed.setdefault(completion.group, completion)
        for waiter in self._waiters:
            _wake(waiter)

    async def groups(
        self, groups: Iterable[str], timeout: float | None, *, reject: bool,  # noqa: ASYNC109
    ) -> dict[str, Completion]:  # fmt: skip
        """Return the completions of ``groups``. Raise ``FinishTimeout``, and ``Rejected`` at the first error."""
        wanted, loop = dict.fromkeys(groups), asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        while True:
            found = {group: self.completed[group] for group in wanted if group in self.completed}
            wrong = next((each for each in found.values() if reject and each.error is not None), None)
            if wrong:
                raise Rejected(wrong.group, wrong.error, found)
            if len(found) == len(wanted):
                return found
            if end is not None and loop.time() >= end:
                missing = ", ".join(group for group in wanted if group not in found)
                text = f"job {self.job} of {self.stream}: not completed within {timeout:g} s by {missing}"
                raise FinishTimeout(text, found)
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            timer = None if end is None else loop.call_at(end, _wake, waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                if timer:
                    timer.cancel()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class Completions:
    """Listens for the completions of one producer's jobs."""

    def __init__(self, servers: Servers, producer: str) -> None:
        self._servers, self._producer = servers, producer
        self._waiting = dict[tuple[str, str], ref[Waiting]]()
        """Those that somebody has, by stream and job."""
        self._confirmed = dict[str, asyncio.Future[None]]()
        self._tasks = Tasks(_log)

    async def expect(
        self, stream: str, job: str, *, since: float | None = None, on: "Instance | None" = None
    ) -> Waiting:
        """Return what waits for a job; once it returns, no completion goes unnoticed that our consumers publish.

        With ``since`` (s since the epoch) look for those that came before, too. If the job goes to a server ``on``, and
        that of the completions is away, these are listened for, and looked for, as soon as that is back.
        """
        key = stream, job
        found = self._waiting.get(key)
        waiting = found() if found else None
        if waiting is None:
            waiting = Waiting(stream, job, time.time() if since is None else since)
            self._waiting[key] = ref(waiting, partial(self._waiting.pop, key))
        confirmed = self._confirmed.get(stream)
        if confirmed is None or not confirmed.done():
            await self._listen(stream, on)
        if since is not None:
            waiting.read_from = await self._read(stream, waiting.read_from or _position(waiting.since))
        return waiting

    async def follow(self, waiting: Waiting) -> None:
        """Read what is kept from now on, ever less often: what was heard before ``expect`` may be kept after it."""
        seconds = FOLLOW_SECONDS
        while True:
            await asyncio.sleep(seconds)
            waiting.read_from = await self._catch_up(waiting.stream, waiting.read_from)
            seconds = min(2 * seconds, MAX_FOLLOW_SECONDS)

    async def _listen(self, stream: str, on: "Instance | None") -> None:
        node = self._servers.node(stream)
        if stream not in self._confirmed:
            channel = encoded(self._servers.keys.channel(stream, self._producer))
            self._confirmed[stream] = node.subscriber.add(channel, partial(self._heard, stream))
        if not self._confirmed[stream].done() and (on in (None, node) or node.is_up is None or not node.is_away):
            await self._servers.listening(node, self._confirmed[stream])

    def _heard(self, stream: str, message: bytes | None) -> None:
        if message is not None:
            self._note(parse(message, datetime.now(UTC)))
            return
        waiting = [each for (name, _), found in [*self._waiting.items()] if name == stream and (each := found())]
        if waiting:  # messages may have been missed
            first = min(waiting, key=lambda each: each.since)
            self._tasks.begin(self._catch_up(stream, _position(first.since)))

    async def _catch_up(self, stream: str, after: str) -> str:
        try:
            return await self._read(stream, after)
        except (RedisError, OSError, PenstockError) as error:
            _log.warning("completions may be missed", stream=stream, reason=str(error))
            return after

    async def _read(self, stream: str, after: str) -> str:
        """Read the completions that are kept from ``after`` on; return where to go on."""
        node, key = self._servers.node(stream), encoded(self._servers.keys.done(stream))
        while found := await node.command("XRANGE", key, after, "+", "COUNT", PAGE):
            for completion in parsed_entries(found):
                self._note(completion, is_kept=True)
            after = f"({decoded(found[-1][0])}"
            if len(found) < PAGE:
                break
        return after

    def _note(self, completion: Completion | None, *, is_kept: bool = False) -> None:
        found = completion and self._waiting.get((completion.stream, completion.job))
        waiting = found() if found else None
        if completion and waiting:
            waiting.note(completion, is_kept=is_kept)


def listener(stream: str, note: Callable[[Completion], None]) -> Callable[[bytes | None], None]:
    """Return what hears all completions of ``stream``."""

    def heard(message: bytes | None) -> None:
        completion = message and parse(message, datetime.now(UTC))
        if completion and completion.stream == stream:
            note(completion)

    return heard
