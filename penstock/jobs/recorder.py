"""Keeps completions that only pub/sub carries, which are those of Node's consumers, for producers that are away."""

import asyncio
from collections import Counter, deque
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis.exceptions import ConnectionError, RedisError

from penstock.base.encoding import encoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.base.payload import as_json
from penstock.core.connection import MAX_SILENCE
from penstock.core.link import Link, Outage
from penstock.core.script import Script
from penstock.core.tasks import begin
from penstock.core.wire import Pattern, Subscriber
from penstock.jobs.completion import Completion, parse
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


class Recorder:
    """Keeps completions of some streams on their server. Several may do so: a script keeps each once."""

    def __init__(self, node: "Instance", keys: JobKeys) -> None:
        self._node, self._keys = node, keys
        self._streams = Counter[str]()
        """How many want those of each stream."""
        self._waiting = deque[tuple[str, str, bytes]](maxlen=MAX_WAITING)
        self._listens = asyncio.Event()
        outage = Outage(
            _log, "server away", "server back", server=node.address, what="completions of hfxbus's consumers"
        )
        self._subscriber = Subscriber(node.url, NAME, lambda error: self._link.lost(error))
        self._subscriber.add(Pattern(encoded(keys.channels)), self._heard)
        self._link = Link(
            self._subscriber.open, self._shut, outage, look=self._look, every=PING_SECONDS, changed=self._changed
        )
        self._listening = False
        self._keeping: asyncio.Task[None] | None = None

    def add(self, stream: str) -> asyncio.Event:
        """Keep completions of ``stream``; return what is set while they are heard."""
        self._streams[stream] += 1
        if not self._listening:
            self._listening = True
            self._link.start()
        return self._listens

    async def discard(self, stream: str) -> None:
        """Keep those of ``stream`` no more, unless somebody else wants them."""
        self._streams[stream] -= 1
        self._streams += Counter()  # without those that nobody wants
        if not self._streams:
            await self.close()

    async def close(self) -> None:
        """Keep what was heard, and disconnect."""
        if self._listening:
            self._listening = False
            await self._link.close()
            await self._subscriber.close()
        if self._keeping:
            await asyncio.wait([self._keeping], timeout=MAX_SILENCE)
            self._keeping.cancel()

    async def _shut(self) -> None:
        self._subscriber.end(ConnectionError("the server is away"), told=False)

    async def _look(self) -> None:
        self._subscriber.ping()
        self._subscriber.cut_if_silent(MAX_SILENCE + PING_SECONDS)

    def _changed(self, error: Exception | None) -> None:
        if error is not None:
            self._listens.clear()

    def _heard(self, message: bytes | None) -> None:
        if message is None:  # the subscription is confirmed
            self._listens.set()
        elif not message.endswith(KEPT):
            completion = parse(message, datetime.now(UTC))
            if completion and completion.stream in self._streams:
                self._waiting.append((completion.stream, completion.job, _bounded(message, completion)))
                if self._keeping is None or self._keeping.done():
                    self._keeping = begin(self._keep(), _log)

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
