"""One attempt at a job, as its processor sees it."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from penstock.base.encoding import decoded
from penstock.base.errors import Unavailable
from penstock.core.runner import Runner
from penstock.jobs.job import Job
from penstock.jobs.keys import names_in
from penstock.jobs.servers import Servers

DAY: Final = 86_400.0


class Attempt(Job):
    """A job that a consumer has: its values as of any ``Job``, and what is known of the attempt."""

    why: str | None = None
    """Why it is given up: ``deadline``, ``cancelled``, ``lost``, ``gone`` or ``stop``."""
    _is_told = False
    _is_settled = False
    _is_suspect = False
    """Whether it may have ended its consumer: it runs alone, or among suspects."""
    _asking = 0
    """Calls of its processor that wait for the server of its values."""
    _is_stranded = False
    """Whether that server has kept it from ending: then the attempt does not count."""
    _failure: BaseException | None = None
    _permit: tuple[str, str] | None = None
    """What its limit has given it: key and holder."""
    _task: "asyncio.Task[None] | None" = None
    _batch: "Batch | None" = None
    """What it is handled with."""

    def __init__(
        self,
        servers: Servers,
        stream: str,
        group: str,
        entry: bytes,
        number: int,
        fields: Sequence[bytes],
        origin: object,
        runner: Runner[Any],
        *,
        is_new: bool = True,
    ) -> None:
        id, producer, key, self._keys, self._only_for = None, b"", None, b"", group
        self.values: dict[str, bytes | None] = {}
        """What was read with the job: see ``values`` of ``Consumer.job``."""
        for place in range(0, len(fields), 2):
            name = fields[place]
            if name == b"job":
                id = decoded(fields[place + 1])
            elif name == b"prd":
                producer = fields[place + 1]
            elif name == b"key":
                key = decoded(fields[place + 1])
            elif name == b"keys":
                self._keys = fields[place + 1]
            elif name[:2] == b"v:" and is_new:  # else a former attempt may have changed it
                self.values[decoded(name[2:])] = fields[place + 1]
            elif name == b"for":
                self._only_for = decoded(fields[place + 1])
        super().__init__(servers, servers.new_id() if id is None else id, is_checked=True)  # as Node does without an id
        self.stream, self.group, self.entry, self.number = stream, group, entry, number
        """``number`` counts from 1."""
        self.producer, self.key = decoded(producer), key
        self._begun, self._is_new = time.monotonic(), is_new
        self._origin, self._runner = origin, runner
        """Where it comes from, and what runs it."""

    @property
    def is_given_up(self) -> bool:
        """Return whether its outcome does not count any more: a processor in a thread may look at it.

        At a stop, what a thread returns that has not looked still counts.
        """
        self._is_told = self._is_told or self.why is not None
        return self._is_told

    @property
    def _is_unaware(self) -> bool:
        """Return whether it was given up at a stop, and its processor has not asked for that."""
        return self.why == "stop" and not self._is_told

    @property
    def _known_keys(self) -> list[str]:
        """Return the keys of the values of its job, as far as its producer and its processor have named them."""
        return [*(dict.fromkeys(names_in(self._keys)) | self._known)]

    async def pull(self) -> list[Any]:
        """As ``Job.pull``. A job that fails because the server stays away loses no attempt."""
        self._asking += 1
        try:
            return await super().pull()
        except Unavailable:
            self._is_stranded = True
            raise
        except asyncio.CancelledError:
            self._note_trouble()
            raise
        finally:
            self._asking -= 1

    def _note_trouble(self) -> None:
        if self._asking and self._node.holds_up:
            self._is_stranded = True

    async def progress(self, value: Any) -> None:
        """Say how far it is: the value ``progress:GROUP`` of the job, for a day."""
        await Job(self._servers, self.id, is_checked=True).set(f"progress:{self.group}", value, ttl=DAY).push()

    def fail(self, error: BaseException) -> None:
        """Let this job of a batch fail, whatever becomes of the others."""
        self._failure = error

    def release(self) -> None:
        """Let another job begin in this one's place though it goes on; it is acknowledged when it ends."""
        self._runner.release(self._batch or self)

    def _give_up(self, why: str) -> None:
        """Cancel it."""
        if self.why is None:
            self.why = why
            self._note_trouble()
            if self._task:
                self._task.cancel()


class Batch:
    """Attempts that a processor gets together; they count as one for ``concurrency``."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = [*attempts]
        self._origin = attempts[0]._origin
        self._is_suspect = any(attempt._is_suspect for attempt in attempts)
        for attempt in attempts:
            attempt._batch = self


Unit = Attempt | Batch
"""What is handled at once."""


def attempts_of(units: Iterable[Unit]) -> list[Attempt]:
    """Return all attempts."""
    return [each for unit in units for each in (unit.attempts if isinstance(unit, Batch) else [unit])]
