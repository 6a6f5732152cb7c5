"""The lists of one server: connections, renewal of leases, and the producer's side."""

import asyncio
import signal
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from redis.exceptions import ConnectionError, MovedError, RedisError, TimeoutError

from penstock.base.errors import PenstockError, Unavailable, Unconfirmed, WrongCall
from penstock.base.log import Log
from penstock.base.payload import Payload, as_bytes, as_json
from penstock.base.stop_signals import StopSignals
from penstock.core.batches import MAX_BYTES, MAX_MESSAGES, batches, payload_batches
from penstock.core.connection import MAX_SILENCE, connect
from penstock.core.consumer import Consumer, Consumers
from penstock.core.mutex import Mutex
from penstock.core.once import SMALLEST_LIMIT, too_large
from penstock.core.raw_connection import ANSWERS, Packed, RawConnection, pack
from penstock.core.script import translate_error
from penstock.lists.holding import OWN, Burial
from penstock.lists.message import Message
from penstock.lists.server import NAME, Server
from penstock.lists.source import ListSource

if TYPE_CHECKING:
    from penstock.lists.fallback import ListFallback
    from penstock.lists.work import Work
    from penstock.outbox import Outbox

MAX_ATTEMPTS: Final = 1_000_000
_log: Final = Log("penstock.lists")


class Lists:
    """The lists of one server: ``async with Lists("redis://localhost:6379/0") as lists: await lists["in"].push("x")``.

    ``patience`` is how long (s) a command waits while the server is away, full or read-only, before it raises
    ``Unavailable``; None waits without end. ``lease`` is how long (s) a consumer lives that sends nothing: then others
    adopt what it holds. A thread renews it while a handler blocks the event loop. ``stop_signals``, e.g.
    ``[signal.SIGTERM]``, call ``stop``.

    ``outbox`` is a ``penstock.outbox.Outbox``, or the data directory of one: while the server is out of reach ``push``
    stores there and returns, and what is stored is pushed in order, once, when the server is back. Only one process at
    a time uses a data directory.
    """

    def __init__(
        self,
        url: str,
        *,
        patience: float | None = 60.0,
        lease: float = 30.0,
        stop_signals: Iterable[signal.Signals] = (),
        outbox: "Outbox | str | Path | None" = None,
    ) -> None:
        self.server = Server(url, patience, lease, _log)
        self.redis = self.server.redis
        self.consumers = Consumers(_log, "async with Lists(...) as lists:")
        """Those that take messages now."""
        self._signals = StopSignals(stop_signals, self.stop)
        self._producer, self._sending = RawConnection(connect(url, name=NAME), returns=ANSWERS), Mutex()
        self._line = list[_Push]()
        """Pushes that are not sent yet."""
        self._outbox, self._own = outbox, AsyncExitStack()
        self._fallback: ListFallback | None = None

    @property
    def waiting(self) -> int:
        """Return how many messages wait in the outbox for this server."""
        return self._fallback.waiting if self._fallback else 0

    @property
    def patience(self) -> float | None:
        """Return how long (s) a command waits; None without end."""
        return self.server.patiently.seconds

    @property
    def stopping(self) -> bool:
        """Return whether a stop signal has come, or ``stop`` was called: loops end after the message in hand."""
        return self.consumers.stopping

    def __getitem__(self, name: Payload) -> "List":
        return List(self, name)

    def work(self, namespace: str, source: Payload | None = None) -> "Work":
        """Return the requests of the mdispatch with this namespace, taken from ``source``, by default its ``out``."""
        from penstock.lists.work import Work

        return Work(self.server, self.consumers, namespace, source)

    async def __aenter__(self) -> Self:
        self._signals.check()
        self.server.patiently.hurries = False
        if self._outbox is not None:
            from penstock.fallback import opened
            from penstock.lists.fallback import ListFallback

            self._fallback = ListFallback(self.server.url, await opened(self._outbox, self._own), NAME, self.redis)
        self._signals.enter(asyncio.get_running_loop())
        await self.consumers.__aenter__()
        self.consumers.tasks.begin(self._cut_silent())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signals.leave()
        self.stop()  # loops of other tasks end
        try:
            await self.consumers.leave()
        finally:
            await self._close()
        self.consumers.raise_unheard()

    async def _close(self) -> None:
        await self.consumers.close()
        if self._fallback:
            await self._fallback.close()
            self._fallback = None
        await self._own.aclose()
        await self._producer.close()
        await self._producer.redis.aclose()
        await self.redis.aclose()

    def stop(self) -> None:
        """End every loop over messages: after the message in hand, or at once if it waits for one.

        What was taken ahead goes back at once.
        """
        self.server.patiently.hurries = True
        self.consumers.stop()

    async def push(self, name: bytes, messages: list[bytes]) -> None:
        """Push ``messages`` with one LPUSH, the last of them newest."""
        self.consumers.check_entered()
        if self._fallback:
            await self._fallback.push(name, messages)
            return
        body = Packed.of(messages)
        largest = max(map(len, messages)) if len(body.data) > SMALLEST_LIMIT else 0
        await self.server.patiently(lambda: self._sent(_Push(name, body, largest)), self._producer.redis)

    async def _sent(self, push: "_Push") -> None:
        """Send ``push`` with all that wait while another call is under way: who comes first sends for all."""
        self._line.append(push)
        try:
            async with self._sending:
                while push.outcome is None:
                    await self._send_line()
        finally:
            if push.outcome is None and push in self._line:  # cancelled before it was sent
                self._line.remove(push)
        if isinstance(push.outcome, Exception):
            raise push.outcome

    async def _send_line(self) -> None:
        """Send the oldest pushes with one call, and note what became of each."""
        pushes = next(batches(tuple(self._line), lambda each: len(each.body.data)))
        del self._line[: len(pushes)]
        outcomes: list[Any] = [Unconfirmed("another call was cancelled")] * len(pushes)
        try:
            outcomes = await self._call(pushes)
        finally:
            for push, outcome in zip(pushes, outcomes, strict=True):
                push.outcome = outcome

    async def _call(self, pushes: "list[_Push]") -> list[Any]:
        """Return the reply to each push, or the error that it raises."""
        try:
            await self._producer.send(b"")  # connects; what fails until here has sent nothing
        except (RedisError, OSError) as error:
            return [error] * len(pushes)
        try:
            await self._producer.send(pack([("LPUSH", each.name, each.body) for each in pushes]))
            replies = await self._producer.receive(len(pushes))
        except (ConnectionError, TimeoutError) as error:
            return [await self._lost(each, error) for each in pushes]
        if any(isinstance(reply, MovedError) for reply in replies):
            await self._producer.close()  # to connect to the other node
        pairs = zip(pushes, replies, strict=True)
        return [await self._refused(*pair) if isinstance(pair[1], Exception) else pair[1] for pair in pairs]

    async def _refused(self, push: "_Push", error: Exception) -> Exception:
        """Return what to raise for an error that the server has answered."""
        is_last_word = str(error).startswith("Protocol error")
        return await self._lost(push, error) if is_last_word else translate_error(error)

    async def _lost(self, push: "_Push", error: Exception) -> PenstockError:
        """Return what to raise for a push without a reply."""
        if words := await too_large(self.redis, push.largest):
            return WrongCall(words)
        return Unconfirmed(f"{push.body.count:,} messages may have been pushed, or not: {error}")

    async def _cut_silent(self) -> None:
        """End connections of producers that are silent."""
        while True:
            await asyncio.sleep(MAX_SILENCE / 2)
            await self._producer.cut_if_silent(MAX_SILENCE)
            if self._fallback:
                await self._fallback.cut_if_silent()


class _Push:
    """One LPUSH, and what became of it: the reply, or an error."""

    __slots__ = ("body", "largest", "name", "outcome")

    def __init__(self, name: bytes, body: Packed, largest: int) -> None:
        self.name, self.body, self.largest = name, body, largest
        self.outcome: Any = None


class List:
    """One list of a server, by name."""

    def __init__(self, lists: Lists, name: Payload) -> None:
        self.name, self._lists = as_bytes(name), lists

    async def push(self, message: Payload) -> None:
        """Push one message.

        Raise ``Unavailable`` if the server stayed away, and ``Unconfirmed`` if the connection was lost before the
        reply: then the message may be in the list or not.
        """
        await self._lists.push(self.name, [as_bytes(message)])

    async def push_many(self, messages: Iterable[Payload] | AsyncIterable[Payload]) -> int:
        """Push all of ``messages``, oldest first, in batches; return how many. Raise as ``push`` does."""
        count = 0
        async with aclosing(payload_batches(messages, as_bytes)) as found:
            async for batch in found:
                try:
                    await self._lists.push(self.name, batch)
                except (Unavailable, Unconfirmed) as error:
                    raise type(error)(f"{error}; the {count:,} messages before were pushed") from error
                count += len(batch)
        return count

    async def push_json(self, value: Any) -> None:
        """Push ``value`` as JSON. Raise as ``push`` does, and ``WrongCall`` if it is no JSON value."""
        await self._lists.push(self.name, [as_json(value)])

    def messages(
        self,
        *,
        attempts: int | None = None,
        dead: Payload | None = None,
        prefetch: int = MAX_MESSAGES,
        prefetch_bytes: int = MAX_BYTES,
    ) -> AsyncIterator[Message]:
        """Take messages, oldest first, until ``Lists.stop``: ``async for message in orders.messages():``, and then
        ``with message:`` around its handling.

        A message is settled when its ``with`` ends, and goes back to the list if that raises or is cancelled. What was
        taken and not handed out goes back when the loop ends, and at a stop at once. If this process dies, or stands
        still for longer than the lease, another consumer gets what it held: delivery is at least once.

        At most ``prefetch`` messages are taken at once, and no more once they have ``prefetch_bytes`` together; fewer
        while handling is slow, so that other consumers get theirs. Several loops may run side by side.

        A message whose delivery has failed ``attempts`` times becomes a dead letter in the list ``dead``, in the
        transaction that settles it. ``penstock dead shop`` shows those of ``shop:dead``. By default it comes again.

        Raise ``Unavailable`` if the server stays away, and ``WrongType`` if a key is of another type.
        """
        return self.consumer(prefetch, prefetch_bytes, attempts, dead).messages()

    def consumer(
        self, prefetch: int, prefetch_bytes: int, attempts: int | None = None, dead: Payload | None = None
    ) -> Consumer[Message]:
        """Return what ``messages`` iterates."""
        return Consumer(self._lists.consumers, self.source(prefetch, prefetch_bytes, attempts, dead), prefetch)

    def source(
        self, prefetch: int, prefetch_bytes: int, attempts: int | None = None, dead: Payload | None = None
    ) -> ListSource:
        """Return what a consumer takes from."""
        burial = None
        if attempts is not None or dead is not None:
            own = {self.name + end for end in (b"", *OWN)}
            is_whole = isinstance(attempts, int) and not isinstance(attempts, bool)
            if (
                attempts is None
                or dead is None
                or not is_whole
                or not 1 <= attempts <= MAX_ATTEMPTS
                or as_bytes(dead) in own
            ):
                expected = f"expected a whole number from 1 to {MAX_ATTEMPTS:,}, and another list"
                raise WrongCall(f"attempts={attempts!r}, dead={dead!r}: {expected}")
            burial = Burial(attempts, as_bytes(dead))
        return ListSource(self._lists.server, self.name, prefetch, prefetch_bytes, burial)
