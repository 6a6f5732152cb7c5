"""Keeps completions that only pub/sub carries, which are those of Node's consumers, for producers that are away."""

import asyncio
from collections import Counter, deque
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.base.payload import as_json
from penstock.core.connection import MAX_SILENCE
from penstock.core.patience import BACKOFF
from penstock.core.script import Script
from penstock.core.wire import Pattern, Subscriber
from penstock.jobs.completions import Completion, parse
from penstock.jobs.errors import MAX_MESSAGE
from penstock.jobs.keys import CAPACITY, KEPT, JobKeys

if TYPE_CHECKING:
    from penstock.core.instance import Instance

NAME: Final = "penstock-jobs-keep"
"""Name of the connection in CLIENT LIST."""
WINDOW: Final = 60
"""Seconds in which all that keep a completion hear it."""
MAX_WAITING: Final = 10_000
"""Completions that wait for the server; then the oldest are lost."""
MAX_AT_ONCE: Final = 100
MAX_BYTES: Final = 65_536
"""Maximum number of bytes of a completion; of a longer one only the beginning of its error is kept."""
PING_SECONDS: Final = 5.0
_record: Final = Script.read(Path(__file__).parent / "lua" / "record.lua")
_log: Final = Log("penstock.jobs")


class Keeper:
    """Keeps completions of some streams on their server. Several may do so: a script keeps each once."""

    def __init__(self, node: "Instance", keys: JobKeys) -> None:
        self._node, self._keys = node, keys
        self._streams = Counter[str]()
        """How many want those of each stream."""
        self._waiting = deque[tuple[str, str, bytes]](maxlen=MAX_WAITING)
        self._listens, self._cut = asyncio.Event(), asyncio.Event()
        self._failures = 0
        self._listening: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None

    def add(self, stream: str) -> asyncio.Event:
        """Keep completions of ``stream``; return what is set while they are heard."""
        self._streams[stream] += 1
        if self._listening is None:
            subscriber = Subscriber(self._node.url, NAME, self._lost)
            subscriber.add(Pattern(encoded(self._keys.channels)), self._heard)
            self._listening = asyncio.create_task(self._listen(subscriber))
        return self._listens

    async def discard(self, stream: str) -> None:
        """Keep those of ``stream`` no more, unless somebody else wants them."""
        self._streams[stream] -= 1
        self._streams += Counter()  # without those that nobody wants
        if not self._streams:
            await self.close()

    async def close(self) -> None:
        """Keep what was heard, and disconnect."""
        task, self._listening = self._listening, None
        if task:
            self._listens.clear()
            task.cancel()
            await asyncio.wait([task])
        if self._keeping:
            await asyncio.wait([self._keeping], timeout=MAX_SILENCE)
            self._keeping.cancel()

    async def _listen(self, subscriber: Subscriber) -> None:
        try:
            while True:
                self._cut.clear()
                try:
                    await subscriber.open()
                except (RedisError, OSError) as error:
                    self._lost(error)
                while subscriber.is_open:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(PING_SECONDS):
                            await self._cut.wait()
                    subscriber.ping()
                    subscriber.cut_if_silent(MAX_SILENCE + PING_SECONDS)
                await asyncio.sleep(BACKOFF.delay_after(self._failures))
        finally:
            await subscriber.close()

    def _lost(self, error: Exception) -> None:
        self._listens.clear()
        self._cut.set()
        self._failures += 1
        if self._failures == 1:
            what = {"server": self._node.address, "reason": str(error)}
            _log.warning("completions of hfxbus's consumers are not kept until it is connected again", **what)

    def _heard(self, message: bytes | None) -> None:
        if message is None:
            self._failures = 0
            self._listens.set()
        elif not message.endswith(KEPT):
            completion = parse(message, datetime.now(UTC))
            if completion and completion.stream in self._streams:
                self._waiting.append((completion.stream, completion.job, _bounded(message, completion)))
                if self._keeping is None or self._keeping.done():
                    self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while self._waiting:
            stream, words = self._waiting[0][0], list[str | bytes]()
            while self._waiting and self._waiting[0][0] == stream and len(words) < 2 * MAX_AT_ONCE:
                words += self._waiting.popleft()[1:]
            done, heard = self._keys.done(stream), self._keys.heard(stream)
            try:
                await self._node.run(_record, done=done, heard=heard, capacity=CAPACITY, window=WINDOW, words=words)
            except (RedisError, OSError, PenstockError) as error:
                what = {"stream": stream, "many": len(words) // 2, "reason": str(error)}
                _log.warning("completions of hfxbus's consumers were not kept", **what)


def _bounded(message: bytes, completion: Completion) -> bytes:
    """Return a message, or, if it is very long, one that says the same with the beginning of its error."""
    if len(message) <= MAX_BYTES:
        return message
    error = completion.error if isinstance(completion.error, dict) else {"message": completion.error}
    short = {name: str(error.get(name, ""))[:MAX_MESSAGE] for name in ("name", "message", "code")}
    found = {"str": completion.stream, "grp": completion.group, "job": completion.job, "err": short}
    return as_json(found)
