"""One server of a bus: its two connections, kept up, and calls that wait while it is away."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as Unanswered

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError, Unauthorized, Unavailable, Unconfirmed, WrongCall, WrongType
from penstock.base.log import Log
from penstock.base.urls import server_url
from penstock.core.connection import MAX_SILENCE, mask_password
from penstock.core.durability import Level
from penstock.core.link import STABLE_SECONDS, Link, LostReply, Outage, passes
from penstock.core.patience import Patience
from penstock.core.raw_connection import pack
from penstock.core.script import Script, translate_error
from penstock.core.wire import Reply, Subscriber, Wire
from penstock.core.writer import CONFIRM_SECONDS, Writer

NAME: Final = "penstock-bus"
"""Name of the connections in CLIENT LIST."""
OVERDUE_SECONDS: Final = 1.0
"""Without a reply for so long, more calls wait only up to the bound."""
WAIT_SECONDS: Final = 0.5
"""Seconds after which a call that waits for a connection looks whether its patience has ended."""
PING_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 0.25
"""Seconds between two looks whether a reply is overdue."""
LEAST_SILENCE: Final = 1.0
"""Shortest time (s) without a reply after which a connection is cut, however short the patience."""
NOT_PERMITTED: Final = re.compile("ACL failure in script|user executing the script can't")
"""What servers say, new and old ones, where a script has a command that the user may not run."""
T = TypeVar("T")


class Instance:
    """One server. ``changed(instance, error)`` is called when it comes (None), and when it goes or is away.

    ``log`` gets a line when it is away, and when it is back.
    """

    def __init__(
        self,
        url: str,
        patience: Patience,
        buffer: int,
        changed: Callable[["Instance", Exception | None], None],
        level: Level | None = None,
        name: str = NAME,
        log: Log | None = None,
    ) -> None:
        self.url, self.address = url, mask_password(url)
        self.lost_at = self.back_at = 0.0
        """When (monotonic) a connection was last lost."""
        self._patience, self._buffer, self._changed = patience, buffer, changed
        self._waiting = 0
        self._wire = Wire(url, name, self._lost)
        self.subscriber = Subscriber(url, name, self._lost)
        self._writer = Writer(url, name, self._lost, level) if level else None
        self._wires = [each for each in (self._wire, self._writer, self.subscriber) if each]
        self._pinged = 0.0
        outage = Outage(log, "server away", "server back", server=self.address)
        self._link = Link(
            self._open,
            self._shut,
            outage,
            look=self._look,
            every=WATCH_SECONDS,
            changed=self._note,
            stable=STABLE_SECONDS,
        )

    def start(self) -> None:
        """Connect, and connect again whenever a connection is lost."""
        self._link.start()

    async def close(self) -> None:
        """Disconnect for good."""
        await self._link.close(ConnectionError("the bus was disconnected"))
        for wire in self._wires:
            await wire.close()

    @property
    def is_up(self) -> bool | None:
        """Return whether all its connections are open; None until that was tried."""
        return self._link.is_up

    @property
    def reason(self) -> Exception:
        """Return why they are not."""
        return self._link.reason

    async def run(self, script: Script, **named: Any) -> Any:
        """Run a script, again if its reply was lost: only for scripts that may run twice.

        Wait while the server is away, full or read-only. Raise ``Unavailable`` if that lasts longer than ``patience``
        or if ``buffer`` calls wait already, ``WrongType`` and what else the script returns.
        """
        return await self.call(partial(script, self._wire, **named))  # type: ignore[arg-type]  # all that it needs

    def send(self, packed: bytes, then: Callable[[Reply], None] | None = None) -> Reply | None:
        """Send a script, packed by its digest, now; return what becomes its reply, for ``finish``.

        Return None if the server is away. ``then`` is called with the reply as soon as it is there.
        """
        if self.is_away:
            return None
        reply = Reply(then)
        self._wire.send(packed, reply)
        return reply

    async def finish(self, sent: Reply | None, script: Script, **named: Any) -> Any:
        """As ``run_once``; if the script was ``sent``, run it only if the server has not executed it."""
        if sent is not None:
            try:
                return await _once(lambda: sent)
            except (AuthenticationError, NoPermissionError) as error:
                raise self._refused(error) from error
            except NoScriptError:
                pass
            except RedisError as error:
                if NOT_PERMITTED.search(str(error)):
                    raise self._refused(error) from error
                translated = translate_error(error)
                if isinstance(translated, WrongType) or not passes(translated):
                    raise translated from None
        return await self.run_once(script, **named)

    async def run_once(self, script: Script, **named: Any) -> Any:
        """As ``run``, for a script that must not run twice: raise ``Unconfirmed`` if its reply was lost."""
        return await self.call(partial(_once, partial(script, self._wire, **named)))  # type: ignore[arg-type]  # all that it needs

    async def run_durably(self, script: Script, **named: Any) -> Any:
        """As ``run_once``, and wait until what was written is durable.

        Raise ``NotDurable`` if it was executed, and that was not confirmed, ``Unsuitable`` if the server never can.
        """
        writer = self._writer
        assert writer

        async def once() -> tuple[object, Any]:
            return writer.link, await _once(partial(script, writer, **named))  # type: ignore[arg-type]  # all that it needs

        link, result = await self.call(once)
        await writer.confirm(link)
        return result

    async def run_now(self, script: Script, **named: Any) -> Any:
        """As ``run_durably``, or ``run_once`` without a level of durability, but raise what those wait out."""
        wire = self._writer or self._wire
        self._check_here(wire)
        link = wire.link
        try:
            result = await script(wire, **named)  # type: ignore[arg-type]  # all that it needs
        except (AuthenticationError, NoPermissionError) as error:
            raise self._refused(error) from error
        if self._writer:
            await self._writer.confirm(link)
        return result

    async def command_now(self, name: str, key: bytes, *words: bytes | str | int) -> Any:
        """As ``command``, but raise what that waits out."""
        self._check_here(self._wire)
        return await self._execute(name, key, *words)

    def _check_here(self, wire: Wire) -> None:
        if self.is_away or not wire.is_open:
            reason = self.reason if not wire.is_open else f"no reply for {self._wire.overdue:.0f} s"
            raise ConnectionError(f"{self.address}: {reason}")

    async def command(self, name: str, key: bytes, *words: bytes | str | int) -> Any:
        """Return the reply to a command that may run twice; wait and raise as ``run`` does."""

        return await self.call(partial(self._execute, name, key, *words))

    async def ask(self, *words: bytes | str | int) -> Any:
        """As ``command``, in fewer steps if the server is there."""
        if not self.is_away:
            reply = Reply()
            self._wire.send(pack([words]), reply)
            try:
                return await reply
            except (RedisError, OSError) as error:
                if not passes(error):
                    raise
        return await self.call(partial(self._wire.execute_command, *words))

    async def command_once(self, name: str, key: bytes, *words: bytes | str | int) -> Any:
        """As ``command``, for one that must not run twice: raise ``Unconfirmed`` if its reply was lost."""
        return await self.call(partial(_once, partial(self._execute, name, key, *words)))

    async def _execute(self, name: str, key: bytes, *words: bytes | str | int) -> Any:
        try:
            return await self._wire.execute_command(name, key, *words)
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                raise WrongType(f"{decoded(key)}: {error}") from None
            raise

    @property
    def confirms(self) -> bool:
        """Return whether pushes are to be durable: see ``run_durably``."""
        return self._writer is not None

    @property
    def is_away(self) -> bool:
        """Return whether its connection is lost, or a reply is overdue."""
        return not self._wire.is_open or self._wire.overdue > OVERDUE_SECONDS

    @property
    def holds_up(self) -> bool:
        """Return whether calls wait for it: it is away, full or read-only."""
        return self.is_away or self._waiting > 0

    def full(self, waiting: int) -> Unavailable:
        """Return the error for one call more than may wait."""
        return Unavailable(f"{waiting:,} calls wait for {self.address} already (buffer): {self.reason}")

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what ``call`` does; wait and raise as ``run`` does."""
        waiting = max(self._waiting, self._wire.waiting)
        if waiting >= self._buffer and self.is_away:
            raise self.full(waiting)
        begun = time.monotonic()
        if self._wire.is_open:
            try:
                return await call()
            except (AuthenticationError, NoPermissionError) as error:
                raise self._refused(error) from error
            except (RedisError, OSError, PenstockError) as error:
                if NOT_PERMITTED.search(str(error)):
                    raise self._refused(error) from error
                if isinstance(error, WrongType) or not passes(error):
                    raise
        self._waiting += 1
        try:
            return await self._patience(partial(self._when_up, call), begun=begun)
        finally:
            self._waiting -= 1

    async def _when_up(self, call: Callable[[], Awaitable[T]]) -> T:
        if not self._wire.is_open:
            await self._link.wait_up(WAIT_SECONDS)
        if not self._wire.is_open:
            if passes(self.reason):
                raise ConnectionError(f"{self.address}: {self.reason}")
            raise self._refused(self.reason) from self.reason
        return await call()

    async def _open(self) -> None:
        """Connect what is not connected. Raise ``ReadOnlyError`` if it is a replica, as before a failover has ended."""
        for wire in self._wires:
            if not wire.is_open:
                await wire.open()
        try:
            async with asyncio.timeout(MAX_SILENCE):
                role, *_ = await self._wire.execute_command("ROLE")
        except TimeoutError:
            error = Unanswered("no answer while connecting")
            self._wire.end(error, told=False)
            raise error from None
        except ResponseError:  # not permitted
            return
        if role == b"slave":
            raise ReadOnlyError("it is a replica")

    async def _shut(self) -> None:
        for wire in self._wires:
            wire.end(ConnectionError(str(self.reason)), told=False)

    def _refused(self, error: Exception) -> Exception:
        return Unauthorized(f"{self.address}: {error}") if isinstance(error, RedisError) else error

    async def _look(self) -> None:
        """Cut what is silent."""
        self._wire.cut_if_silent(max(LEAST_SILENCE, min(MAX_SILENCE, self._patience.most())))
        if self._writer:
            self._writer.cut_if_silent(CONFIRM_SECONDS + MAX_SILENCE)
        if time.monotonic() - self._pinged >= PING_SECONDS:
            self._pinged = time.monotonic()
            self.subscriber.ping()
            self.subscriber.cut_if_silent(MAX_SILENCE + PING_SECONDS)

    def _lost(self, error: Exception) -> None:
        self.lost_at = time.monotonic()
        self._link.lost(error)

    def _note(self, error: Exception | None) -> None:
        if error is None:
            self.back_at = time.monotonic()
        self._changed(self, error)


async def _once(call: Callable[[], Awaitable[T]]) -> T:
    """Return what ``call`` does, which must not run twice. Raise ``Unconfirmed`` if its reply was lost."""
    try:
        return await call()
    except LostReply as error:
        raise Unconfirmed(f"it may have been executed or not: {error}") from error


def check_url(url: str) -> None:
    """Raise ``WrongCall`` if ``url`` is none of a server that a bus can use."""
    try:
        server_url(url)
    except ValueError as error:
        raise WrongCall(str(error)) from None
    if "+cluster://" in url:
        raise WrongCall("a bus has no Redis Cluster: expected servers of their own, or a primary by its sentinels")
