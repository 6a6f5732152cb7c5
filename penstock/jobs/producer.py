"""Send jobs, and hear when groups of consumers have done them."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from penstock.base.encoding import encoded
from penstock.base.errors import WrongCall
from penstock.core.tasks import begin
from penstock.core.wire import Pattern
from penstock.jobs.completion import Completion
from penstock.jobs.completions import Completions, Waiting, listener
from penstock.jobs.job import WEEK, Job
from penstock.jobs.keys import INLINE, checked_name, new_id
from penstock.jobs.servers import Servers

MAX_DELAY: Final = 31_536_000.0
MAX_INLINE: Final = 512
"""Maximum number of bytes of a value that lies in the entry, too: consumers of ours need not read it."""
MAX_HEARD: Final = 10_000
"""Completions that are kept for a loop that is slow."""
DRAWS: Final = 1_000
"""Ids that are drawn until one is on a server that answers."""


class Route(Enum):
    """``DISTRIBUTED``: jobs of a stream lie on all servers, each with its values; consumers read all servers."""

    DISTRIBUTED = "distributed"


DISTRIBUTED: Final = Route.DISTRIBUTED


@lru_cache(256)
def _named(names: tuple[str, ...]) -> str:
    """Return the field ``keys`` of an entry, as a part of JSON."""
    return ',"keys","[' + ",".join(f'\\"{name}\\"' for name in names) + ']"'


class Sent:
    """A job that was sent."""

    def __init__(
        self, job: Job, stream: str, entry: str | None, due: float | None, waiting: Waiting | None,
        groups: tuple[str, ...],
    ) -> None:  # fmt: skip
        self.job, self.stream = job, stream
        self.entry = entry
        """Its id in the stream; None if it waits for its time."""
        self.due = due
        """When it begins (s since the epoch); None if it was sent at once."""
        self._waiting, self._groups = waiting, groups

    def __repr__(self) -> str:
        return f"<Sent {self.job.id} to {self.stream}>"

    async def result(
        self, group: str, key: str, kind: Any = None, timeout: float | None = None,  # noqa: ASYNC109
    ) -> Any:  # fmt: skip
        """Wait until ``group`` has done the job, and return its value ``key``, as ``Job.get`` does.

        Raise ``Rejected`` if the group has rejected it, else as ``finished``.
        """
        done = await self.finished(timeout, reject=True)
        values = done[group].values if group in done else {}
        if key in values:
            return self.job._read(key, values[key], kind)
        [found] = await self.job.get(key, kind).pull()
        return found

    async def progress(self, group: str) -> Any:
        """Return what the consumer of ``group`` has said last of its progress; None if it has said nothing."""
        [found] = await self.job.get(f"progress:{group}").pull()
        return found

    async def finished(self, timeout: float | None = None, *, reject: bool = False) -> dict[str, Completion]:  # noqa: ASYNC109
        """Wait until all groups of ``wait_for`` have completed the job; return by group when, or with which error.

        Raise ``FinishTimeout`` after ``timeout`` seconds, with what is there, and with ``reject`` ``Rejected`` at the
        first error. A second call waits for the same.
        """
        if self._waiting is None:
            raise WrongCall("expected wait_for, the groups to wait for, where the job is sent")
        return await self._waiting.groups(self._groups, timeout, reject=reject)


class Producer:
    """Sends jobs under an ``id`` of its own: who begins again with the same id hears what was done meanwhile."""

    def __init__(self, servers: Servers, id: str | None = None) -> None:
        self._servers = servers
        self.id = new_id() if id is None else checked_name("producer", id, pattern=True)
        self._completions = Completions(servers, self.id)

    def job(self, id: str | None = None) -> Job:
        """Return a job, with a random id by default."""
        return Job(self._servers, id)

    async def send(
        self,
        stream: str,
        job: Job | Mapping[str, Any] | None = None,
        *,
        wait_for: Iterable[str] = (),
        route: str | Route | None = None,
        capped: int | None = None,
        delay: float = 0.0,
        key: str | None = None,
        ttl: float = WEEK,
    ) -> Sent:
        """Send a job, or one with the values in a mapping, to the groups of ``stream``. It is there once this returns.

        ``wait_for`` are groups for whose completion ``Sent.finished`` waits. ``route`` decides which of several servers
        has the stream, by default its name; its consumers need the same. ``capped`` is about how many jobs the stream
        keeps, done or not: older ones are lost. ``delay`` is in seconds. ``key`` is what limits are by. ``ttl`` is for
        values of a mapping, from when the job may begin.

        Raise ``Unavailable`` if the server stays away, and ``Unconfirmed`` if the connection was lost before its reply:
        then the job may be there or not.
        """
        checked_name("stream", stream, pattern=True)
        if not 0 <= delay <= MAX_DELAY:
            raise WrongCall(f"delay={delay}: expected seconds from 0 to {MAX_DELAY:,.0f}")
        if capped is not None and capped < 1:
            raise WrongCall(f"capped={capped}: expected at least 1 job")
        if not isinstance(job, Job):
            if job is not None and not isinstance(job, Mapping):
                raise WrongCall(f"expected a Job or a mapping of values, found {type(job).__name__}")
            values, job = job or {}, Job(self._servers, None)
            for name, value in values.items():
                job.set(name, value, ttl=ttl + delay)
        if isinstance(wait_for, str):
            raise WrongCall(f"wait_for={wait_for!r}: expected a list of groups")
        groups = tuple([checked_name("group", group) for group in wait_for]) if wait_for else ()
        if route is DISTRIBUTED and job._is_fresh:
            self._avoid_away(job)
        node = self._servers.node(job.id if route is DISTRIBUTED else stream if route is None else str(route))
        waiting = await self._completions.expect(stream, job.id, on=node) if groups else None
        sets = job._take_sets()
        if node is not job._node and sets:
            for name, (value, ms) in sets.items():
                job.set(name, value, ttl=ms / 1000)
            await job.push()
            sets = {}
        words: list[Any] = [
            len(sets), "" if capped is None else capped, f"{delay:.3f}" if delay else 0, new_id() if delay else "",
            self._fields(job, key),
        ]  # fmt: skip
        keys, size = list[str](), 0
        for name, (value, ms) in sets.items():
            keys.append(self._servers.keys.payload(job.id, name))
            words += value, ms, f"{INLINE}{name}" if len(value) <= MAX_INLINE and not delay else ""
            size += len(value)
        text = await self._servers.outgoing(node, stream).add(keys, words, size, is_delayed=delay > 0)
        if waiting:  # by the server's clock, which also says when completions were kept
            waiting.since = min(waiting.since, float(text) - delay if delay else int(text.partition("-")[0]) / 1000)
        return Sent(job, stream, None if delay else text, float(text) if delay else None, waiting, groups)

    def _fields(self, job: Job, key: str | None) -> str:
        """Return the fields of an entry, as JSON. No name has a quote or a backslash."""
        fields = f'["prd","{self.id}","job","{job.id}"'
        if job._known:
            fields += _named(tuple(job._known))
        if key is not None:
            fields += f',"key","{checked_name("key", key)}"'
        return fields + "]"

    def _avoid_away(self, job: Job) -> None:
        """Give a job whose id nobody knows one whose server answers, if one does."""
        if any(not node.is_away for node in self._servers.nodes):
            for _ in range(DRAWS):
                if not job._node.is_away:
                    return
                job._renew_id()

    async def finished(
        self, stream: str, job: str, groups: Iterable[str], timeout: float | None = None,  # noqa: ASYNC109
        *, reject: bool = False, since: float | None = None,
    ) -> dict[str, Completion]:  # fmt: skip
        """Wait as ``Sent.finished`` does for a job that this producer has sent, maybe in a former process.

        Completions of the last day are looked at, or those from ``since`` on (s since the epoch).
        """
        waiting = await self._completions.expect(stream, job, since=time.time() - 86_400 if since is None else since)
        following = begin(self._completions.follow(waiting))
        try:
            return await waiting.groups(groups, timeout, reject=reject)
        finally:
            following.cancel()

    @asynccontextmanager
    async def completions(self, stream: str) -> "AsyncIterator[asyncio.Queue[Completion]]":
        """Yield a queue that gets the completions of all producers' jobs of ``stream``; the oldest go if it is full."""
        queue = asyncio.Queue[Completion](MAX_HEARD)

        def note(completion: Completion) -> None:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(completion)

        node = self._servers.node(stream)
        pattern, hear = Pattern(encoded(self._servers.keys.channel(stream, "*"))), listener(stream, note)
        try:
            await self._servers.listening(node, node.subscriber.add(pattern, hear))
            yield queue
        finally:
            node.subscriber.remove(pattern, hear)
