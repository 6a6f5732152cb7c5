"""Push to queues of servers that may be away: see ``penstock.fallback``."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis.exceptions import ConnectionError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import Full, Gone, Moving, Refused, WrongCall
from penstock.base.log import Log
from penstock.base.urls import server_of
from penstock.bus.keys import QueueKeys, available_channel, ledger_key, metadata_key
from penstock.bus.scripts import ATTACH, MEET, PUSH_NOTED
from penstock.core.connection import connect
from penstock.core.instance import Instance
from penstock.core.once import too_large
from penstock.core.raw_connection import Packed
from penstock.fallback import Destination, Fallback, Ids, Met, Sent, opened

if TYPE_CHECKING:
    from penstock.bus.placement import Homes
    from penstock.outbox import Outbox, Spools

ON_DISK: Final = 0
"""Stands for the id of a message that waits on disk: the server will give it one."""
MANY: Final = 1_000
"""From this many queues on, those for which nothing waits are forgotten."""
START_BITS: Final = 52
"""Bits of the random number with which a ledger begins, which tells two ledgers of a queue apart."""
OFTEN: Final = 5
"""After this many attempts in a row a queue waits until a server comes or goes: thousands may have messages on disk."""
AWAY_SECONDS: Final = 30.0
"""The longest of these waits: it may be the server of another queue that is away."""
Wait = Callable[[], Awaitable[None]]
Options = Mapping[str, Any]
"""What a queue is created with: see ``attach.lua``."""
_log: Final = Log("penstock.bus")


class BusOutbox:
    """The outbox of a bus, while it is connected."""

    def __init__(self, outbox: "Outbox | str | Path", servers: list[Instance], homes: "Homes") -> None:
        self._outbox, self._servers, self._homes = outbox, servers, homes
        self._own = AsyncExitStack()
        self._opened: Outbox | None = None
        self._fallback: QueueFallback | None = None
        self.away = asyncio.Event()
        """Set while a server is away."""
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Open it. Raise as ``Outbox`` does."""
        self.away, self._changed = asyncio.Event(), asyncio.Event()  # of this event loop
        self._opened = await opened(self._outbox, self._own)

    def start(self) -> "QueueFallback":
        """Begin to send what waits there, unless it has begun."""
        if self._opened is None:
            raise WrongCall("the outbox is closed: expected `async with Bus(...) as bus:` around this call")
        if self._fallback is None:
            self._fallback = QueueFallback(
                self._opened, server_of(self._servers[0].url), self._homes, self.until_changed
            )
        return self._fallback

    async def close(self) -> None:
        """Send what waits if the servers are there, for some seconds."""
        self._opened = None
        if self._fallback:
            await self._fallback.close()
            self._fallback = None
        await self._own.aclose()

    def note(self) -> bool:
        """Note which servers are away; return whether each has been tried."""
        states = [each.is_up for each in self._servers]
        (self.away.set if False in states else self.away.clear)()
        self._changed.set()
        self._changed = asyncio.Event()
        return None not in states

    async def until_changed(self) -> None:
        """Wait until a server comes or goes, at most ``AWAY_SECONDS``; not at all if each is there."""
        if self.away.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(AWAY_SECONDS):
                    await self._changed.wait()

    @property
    def waiting(self) -> int:
        """Return how many messages wait on disk."""
        return self._fallback.waiting if self._fallback else 0

    def add(self, name: str, options: Options, bodies: list[bytes]) -> "asyncio.Future[Ids]":
        """Push to the queue ``name``, which is created with ``options`` if there is none: see ``Destination.add``."""
        return self.start().add(name, options, bodies)


class QueueFallback(Fallback["QueueDestination"]):
    """All queues of a bus: an outbox knows it by its first server."""

    def __init__(self, outbox: "Outbox", first: str, homes: "Homes", until_changed: Wait) -> None:
        self._outbox, self._homes, self._until_changed = outbox, homes, until_changed
        super().__init__(outbox.spools(first, of_bus=True))
        self._most = MANY

    def add(self, name: str, options: Options, bodies: list[bytes]) -> "asyncio.Future[Ids]":
        """See ``BusOutbox.add``."""
        if len(self._destinations) >= self._most:
            self._forget_idle()
        destination = self._destination(encoded(name))
        destination.options = options
        return destination.add(bodies)

    def _forget_idle(self) -> None:
        """End those for which nothing waits: a program may use any number of names, one after the other."""
        for name, destination in [*self._destinations.items()]:
            if destination.is_idle:
                destination.end()
                del self._destinations[name]
        self._most = max(MANY, 2 * len(self._destinations))

    def _new(self, name: bytes) -> "QueueDestination":
        return QueueDestination(decoded(name), self._outbox, self._spools, self._homes, self._until_changed)


class QueueDestination(Destination):
    """One queue, wherever it is.

    It is created if it does not exist, also by a program that has not attached to it: its options are a note in the
    outbox, written when the first messages are stored there.
    """

    def __init__(self, name: str, outbox: "Outbox", spools: "Spools", homes: "Homes", until_changed: Wait) -> None:
        self._outbox, self._homes, self._until_changed = outbox, homes, until_changed
        self._note_name = f"{spools.server} {json.dumps(name)}"
        self._noted = outbox.note_of(self._note_name)
        self.options: Options = json.loads(self._noted or "{}")
        self._keys, self._metadata = QueueKeys.of(name), metadata_key(name)
        self._more = {"ledger": ledger_key(name), "source": spools.source}
        self._available = available_channel(name)
        self._instance: Instance
        super().__init__(name, spools.of(encoded(name)), _log, "queue")

    async def greet(self, token: int) -> Met:
        instance, is_there = await self._homes.seek(self._metadata)
        try:
            if not is_there:  # one that has moved since must not be created again at its former server
                await instance.run_now(ATTACH, **self._keys.named, **self.options)
            asked = {"metadata": self._keys.metadata, **self._more, "token": token}
            known, last = await instance.run_now(MEET, **asked, start=secrets.randbits(START_BITS))
        except (Gone, Moving) as error:
            raise Refused(str(error)) from error
        self._instance, self._token_met = instance, token
        return Met(known, last)

    async def deliver(self, first: int, messages: list[bytes]) -> Sent:
        named = {**self._keys.named, **self._more, "token": self._token_met, "first": first}
        bodies = Packed.of(messages)
        try:
            id, many, last = await self._instance.run_now(PUSH_NOTED, **named, channel=self._available, bodies=bodies)
        except (Gone, Moving) as error:  # it has expired, or is at another server by now: `greet` finds out
            raise Refused(str(error)) from error
        return Sent(last, range(id, id + many))

    async def too_large(self, size: int) -> str | None:
        async with connect(self._instance.url) as redis:
            return await too_large(redis, size)

    async def wait(self, error: Exception) -> None:
        if self.outage.failures > OFTEN and isinstance(error, ConnectionError):
            await self._until_changed()

    async def before_storing(self) -> None:
        note = json.dumps(self.options)
        if note != self._noted:
            await self._outbox.publish_all([], self._note_name, note)
            self._noted = note


class Pushed(Protocol):
    """A queue that messages are pushed to."""

    name: str
    pushed: int

    @property
    def options(self) -> Mapping[str, Any]:
        """Return what ``attach`` was called with."""

    def check_pushable(self) -> None:
        """Raise ``Gone`` after the queue was closed, ``WrongCall`` before ``attach`` was called."""

    def emit(self, event: str, *values: Any) -> None:
        """Call the listeners of ``event``."""


class StoredPushes:
    """The pushes of a queue of a bus with an outbox."""

    def __init__(self, queue: Pushed, outbox: BusOutbox) -> None:
        self._queue, self._outbox = queue, outbox
        self._under_way = 0
        self.task: asyncio.Future[None] | None = None
        """Ends once no push is under way."""

    def add(self, body: bytes) -> "asyncio.Future[int]":
        """Push one message; the result is its id, or ``ON_DISK``."""
        push: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            added = self._add([body])
            added.add_done_callback(partial(_finish, push))
            push.add_done_callback(partial(_cancel, added))
        except Gone as error:
            push.set_exception(error)
        return push

    async def add_batches(self, found: AsyncIterable[list[bytes]], ids: list[int]) -> None:
        """Push each of ``found``, behind all that was pushed before; append their ids to ``ids``.

        While one is under way, the next is packed, and joins the line only if that succeeds.
        """
        last: list[bytes] = []
        pushed: asyncio.Future[Ids] | None = None

        async def end() -> None:
            if pushed is not None:
                try:
                    got = await pushed
                except Full as error:
                    ids.extend(error.ids)
                    raise
                ids.extend(got or [ON_DISK] * len(last))

        try:
            async for bodies in found:
                await end()
                last, pushed = bodies, self._add(bodies)
                await asyncio.sleep(0)  # sends it
        except asyncio.CancelledError:
            if pushed is not None:
                pushed.cancel()
            raise
        except Exception:
            if pushed is not None and not pushed.done():  # what failed is not the push
                await end()
            raise
        await end()

    def fail(self, error: Exception) -> None:
        """Do nothing: no push waits for an ``attach``."""

    def _add(self, bodies: list[bytes]) -> "asyncio.Future[Ids]":
        queue = self._queue
        queue.check_pushable()
        added = self._outbox.add(queue.name, queue.options, bodies)
        if not self._under_way:
            self.task = asyncio.get_running_loop().create_future()
        self._under_way += 1
        added.add_done_callback(partial(self._ended, len(bodies)))
        return added

    def _ended(self, messages: int, added: "asyncio.Future[Ids]") -> None:
        error = None if added.cancelled() else added.exception()
        if not added.cancelled():
            self._queue.pushed += len(error.ids) if isinstance(error, Full) else 0 if error else messages
        self._under_way -= 1
        if not self._under_way:
            if self.task and not self.task.done():
                self.task.set_result(None)
            self.task = None
            self._queue.emit("drain")


def check_outbox(outbox: object, urls: tuple[str, ...]) -> None:
    """Raise ``WrongCall`` if a bus with servers at ``urls`` cannot use ``outbox``."""
    if outbox is not None and not urls:
        raise WrongCall("outbox: expected a server of its own, since queues of other sites do not use it")


def _cancel(added: "asyncio.Future[Ids]", push: "asyncio.Future[int]") -> None:
    if push.cancelled():
        added.cancel()


def _finish(push: "asyncio.Future[int]", added: "asyncio.Future[Ids]") -> None:
    if push.done():  # cancelled
        return
    error = None if added.cancelled() else added.exception()
    if error is not None:
        push.set_exception(error)
    else:
        push.set_result((added.result() or (ON_DISK,))[0])


__all__ = ["ON_DISK", "BusOutbox", "StoredPushes", "check_outbox"]
