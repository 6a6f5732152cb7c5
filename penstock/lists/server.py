"""The lists of one server: connections, renewal of leases, and the producer's side."""

import asyncio
import signal
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Final, Self

from redis.exceptions import ConnectionError, MovedError, RedisError, TimeoutError

from penstock.connection import MAX_SILENCE, connect
from penstock.errors import PenstockError, Unconfirmed, WrongCall
from penstock.lists.consumer import NAME, PREFETCH, SIZE, Consumer, Message, as_bytes
from penstock.lists.work import Work
from penstock.patience import Patience
from penstock.raw_connection import Packed, RawConnection, pack
from penstock.script import translate_error

PUSH_MESSAGES: Final = 500
PUSH_BYTES: Final = 1 << 20
"""Upper bounds of one LPUSH, unless a single message is larger."""
UNBLOCK_SECONDS: Final = 0.02
Payload = bytes | str


class Lists:
    """The lists of one server: ``async with Lists("redis://localhost:6379/0") as lists: await lists["in"].push("x")``.

    ``patience`` is how long (s) a command waits while the server is away, full or read-only, before it raises
    ``Unavailable``; None waits without end. ``lease`` is how long (s) a consumer lives that sends nothing: then others
    adopt what it holds. Raise it if a handler blocks the event loop for that long. ``stop_signals``, e.g.
    ``[signal.SIGTERM]``, call ``stop``.
    """

    def __init__(
        self,
        url: str,
        *,
        patience: float | None = 60.0,
        lease: float = 30.0,
        stop_signals: Iterable[signal.Signals] = (),
    ) -> None:
        if not 1 <= lease <= 86_400:
            raise WrongCall(f"lease={lease}: expected seconds from 1 to 86400")
        self.url, self.lease, self.patience = url, lease, Patience(patience)
        self.redis = connect(url, name=NAME)
        self.stopping = False
        self.consumers = set[Consumer]()
        """Those that take messages now."""
        self._signals = tuple(stop_signals)
        self._producer, self._sending = RawConnection(connect(url, name=NAME)), asyncio.Lock()
        self._tasks = set[asyncio.Task[None]]()

    def __getitem__(self, name: Payload) -> "List":
        return List(self, name)

    def work(self, namespace: str, source: Payload | None = None) -> Work:
        """Return the requests of the mdispatch with this namespace, taken from ``source``, by default its ``out``."""
        return Work(self, namespace, source)

    def check_entered(self) -> None:
        """Raise ``WrongCall`` outside ``async with``: leases would not be renewed."""
        if not self._tasks:
            raise WrongCall("expected `async with Lists(...) as lists:` around this call")

    async def __aenter__(self) -> Self:
        self.stopping = self.patience.hurries = False
        for number in self._signals:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        self._tasks.add(asyncio.create_task(self._renew()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._signals:
            asyncio.get_running_loop().remove_signal_handler(number)
        try:
            for consumer in tuple(self.consumers):  # whose loop was left, and its generator not closed yet
                await consumer.leave()
        finally:
            await self._close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._producer.close()
        await self._producer.redis.aclose()
        await self.redis.aclose()

    def stop(self) -> None:
        """End every loop over messages: after the message in hand, or at once if it waits for one."""
        if not self.stopping:
            self.stopping = self.patience.hurries = True
            self._tasks.add(asyncio.create_task(self._unblock()))

    async def push(self, name: bytes, messages: list[bytes]) -> None:
        """Push ``messages`` with one LPUSH, the last of them newest."""
        packed = pack([("LPUSH", name, Packed.of(messages))])

        async def push() -> None:
            async with self._sending:
                await self._producer.send(b"")  # connects; what fails until here has sent nothing
                try:
                    await self._producer.send(packed)
                    (reply,) = await self._producer.receive(1)
                except (ConnectionError, TimeoutError) as error:
                    raise Unconfirmed(f"{len(messages):,} messages may have been pushed, or not: {error}") from error
                if isinstance(reply, MovedError):
                    await self._producer.close()  # to connect to the other node
                if isinstance(reply, Exception):
                    raise translate_error(reply)

        self.check_entered()
        await self.patience(push, self._producer.redis)

    async def _renew(self) -> None:
        """Keep the leases of consumers whose handlers take long, and end connections that are silent."""
        while True:
            await asyncio.sleep(min(self.lease / 3, MAX_SILENCE / 2))
            await self._producer.cut_if_silent(MAX_SILENCE)
            for consumer in tuple(self.consumers):
                with suppress(RedisError, OSError, PenstockError):  # the consumer meets it as well, and reports it
                    await consumer.renew()

    async def _unblock(self) -> None:
        """End the waits for messages. Without the right to do so they end by themselves, after some seconds."""
        while waiting := [each.connection_id for each in self.consumers if each.waits]:
            with suppress(RedisError, OSError):
                for number in waiting:
                    await self.redis.client_unblock(number or 0)
            await asyncio.sleep(UNBLOCK_SECONDS)


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
        async for some in _batches(messages):
            for batch in _fitting([*map(as_bytes, some)]):
                await self._lists.push(self.name, batch)
                count += len(batch)
        return count

    def messages(self, *, prefetch: int = PREFETCH, size: int = SIZE) -> AsyncIterator[Message]:
        """Take messages, oldest first, until ``Lists.stop``: ``async for message in orders.messages():``, and then
        ``with message:`` around its handling.

        A message is settled when its ``with`` ends, and goes back to the list if that raises or is cancelled. What was
        taken and not handed out goes back when the loop ends. If this process dies, or blocks the event loop for longer
        than the lease, another consumer gets what it held: delivery is at least once.

        At most ``prefetch`` messages are taken at once, and no more once they have ``size`` bytes together; fewer while
        handling is slow, so that other consumers get theirs. Several loops may run side by side.

        Raise ``Unavailable`` if the server stays away, and ``WrongType`` if a key is of another type.
        """
        return self.consumer(prefetch, size).messages()

    def consumer(self, prefetch: int, size: int) -> Consumer:
        """Return what ``messages`` iterates."""
        return Consumer(self._lists, self.name, prefetch, size)


async def _batches(messages: Iterable[Payload] | AsyncIterable[Payload]) -> AsyncIterator[list[Payload]]:
    """Yield at most ``PUSH_MESSAGES`` of ``messages`` at a time."""
    if not isinstance(messages, AsyncIterable):
        each = iter(messages)
        while batch := [*islice(each, PUSH_MESSAGES)]:
            yield batch
        return
    batch = []
    async for message in messages:
        batch.append(message)
        if len(batch) == PUSH_MESSAGES:
            yield batch
            batch = []
    if batch:
        yield batch


def _fitting(messages: list[bytes]) -> Iterator[list[bytes]]:
    """Yield parts of ``messages`` of at most ``PUSH_BYTES`` each, or of one message that is larger."""
    if sum(map(len, messages)) <= PUSH_BYTES:
        yield messages
        return
    part, size = list[bytes](), 0
    for message in messages:
        if part and size + len(message) > PUSH_BYTES:
            yield part
            part, size = [], 0
        part.append(message)
        size += len(message)
    yield part
