"""The answers of a provider: into the queue of a requester, and published to one that listens."""

import asyncio
from itertools import takewhile
from typing import Final, NamedTuple

from penstock.base.errors import Gone, Unavailable
from penstock.bus.host import Host
from penstock.bus.keys import direct_channel
from penstock.bus.queue import Queue
from penstock.bus.scripts import PUSH

MAX_TOGETHER: Final = 500
MAX_BYTES: Final = 1 << 16
"""Upper bounds of what goes with one call, unless a single answer is larger."""
MAX_DIRECT: Final = 1 << 12
"""Maximum number of bytes of an answer that is published, too: a subscriber for which too many wait is cut off."""
MAX_REQUESTERS: Final = 10_000
"""Maximum number of requesters that are remembered."""


class Answers:
    """Those of one provider."""

    def __init__(self, bus: Host) -> None:
        self._bus = bus
        self._lines: dict[str, _Line] = {}

    async def push(self, name: str, body: bytes, *, part: bool) -> bool:
        """Push an answer to the requester whose queue has this ``name``; return False if that does not exist.

        A ``part`` is announced only, so that it does not overtake the one before. Raise ``Unconfirmed`` if the reply
        was lost: then the requester may have the answer or not.
        """
        line = self._lines.get(name)
        if line is None:
            if len(self._lines) >= MAX_REQUESTERS:
                self._lines = {name: line for name, line in self._lines.items() if line.runs}
            line = self._lines[name] = _Line(self._bus, name)
        return await line.push(body, part=part)


class _Answer(NamedTuple):
    body: bytes
    part: bool
    arrives: "asyncio.Future[bool]"


class _Line:
    """The answers to one requester: one call is under way at a time, and what comes meanwhile goes together."""

    def __init__(self, bus: Host, name: str) -> None:
        self.runs = False
        """Whether a call is under way."""
        self._bus, self._queue = bus, Queue(bus, name)
        self._direct = direct_channel(name)
        self._waiting = list[_Answer]()

    async def push(self, body: bytes, *, part: bool) -> bool:
        if self.runs:
            answer = _Answer(body, part, asyncio.get_running_loop().create_future())
            self._waiting.append(answer)
            return await answer.arrives
        self.runs = True
        try:
            return await self._send([body], part=part)
        finally:
            if self._waiting:
                self._bus.spawn(self._run())
            else:
                self.runs = False

    async def _run(self) -> None:
        try:
            while some := self._next():
                try:
                    found = await self._send([each.body for each in some], part=some[0].part)
                except Exception as error:  # noqa: BLE001  # each caller gets it
                    _fail(some, error)
                else:
                    for each in some:
                        if not each.arrives.done():
                            each.arrives.set_result(found)
        finally:
            self.runs = False
            _fail(self._waiting, Unavailable("the bus was disconnected"))
            self._waiting.clear()

    def _next(self) -> list[_Answer]:
        """Remove and return the answers that go together next."""
        self._waiting = [each for each in self._waiting if not each.arrives.done()]  # its handler was cancelled
        alike = takewhile(lambda each: each.part == self._waiting[0].part, self._waiting[:MAX_TOGETHER])
        some, size = list[_Answer](), 0
        for each in alike:
            size += len(each.body)
            if some and size > MAX_BYTES:
                break
            some.append(each)
        del self._waiting[: len(some)]
        return some

    async def _send(self, bodies: list[bytes], *, part: bool) -> bool:
        direct = b"" if part or max(map(len, bodies)) > MAX_DIRECT else self._direct
        metadata, messages, msgid, _ = self._queue.keys  # without toack the ttl stays: only the requester renews it
        named = {"metadata": metadata, "messages": messages, "msgid": msgid, "channel": self._queue.available}
        named["direct"] = direct
        try:
            await self._queue.call_once(PUSH, **named, bodies=bodies)
        except Gone:
            return False
        return True


def _fail(answers: list[_Answer], error: Exception) -> None:
    for each in answers:
        if not each.arrives.done():
            each.arrives.set_exception(error)
