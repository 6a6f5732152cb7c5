"""Sends jobs: one at once, and those that come until its reply together, by one call of a script."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.script import Script
from penstock.core.tasks import Tasks
from penstock.core.wire import Reply
from penstock.jobs.keys import JobKeys

if TYPE_CHECKING:
    from penstock.core.instance import Instance

MAX_JOBS: Final = 100
MAX_BYTES: Final = 1 << 20
MAX_VALUES: Final = 2_000
"""Maximum number of of a call; one job always goes."""
_send: Final = Script.read(Path(__file__).parent / "lua" / "send.lua")


class _Batch:
    """Jobs that go together."""

    __slots__ = ("has_delayed", "keys", "size", "waiting", "words")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.words: list[Any] = []
        self.waiting: list[asyncio.Future[str]] = []
        self.size = 0
        self.has_delayed = False


class Outgoing:
    """Jobs for one stream of one server."""

    def __init__(self, node: "Instance", keys: JobKeys, stream: str) -> None:
        self._node = node
        named = {"stream": keys.stream(stream), "control": keys.control(stream)}
        self._named = (named, {**named, "later": keys.later(stream)})
        """Of calls without and with jobs that wait for their time."""
        self._calls = [_send.fixed(**each) for each in self._named]
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._under_way = 0
        """Calls without a reply yet."""
        self._batch = _Batch()

    def add(self, keys: list[str], words: list[Any], size: int, *, is_delayed: bool) -> "asyncio.Future[str]":
        """Send a job soon: keys of its values, what ``send.lua`` needs of it and of them, and the bytes of them."""
        batch = self._batch
        if batch.waiting and (
            len(batch.waiting) >= MAX_JOBS or batch.size + size > MAX_BYTES or len(batch.keys) + len(keys) > MAX_VALUES
        ):
            self._flush()
            batch = self._batch
        batch.size += size
        batch.keys += keys
        batch.words += words
        batch.has_delayed = batch.has_delayed or is_delayed
        sent: asyncio.Future[str] = self._loop.create_future()
        batch.waiting.append(sent)
        if not self._under_way:
            self._flush()
        return sent

    def _flush(self) -> None:
        """Send what waits; what comes until the reply waits for it, and goes together."""
        batch = self._batch
        if batch.waiting:
            self._batch = _Batch()
            self._under_way += 1
            packed = self._calls[batch.has_delayed].pack(batch.keys, batch.words, batch.size)
            if self._node.send(packed, partial(self._replied, batch)) is None:
                self._replied(batch, None)

    def _replied(self, batch: _Batch, reply: Reply | None) -> None:
        if reply is None or reply.error:
            self._tasks.begin(self._again(batch, reply))
            return
        self._done(batch, reply.value())

    async def _again(self, batch: _Batch, reply: Reply | None) -> None:
        """Find out what an error means, and send it again if the server has not executed it."""
        named = {**self._named[batch.has_delayed], "keys": batch.keys, "words": batch.words}
        try:
            found = await self._node.finish(reply, _send, **named)
        except Exception as error:  # noqa: BLE001  # who waits gets it
            self._done(batch, error=error)
        else:
            self._done(batch, found)

    def _done(self, batch: _Batch, found: Sequence[bytes] = (), error: Exception | None = None) -> None:
        if error:
            for sent in batch.waiting:
                if not sent.done():
                    sent.set_exception(error)
        else:
            for sent, entry in zip(batch.waiting, found, strict=True):
                if not sent.done():
                    sent.set_result(entry.decode())
        self._under_way -= 1
        self._flush()
