"""What a peer pushes to a queue: several calls go to the server at once, in order, and each is answered."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.base.errors import Full, WrongCall
from penstock.base.payload import as_payload
from penstock.bus import Queue
from penstock.bus.federation.frames import Call
from penstock.core.batches import MAX_BYTES, MAX_MESSAGES
from penstock.core.tasks import begin

if TYPE_CHECKING:
    from services.gateway.served import Served

MAX_EARLY: Final = 1_000
"""Maximum number of messages that wait for the queue to be attached."""
MAX_PUSHED: Final = 10_000
"""Maximum number of messages of one call."""


class _Push(NamedTuple):
    call: Call
    bodies: list[bytes]
    size: int
    counts: bool
    """Whether it counts as under way: not while nothing may come of it, since then the peer could not attach."""


class Pushes:
    """The pushes of one object."""

    def __init__(self, served: "Served", queue: Queue) -> None:
        self._served, self._queue = served, queue
        self._waiting: deque[_Push] = deque()
        self._messages = 0
        self._task: asyncio.Task[None] | None = None

    def push(self, call: Call) -> None:
        """Push one message."""
        if not call.values:
            raise WrongCall("push: expected a message")
        self._add(call, [as_body(call.values[0])])

    def push_all(self, call: Call) -> None:
        """Push several; the answer has their ids, even if the queue has no room for all."""
        bodies = call.values[0] if call.values else None
        if not isinstance(bodies, list) or not 0 < len(bodies) <= MAX_PUSHED:
            raise WrongCall(f"pushAll: expected an array of at most {MAX_PUSHED:,} messages")
        self._add(call, [as_body(each) for each in bodies])

    async def settle(self) -> None:
        """Wait until all is pushed, if the queue is attached."""
        while self._task is not None and self._queue.is_attached:
            await asyncio.shield(self._task)

    async def end(self) -> None:
        """Push what waits, or drop it if the queue was never attached."""
        await self.settle()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _add(self, call: Call, bodies: list[bytes]) -> None:
        attached = self._queue.is_attached
        if not attached and self._messages + len(bodies) > MAX_EARLY:
            raise Full(f"queue {self._queue.name}: {self._messages:,} messages wait for it to be attached already")
        found = _Push(call, bodies, sum(map(len, bodies)), attached)
        self._waiting.append(found)
        self._messages += len(bodies)
        if attached:
            self._served.peer.begins(len(bodies), found.size)
        if self._task is None:
            self._task = begin(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._queue.wait_attached()
                except Exception as error:  # noqa: BLE001  # such as that it was closed: the peer gets it
                    self._answer([self._waiting.popleft()], [], error)
                    continue
                await self._push(self._batch())
        finally:
            self._task = None

    def _batch(self) -> list[_Push]:
        """Return the calls whose messages one script pushes."""
        batch = [self._waiting.popleft()]
        many, size = len(batch[0].bodies), batch[0].size
        while self._waiting and many + len(self._waiting[0].bodies) <= MAX_MESSAGES and size < MAX_BYTES:
            batch.append(self._waiting.popleft())
            many, size = many + len(batch[-1].bodies), size + batch[-1].size
        return batch

    async def _push(self, batch: list[_Push]) -> None:
        ids, failed = list[int](), None
        try:
            ids = await self._queue.push_many([body for each in batch for body in each.bodies])
        except Exception as error:  # noqa: BLE001  # each call is answered with it
            ids, failed = error.ids if isinstance(error, Full) else [], error
        self._answer(batch, ids, failed)

    def _answer(self, batch: list[_Push], ids: list[int], error: Exception | None) -> None:
        served = self._served
        served.peer.count("pushed", len(ids))
        for call, bodies, size, counts in batch:
            own, ids = ids[: len(bodies)], ids[len(bodies) :]
            self._messages -= len(bodies)
            if counts:
                served.peer.ends(len(bodies), size)
            if len(own) == len(bodies):
                served.answer(call, None, own if call.method == "pushAll" else own[0])
            elif isinstance(error, Full) and call.method == "pushAll":
                served.answer(call, f"Full: {error}", own)
            elif error is not None:
                served.fail(call, error)


def as_body(value: Any) -> bytes:
    """Return a message as busmq pushes it: text as it is, anything else as JSON."""
    return as_payload(value, json=not isinstance(value, str))
