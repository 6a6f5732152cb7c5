"""The list of a consumer's own: what it has taken and not settled, under a lease; what dead ones left is adopted."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from redis.exceptions import MovedError, NoScriptError, RedisError

from penstock import transfer
from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.core.connection import MAX_SILENCE, connect, follow
from penstock.core.link import passes
from penstock.core.mutex import Mutex
from penstock.core.patience import HURRY_SECONDS
from penstock.core.raw_connection import Command, RawConnection, pack
from penstock.core.read_size import Sizes
from penstock.core.script import Script, translate_error
from penstock.lists.server import NAME, Server
from penstock.lists.settlement import Settlement

WAIT_SECONDS: Final = 5
"""Seconds that one command waits for a message; then the consumer looks for dead ones."""
GRACE_SECONDS: Final = 600
"""Seconds for which a consumer that was given up is remembered: a command on its way may still give it a message."""
AGAIN_SECONDS: Final = 10
"""Seconds after which its list is looked at again, later each time."""
UNBLOCK_SECONDS: Final = 0.02
RECOVER_SECONDS: Final = 0.1
"""Seconds between two looks at leases that are about to end."""
MICROSECONDS: Final = 1_000_000
OWN: Final = b":consumers", b":consumers:steps", b":failures"
"""Ends of the names of keys beside a list that belong to its consumers."""
_scripts: Final = Path(__file__).parent / "lua"
_consume, _adopt = (Script.read(_scripts / f"{verb}.lua") for verb in ("consume", "adopt"))
_consume_and_push: Final = Script.read(_scripts / "consume.lua", grows=True)
"""The same for a call with results, which take memory: a full server refuses it."""
_put_back: Final = Script.read(transfer.LUA / "put_back.lua")
_NOTHING: Final = Settlement()
_log: Final = Log("penstock.lists")


class Burial(NamedTuple):
    """Which messages become dead letters: those that have failed ``attempts`` times."""

    attempts: int
    letters: bytes
    """The list of dead letters."""


class Holding:
    """Takes and settles the messages of one consumer.

    Keys: ``<list>:consumer:<id>`` holds what was taken and not settled, ``<list>:consumers`` the leases,
    ``<list>:consumers:steps`` a number for each consumer, so that no settlement is repeated after a lost reply, and
    ``<list>:failures`` how often messages have failed.
    """

    def __init__(self, server: Server, source: bytes, prefetch: int, size: int, burial: Burial | None = None) -> None:
        self._server, self._source = server, source
        self._bounds: dict[str, Any] = {"most": prefetch, "bytes": size}
        self._consumers, self._steps = source + b":consumers", source + b":consumers:steps"
        self._failures, self._burial = source + b":failures", burial
        self.failures: list[int] = []
        """How often each message that was returned last has failed, if any of the list has; else nothing."""
        self.raw = RawConnection.to(server.url, NAME)
        self.settlement, self._sizes = Settlement(), Sizes()
        self.id, self._joined = secrets.token_hex(8), False
        self._unsure_until = 0.0
        """Until when (monotonic) a wait may still give it a message, though its connection is lost."""
        self._unsure_id: int | None = None
        """The CLIENT ID of that connection."""
        self._began = False
        self.settles_each = burial is not None and burial.attempts == 1
        """Whether messages are settled one by one: the first death counts, so the oldest must be what is in hand."""
        self.adopted = 0
        """How many of what it holds, the oldest ones, dead consumers have held before."""
        self._calling = Mutex()
        """Held while its connection is in use: another task may leave the list meanwhile."""
        self.waits = False
        """Whether it waits for a message in the server."""

    async def take(self, batch: int, *, hurries: bool = False) -> list[bytes] | None:
        """Settle what was handled, and return at most ``batch`` messages; adopt those of dead consumers first.

        Return None, and begin anew under another id, if this consumer's lease has ended: others have what it held.
        """
        while True:
            handled = self.settlement.handled
            step = self._last_step + bool(handled)
            self._began = True
            async with self._calling:
                run = partial(self._run, batch, step)
                reply = await self._server.patiently(run, self.raw.redis, hurries=hurries)
            if reply is None:
                _log.warning("lease lost", list=decoded(self._source), consumer=self.id, handled=handled)
                former, self.settlement = self._working, Settlement(failures=self.settlement.failures)
                self.id, self._joined, self.adopted = secrets.token_hex(8), False, 0
                await self._give_up(former)
                return None
            self._joined, self.adopted = True, max(self.adopted - handled, 0)
            self.settlement = self.settlement.next()
            messages, dead, largest, self.failures = reply
            self._sizes.note(len(messages), largest)
            if not dead:
                return list(messages)
            await self.adopt(dead)

    async def wait(self, batch: int) -> list[bytes]:
        """Return the next message; none if none arrives in time, or the wait fails: then the next call finds out.

        If ``batch`` is more than 1, take those behind it, too, as soon as the wait is over.
        """
        commands: list[Command] = [("BLMOVE", self._source, self._working, "RIGHT", "LEFT", WAIT_SECONDS)]
        if batch > 1:
            commands.append(_consume.by_digest(**self._named(batch, self._last_step, waited=1)))
        else:
            commands.append(("EXISTS", self._failures))
        self.waits, self._unsure_until = True, inf
        try:
            async with self._calling:
                await self.raw.send(pack(commands))
                reply, more = await self.raw.receive(len(commands))
            self._unsure_until = 0.0
        except (RedisError, OSError):
            return []
        finally:
            self.waits = False
            if self._unsure_until:
                self._unsure_until, self._unsure_id = time.monotonic() + 2 * WAIT_SECONDS, self.raw.id
        if isinstance(reply, Exception):
            if not passes(reply):
                raise translate_error(reply)
            return []
        if isinstance(more, list):
            messages, _, largest, self.failures = more
            self._sizes.note(len(messages), largest)
            return list(messages)
        if not isinstance(reply, bytes):
            return []
        if more:  # messages have failed: was it one of them?
            return await self.take(1) or []
        self.failures = []
        return [reply]

    async def renew(self) -> None:
        """Extend the lease on the connection that all consumers share, and cut a connection that is silent."""
        await self.raw.cut_if_silent(WAIT_SECONDS + MAX_SILENCE)
        if not self._joined:
            return
        redis = self._server.redis
        try:
            await _consume(redis, **self._named(0, 0))
        except MovedError as moved:
            await follow(moved, redis)
            await _consume(redis, **self._named(0, 0))

    async def renew_elsewhere(self) -> None:
        """Extend the lease by a client of another event loop."""
        if self._joined:
            async with connect(self._server.url, name=NAME) as redis:
                await _consume(redis, **self._named(0, 0))

    async def interrupt(self) -> None:
        """End a wait in the server; if that does not answer, by cutting the connection."""
        try:
            async with asyncio.timeout(HURRY_SECONDS):
                while self.waits:
                    with suppress(RedisError, OSError):
                        await self._server.redis.client_unblock(self.raw.id or 0)
                    await asyncio.sleep(UNBLOCK_SECONDS)
        except TimeoutError:
            await self.raw.cut_if_silent(0)

    async def recover(self) -> int:
        """Put back what dead consumers hold, so that it is taken next; return how many messages. Nothing is in hand.

        A consumer whose lease ends before that of this one may be dead: wait until its lease is renewed, or has ended.
        """
        await self.take(0)
        doubtful, ended, count = dict[bytes, bytes](), list[bytes](), 0
        looks: list[Command] = [("TIME",), ("ZRANGE", self._consumers, 0, -1, "WITHSCORES")]
        while not self._server.patiently.hurries:
            (seconds, more), found = await self.ask(looks)
            now, leases = int(seconds) * MICROSECONDS + int(more), dict(zip(found[::2], found[1::2], strict=True))
            ended = [each for each, end in leases.items() if float(end) < now]
            if not doubtful:
                latest = float(leases[self.id.encode()])
                doubtful = {each: end for each, end in leases.items() if float(end) < latest}
            doubtful = {each: end for each, end in doubtful.items() if leases.get(each) == end and each not in ended}
            if not doubtful:
                break
            await asyncio.sleep(RECOVER_SECONDS)
        for each in reversed(ended):
            await self.adopt([each])
            if self.adopted:
                count, self.adopted = count + self.adopted, 0
                await self._move_back(self._working, self.id, self._server.patiently)
        return count

    async def put_back_ahead(self, in_hand: Callable[[], bool]) -> None:
        """Put back what is neither handled nor ``in_hand``; that is asked first, since it becomes handled."""
        async with self._calling:
            kept = in_hand() + self.settlement.handled
            await self._move_back(self._working, self.id, partial(self._server.patiently, hurries=True), kept)

    async def put_back(self) -> None:
        """Settle what was handled, put back the rest, and end the lease. Raise what has kept it from settling."""
        if not self._began:
            return
        if time.monotonic() < self._unsure_until and self._unsure_id is not None:
            with suppress(RedisError, OSError):
                if await self._ends_wait(self._unsure_id):
                    self._unsure_until = 0.0
        refused: PenstockError | RedisError | None = None
        try:
            if await self.take(0, hurries=True) is None:
                return
        except (PenstockError, RedisError) as error:
            if not self.settlement.results:
                raise
            refused = error  # a full server refuses results, and so does a key of another type; their messages go back
        await self._end_lease()
        if refused:
            raise refused

    async def _end_lease(self) -> None:
        """Put back all that is held, and end the lease."""
        patience = partial(self._server.patiently, hurries=True)
        await self._move_back(self._working, self.id, patience)
        if time.monotonic() < self._unsure_until:
            return  # others adopt what a wait without a reply may still move
        ended = self._named_back(self._working, self.id) | {"takers": self._consumers, "steps": self._steps}
        await patience(lambda: _put_back(self._server.redis, **ended), self._server.redis)

    async def close(self) -> None:
        """Close its connection."""
        await self.raw.close()
        await self.raw.redis.aclose()

    @property
    def _last_step(self) -> int:
        """Return the number of the last settlement, with which a call settles nothing."""
        return self.settlement.number - 1

    @property
    def _working(self) -> bytes:
        return self._source + b":consumer:" + self.id.encode()

    def _named(self, batch: int, step: int, waited: int = 0) -> dict[str, Any]:
        """Return keys and arguments of ``consume.lua``; with a ``step`` of before it settles nothing."""
        settlement = self.settlement
        settles = step == settlement.number
        results = settlement.results if settles else {}
        return {
            "source": self._source,
            "working": self._working,
            "consumers": self._consumers,
            "steps": self._steps,
            "id": self.id,
            "joins": int(not self._joined),
            "step": step,
            **(settlement if settles else _NOTHING).named,
            "failures": self._failures,
            "letters": self._burial.letters if self._burial else None,
            "limit": self._burial.attempts if self._burial else 0,
            "lease": round(self._server.lease * MICROSECONDS),
            "batch": batch,
            "bytes": self._bounds["bytes"],
            "waited": waited,
            "each": int(self.settles_each or self.adopted > (settlement.handled if settles else 0)),
            "idle": 0,
            "counts": ",".join(str(len(each)) for each in results.values()),
            "outs": [*results],
            "results": [message for each in results.values() for message in each],
            **self._sizes.named,
        }

    async def adopt(self, dead: list[bytes]) -> None:
        """Take over what the first of ``dead`` holds that holds something; nothing is in hand."""
        named: dict[str, Any] = {"working": self._working, "consumers": self._consumers, "steps": self._steps}
        named["failures"] = self._failures
        named |= {"orphans": [self._source + b":consumer:" + each for each in dead], "dead": dead, "who": self.id}
        times = {"grace": GRACE_SECONDS * MICROSECONDS, "again": AGAIN_SECONDS * MICROSECONDS}
        redis = self._server.redis
        adopted, place = await self._server.patiently(lambda: _adopt(redis, **named, **times), redis)
        if adopted:
            self.adopted = adopted
            _log.info("adopted", list=decoded(self._source), consumer=decoded(dead[place - 1]), messages=adopted)

    async def _give_up(self, former: bytes) -> None:
        """Put back what a wait has moved to ``former``, the list of a consumer that has gone, after it was adopted."""
        await self._move_back(former, "", self._server.patiently)

    async def _move_back(self, pending: bytes, who: str, patience: Callable[..., Any], kept: int = 0) -> None:
        """Put back what the list ``pending`` holds, but for the oldest that are ``kept``."""
        redis, named = self._server.redis, self._named_back(pending, who) | {"kept": kept}
        while await patience(lambda: _put_back(redis, **named), redis):
            pass

    def _named_back(self, pending: bytes, who: str) -> dict[str, Any]:
        return {"pending": pending, "source": self._source, "who": who, "settled": 0, "kept": 0, **self._bounds}

    async def _run(self, batch: int, step: int) -> Any:
        named = self._named(batch, step)
        reply = await self._execute(_consume_and_push if named["outs"] else _consume, named)
        if isinstance(reply, Exception) and passes(reply) and step > self._last_step:
            await self._execute(_consume, self._named(0, self._last_step) | {"idle": 1})
        if isinstance(reply, MovedError):
            await self.raw.close()  # to connect to the other node
        if isinstance(reply, Exception):
            raise translate_error(reply, [decoded(name) for name in (self._source, self._working, *named["outs"])])
        return reply

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies to reading ``commands``, WRONGTYPE errors among them. Raise others as ``take`` does."""

        async def ask() -> list[Any]:
            await self.raw.send(pack(commands))
            replies = await self.raw.receive(len(commands))
            for each in replies:
                if isinstance(each, MovedError):
                    await self.raw.close()  # to connect to the other node
                if isinstance(each, Exception) and not str(each).startswith("WRONGTYPE"):
                    raise translate_error(each)
            return replies

        async with self._calling:
            replies: list[Any] = await self._server.patiently(ask, self.raw.redis)
        return replies

    async def _execute(self, script: Script, named: Mapping[str, Any]) -> Any:
        reply = await self._send(script.by_digest(**named))
        return await self._send(script.by_source(**named)) if isinstance(reply, NoScriptError) else reply

    async def _send(self, command: Command) -> Any:
        await self.raw.send(pack([command]))
        (reply,) = await self.raw.receive(1)
        return reply

    async def _ends_wait(self, number: int) -> bool:
        """End the wait of the connection with this id; return True once it is sure to move nothing any more.

        If the server knows the connection and it does not wait, its command may still be on its way. After a restart
        the id may be a stranger's.
        """
        redis = self._server.redis
        known = [each.get("name") for each in await redis.client_list(client_id=[number])]
        return known != [NAME] or await redis.client_unblock(number) == 1
