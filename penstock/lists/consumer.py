"""One consumer of a list: take messages into a list of its own, settle them, put back what was not handled."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import structlog
from redis.exceptions import MovedError, NoScriptError, RedisError

from penstock.connection import MAX_SILENCE, follow
from penstock.encoding import decoded, encoded
from penstock.errors import PenstockError, Unavailable, WrongCall
from penstock.passing import passes
from penstock.patience import BACKOFF
from penstock.raw_connection import Command, RawConnection, pack
from penstock.script import LUA, Script, translate_error
from penstock.transfer.read_size import Sizes

if TYPE_CHECKING:
    from penstock.lists.server import Lists

NAME: Final = "penstock-lists"
"""Name of the connections in CLIENT LIST."""
PREFETCH: Final = 500
SIZE: Final = 1 << 20
"""Upper bounds of what is taken at once, in messages and bytes."""
WAIT_SECONDS: Final = 5
"""Seconds that one command waits for a message; then the consumer looks for dead ones."""
SETTLE_SECONDS: Final = 0.05
"""Seconds after which handled messages are settled, though more are at hand. A batch is meant to last as long."""
GRACE_SECONDS: Final = 600
"""Seconds for which a consumer that was given up is remembered: a command on its way may still give it a message."""
AGAIN_SECONDS: Final = 10
"""Seconds after which its list is looked at again."""
REFUSED_SECONDS: Final = 0.2
"""Seconds between two reads while the server refuses to wait, e.g. since it is full."""
MAX_RESULTS: Final = 1_000
"""Results that are kept until they are written, beyond those of one message; the stack of Lua ends at some 8,000."""
MICROSECONDS: Final = 1_000_000
_scripts: Final = Path(__file__).parent / "lua"
_consume, _adopt = (Script.read(_scripts / f"{verb}.lua") for verb in ("consume", "adopt"))
_consume_and_push: Final = Script.read(_scripts / "consume.lua", grows=True)
"""The same for a call with results, which take memory: a full server refuses it."""
_put_back: Final = Script.read(LUA / "put_back.lua")
_log: Final = structlog.get_logger("penstock.lists")


class Message:
    """One message in hand: ``with message: handle(message.body)``.

    It is settled when the ``with`` ends, and goes back to its list, as the next to be taken, if that raises.
    """

    __slots__ = ("_consumer", "body")

    def __init__(self, body: bytes, consumer: "Consumer") -> None:
        self.body, self._consumer = body, consumer

    def __bytes__(self) -> bytes:
        return self.body

    def __str__(self) -> str:
        """Return the body as text; a byte that is not UTF-8 becomes a lone surrogate."""
        return decoded(self.body)

    def json(self) -> Any:
        """Return the body as JSON. Raise ``ValueError`` if it is none."""
        return json.loads(self.body)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._consumer.note_end(self, failed=kind is not None)
        return None

    def also_push(self, name: bytes | str, *messages: bytes | str) -> None:
        """Push results to the list ``name`` in the transaction that settles this message, or not at all if it fails.

        On a Redis Cluster the names of both lists need one hash tag.
        """
        self._consumer.note_results(self, as_bytes(name), [*map(as_bytes, messages)])


class Consumer:
    """Takes the messages of one list, oldest first, into a list of its own.

    Keys: ``<list>:consumer:<id>`` holds what was taken and not settled, ``<list>:consumers`` the leases, and
    ``<list>:consumers:steps`` a number for each consumer, so that no settlement is repeated after a lost reply.
    """

    def __init__(self, lists: "Lists", source: bytes, prefetch: int, size: int) -> None:
        if prefetch < 1 or size < 1:
            raise WrongCall(f"prefetch={prefetch}, size={size}: expected at least 1 of each")
        self._lists, self._source, self._prefetch, self._size = lists, source, prefetch, size
        self._consumers, self._steps = source + b":consumers", source + b":consumers:steps"
        self._raw = RawConnection.to(lists.url, NAME)
        self._sizes = Sizes()
        self._id, self._joined, self._step = secrets.token_hex(8), False, 0
        self._in_hand: Message | None = None
        self._handled, self._failed = 0, list[int]()
        """Messages handled and not settled, and which of them failed, from 1 on."""
        self._results, self._of_message = dict[bytes, list[bytes]](), list[tuple[bytes, list[bytes]]]()
        self._batch, self._taken_at, self._settled_at, self._failures = 1, 0.0, 0.0, 0
        self._unsure_until = 0.0
        """Until when (monotonic) a wait may still give it a message, though its connection is lost."""
        self._unsure_id: int | None = None
        """The CLIENT ID of that connection."""
        self._began = False
        self._leaving = asyncio.Lock()
        self.waits = False
        """Whether it waits for a message in the server."""

    async def messages(self) -> AsyncIterator[Message]:
        """See ``List.messages``."""
        try:
            while batch := await self.batch():
                for message in batch:
                    yield self.hand_out(message)
                    if self.ends_batch() or (self.is_due() and not await self.settle()):
                        break
        finally:
            await self.leave()

    async def batch(self) -> list[Message]:
        """Settle what was handled and return the next messages, oldest first; none once all consumers shall stop."""
        self._lists.check_entered()
        self._lists.consumers.add(self)
        return await self._prepare(await self._next())

    def hand_out(self, message: Message) -> Message:
        """Note that ``message`` is in hand, and return it."""
        self._in_hand = message
        return message

    def ends_batch(self) -> bool:
        """Return whether the rest of the batch goes back. Raise ``WrongCall`` if the last message was not handled."""
        if self._in_hand is not None:
            raise WrongCall("a message was not handled: expected `with message:` around its handling")
        return self._lists.stopping

    def is_due(self) -> bool:
        """Return whether to settle before the next message of the batch."""
        return time.monotonic() - self._settled_at >= SETTLE_SECONDS

    async def settle(self) -> bool:
        """Settle what was handled. Return False if the lease has ended: then others have the rest of the batch."""
        return await self._call(0) is not None

    async def _prepare(self, bodies: list[bytes]) -> list[Message]:
        return [Message(body, self) for body in bodies]

    def note_end(self, message: Message, *, failed: bool) -> None:
        """Note that the handling of ``message`` has ended."""
        if self._in_hand is not message:
            raise WrongCall("a message is handled once, before the next one is taken")
        self._in_hand = None
        self._handled += 1
        if failed:
            self._failed.append(self._handled)
            self._settled_at = 0.0
        elif self._of_message:
            for name, messages in self._of_message:
                self._results.setdefault(name, []).extend(messages)
            if sum(map(len, self._results.values())) >= MAX_RESULTS:
                self._settled_at = 0.0
        if self._of_message:
            self._of_message = []

    def note_results(self, message: Message, name: bytes, results: list[bytes]) -> None:
        """Keep ``results`` until ``message`` is settled."""
        if self._in_hand is not message:
            raise WrongCall("also_push belongs to the message in hand: call it inside `with message:`")
        if sum(len(each) for _, each in self._of_message) + len(results) > MAX_RESULTS:
            raise WrongCall(f"more than {MAX_RESULTS:,} results of one message: push them with List.push_many")
        if results:
            self._of_message.append((name, results))

    def drop_results(self) -> None:
        """Forget the results of the message in hand."""
        self._of_message = []

    async def renew(self) -> None:
        """Extend the lease on the connection that all consumers share, and cut a connection that is silent."""
        await self._raw.cut_if_silent(WAIT_SECONDS + MAX_SILENCE)
        if not self._joined:
            return
        redis = self._lists.redis
        try:
            await _consume(redis, **self._named(0, 0))
        except MovedError as moved:
            await follow(moved, redis)
            await _consume(redis, **self._named(0, 0))

    @property
    def connection_id(self) -> int | None:
        """The CLIENT ID of the connection that waits."""
        return self._raw.id

    async def leave(self) -> None:
        """Settle what was handled and put back the rest; if the server is away, others adopt it later."""
        async with self._leaving:
            if self not in self._lists.consumers:
                return
            self._in_hand = None
            while self._failed and self._failed[-1] == self._handled:  # in its place it keeps the order
                self._handled -= 1
                self._failed.pop()
            try:
                if self._began:
                    await self._put_back()
            except Unavailable as error:
                held = {"list": decoded(self._source), "consumer": self._id, "reason": str(error)}
                _log.warning("not put back: others adopt it when the lease ends", **held)
            finally:
                self._lists.consumers.discard(self)
                await self._raw.close()
                await self._raw.redis.aclose()

    @property
    def _working(self) -> bytes:
        return self._source + b":consumer:" + self._id.encode()

    async def _next(self) -> list[bytes]:
        """Settle what was handled and return the next messages, oldest first; none once all consumers shall stop."""
        while not self._lists.stopping:
            if self._failures:  # what failed comes again at once
                await asyncio.sleep(BACKOFF.compute(self._failures))
            found = await self._call(self._batch_size())
            self._taken_at = self._settled_at
            if found:
                return found
            if found is not None and (message := await self._wait()) is not None:
                self._taken_at = self._settled_at = time.monotonic()
                return [message]
        return []

    def _batch_size(self) -> int:
        """Return how many messages to take: as many as were lately handled in ``SETTLE_SECONDS``."""
        spent = time.monotonic() - self._taken_at
        factor = 2.0 if spent < SETTLE_SECONDS else SETTLE_SECONDS / spent
        self._batch = min(max(round(self._batch * factor), 1), self._prefetch)
        return self._batch

    async def _call(self, batch: int, *, hurries: bool = False) -> list[bytes] | None:
        """Settle what was handled, and return at most ``batch`` messages; adopt those of dead consumers first.

        Return None, and begin anew under another id, if this consumer's lease has ended: others have what it held.
        """
        while True:
            step, handled, failed = self._step + bool(self._handled), self._handled, len(self._failed)
            self._began = True
            reply = await self._lists.patience(partial(self._run, batch, step), self._raw.redis, hurries=hurries)
            self._settled_at = time.monotonic()
            self._handled, self._failed, self._results = 0, [], {}
            if reply is None:
                _log.warning("lease lost", list=decoded(self._source), consumer=self._id, handled=handled)
                self._id, self._joined, self._step = secrets.token_hex(8), False, 0
                return None
            self._joined, self._step = True, step
            if handled:
                self._failures = self._failures + 1 if failed == handled else 0
            messages, dead, largest = reply
            self._sizes.note(len(messages), largest)
            if not dead:
                return list(messages)
            for each in dead:
                if await self._adopt(each):
                    break  # the next one once its messages are handled

    def _named(self, batch: int, step: int) -> dict[str, Any]:
        """Return keys and arguments of ``consume.lua``; with a ``step`` of before it settles nothing."""
        results = self._results if step > self._step else {}
        return {
            "source": self._source,
            "working": self._working,
            "consumers": self._consumers,
            "steps": self._steps,
            "id": self._id,
            "joins": int(not self._joined),
            "step": step,
            "settled": self._handled,
            "back": ",".join(map(str, self._failed)),
            "lease": round(self._lists.lease * MICROSECONDS),
            "batch": batch,
            "bytes": self._size,
            "counts": ",".join(str(len(each)) for each in results.values()),
            "outs": [*results],
            "results": [message for each in results.values() for message in each],
            **self._sizes.named,
        }

    async def _adopt(self, dead: bytes) -> int:
        named = {"working": self._working, "consumers": self._consumers, "steps": self._steps, "dead": dead}
        times = {"grace": GRACE_SECONDS * MICROSECONDS, "again": AGAIN_SECONDS * MICROSECONDS}
        orphan, redis = self._source + b":consumer:" + dead, self._lists.redis
        adopted: int = await self._lists.patience(lambda: _adopt(redis, orphan=orphan, **named, **times), redis)
        if adopted:
            _log.info("adopted", list=decoded(self._source), consumer=decoded(dead), messages=adopted)
        return adopted

    async def _wait(self) -> bytes | None:
        """Return the next message, or None if none arrives in time, or the wait fails: then the next call finds out."""
        self.waits, self._unsure_until = True, inf
        try:
            reply = await self._send(("BLMOVE", self._source, self._working, "RIGHT", "LEFT", WAIT_SECONDS))
            self._unsure_until = 0.0
        except (RedisError, OSError):
            return None
        finally:
            self.waits = False
            if self._unsure_until:
                self._unsure_until, self._unsure_id = time.monotonic() + 2 * WAIT_SECONDS, self._raw.id
        if isinstance(reply, Exception):
            if not passes(reply):
                raise translate_error(reply)
            await asyncio.sleep(REFUSED_SECONDS)
        return reply if isinstance(reply, bytes) else None

    async def _run(self, batch: int, step: int) -> Any:
        named = self._named(batch, step)
        script = _consume_and_push if named["outs"] else _consume
        reply = await self._send(script.by_digest(**named))
        if isinstance(reply, NoScriptError):
            reply = await self._send(script.by_source(**named))
        if isinstance(reply, MovedError):
            await self._raw.close()  # to connect to the other node
        if isinstance(reply, Exception):
            raise translate_error(reply)
        return reply

    async def _send(self, command: Command) -> Any:
        await self._raw.send(pack([command]))
        (reply,) = await self._raw.receive(1)
        return reply

    async def _put_back(self) -> None:
        redis, patience = self._lists.redis, partial(self._lists.patience, hurries=True)
        if time.monotonic() < self._unsure_until and self._unsure_id is not None:
            with suppress(RedisError, OSError):
                await redis.client_unblock(self._unsure_id)
                self._unsure_until = 0.0
        try:
            if await self._call(0, hurries=True) is None:
                return
        except (PenstockError, RedisError):
            if not self._results:
                raise
            # A full server refuses results, and so does a key of another type; their messages go back.
        named = {"pending": self._working, "source": self._source, "who": self._id, "settled": 0}
        bounds = {"most": self._prefetch, "bytes": self._size}
        while await patience(lambda: _put_back(redis, **named, **bounds), redis):
            pass
        if time.monotonic() < self._unsure_until:
            return  # others adopt what a wait without a reply may still move
        ended = {"takers": self._consumers, "steps": self._steps}
        await patience(lambda: _put_back(redis, **named, **bounds, **ended), redis)


def as_bytes(value: bytes | str) -> bytes:
    """Return ``value`` as it is pushed; text as UTF-8."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise WrongCall(f"expected bytes or text, found {type(value).__name__}")
    return encoded(value)
