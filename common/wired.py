"""Transactions on the wire of a run: sent, settled, and as durable as the settings ask."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError
from structlog.typing import FilteringBoundLogger

from common.durability import Durability
from common.settings.base import ServiceSettings
from common.transaction import REFUSED, Transaction
from penstock.base.encoding import decoded
from penstock.base.errors import WrongCall, WrongType
from penstock.base.keys import Keys, pending_of
from penstock.core.link import Outage, is_full, rest
from penstock.core.raw_connection import Command, RawConnection, pack
from penstock.core.script import Script, translate_error

S = TypeVar("S", bound=ServiceSettings)
FULL_POLL_SECONDS: Final = 0.2
"""Seconds between two checks of a list while the server is full."""
RECOVERY_SECONDS: Final = 3.0
"""Seconds without a failure after which a connection counts as recovered: a few back-offs."""


@dataclass
class Wired(Generic[S]):
    """A run with its connections: ``wire`` is the raw one on which it waits and settles, ``redis`` for everything else.

    ``id`` and ``keys`` are None without a namespace; ``token`` is the fencing token of the lease if ``ordered`` is set.
    """

    settings: S
    redis: "Redis"
    new_wire: Callable[[], RawConnection]
    log: FilteringBoundLogger
    outage: Outage
    durability: Durability
    keys: Keys | None = None
    finish: Callable[[], None] = lambda: None
    """Order the process to stop, as SIGTERM does: its work is done."""
    id: str | None = None
    token: int | None = None
    registration: str | None = None
    """The key of the own registration, for transactions to check; None if it is on another server."""
    unregistered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set if a transaction did not find the own registration: have the registry checked at once."""
    is_last: bool = False
    """Whether the run ends by an order to stop: no other follows."""
    recovers_alone: bool = True
    """Whether an outage is over as soon as the server of the lists answers."""
    name: str = ""
    """The name by which ``beside`` made it; empty for the run itself."""
    blocked: str = ""
    """What it waits for though its server answers, e.g. ``full: out``; empty for nothing. Set it by ``block``."""
    _blocked_at: float = 0
    _failing: dict[str, float] = field(default_factory=dict)
    """Monotonic time of the last failure of each wire that has not recovered, by its name."""
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _under_way: deque[Transaction] = field(default_factory=deque)
    _known: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.wire = self.new_wire()

    @property
    def running(self) -> bool:
        """Return False once this run must end: finish what is in hand and return."""
        return not self._stopped.is_set()

    @property
    def trouble(self) -> str:
        """Return what the run waits for, in words; empty if it does its work."""
        return self.outage.reason or self.blocked

    def block(self, reason: str, **facts: object) -> None:
        """Note that messages wait for ``reason``, or that they move again if it is empty; log each change once."""
        if reason and reason != self.blocked:
            self.log.warning("waiting", reason=reason, **facts)
            self._blocked_at = self._blocked_at if self.blocked else time.monotonic()
        elif self.blocked and not reason:
            self.log.info("resumed", after=round(time.monotonic() - self._blocked_at, 3))
        self.blocked = reason

    def pending(self, name: str) -> str:
        """Return the name of this instance's pending list; ``name`` itself if instances share it (lease, no namespace).

        Raise ``WrongCall`` for a name that is not among ``pending_lists``: nobody would adopt what is left in it.
        """
        if name not in self.settings.pending_lists:
            raise WrongCall(f"{name} is not among the pending_lists of the settings: nobody would adopt what it holds")
        return pending_of(name, None if self.settings.ordered else self.id)

    def transaction(self, *commands: Command) -> Transaction:
        """Return ``commands`` as one transaction that also checks the registration, packed to be sent many times.

        Several commands go into a MULTI, which a full server refuses; give a script among them by its source. A script
        alone needs no MULTI and may go by its digest: after NOSCRIPT nothing was done.
        """
        looks: list[Command] = [("EXISTS", self.registration)] if self.registration else []
        multi = len(commands) > 1
        batch = [("MULTI",), *commands, *looks, ("EXEC",)] if multi else [*commands, *looks]
        batch += self.durability.commands
        return Transaction(pack(batch), len(batch), multi)

    async def send(self, transaction: Transaction) -> None:
        """Send ``transaction``; ``settled`` returns its outcome. Several may be under way."""
        await self.wire.send(transaction.packed)
        self._under_way.append(transaction)

    async def confirm(self) -> None:
        """Wait until everything that earlier runs settled is as durable as the settings ask.

        Raise ``NotDurable`` if it is not: then nothing more may be taken.
        """
        if self.durability.commands and self.settings.pending_lists:
            key = self.pending(self.settings.pending_lists[0])
            await self._count_replicas()
            batch = self.durability.confirmation(key)
            await self.wire.send(pack(batch))
            replies = await self.wire.receive(len(batch))
            for reply in replies:
                if isinstance(reply, ResponseError):
                    raise await self.named(reply, key)
            self.durability.check(replies[len(replies) - len(self.durability.commands) :])

    async def _count_replicas(self) -> None:
        if self.durability.census:
            await self.wire.send(pack(self.durability.census))
            (reply,) = await self.wire.receive(1)
            if isinstance(reply, ResponseError):
                raise reply
            self.durability.count(reply)

    async def settled(self, *, recovers: bool = True) -> list[Any]:
        """Return the replies to the commands of the oldest ``send``, once they are as durable as the settings ask.

        Raise the first error among them. ``recovers`` is False for a transaction whose success ends no outage.
        """
        with self._watched(only_looks=not recovers):
            return await self._settled(self._under_way.popleft())

    @contextmanager
    def _watched(self, *, only_looks: bool = False) -> Iterator[None]:
        """Note a failure of the body, or its recovery."""
        try:
            yield
        except Exception:
            self._failing[self.name] = time.monotonic()
            raise
        self._recovered(certain=not only_looks)

    def _recovered(self, *, certain: bool) -> None:
        """End the outage once each failed wire has settled something, or not failed for ``RECOVERY_SECONDS``."""
        if certain:
            self._failing.pop(self.name, None)
        for name, failed in [*self._failing.items()]:
            if time.monotonic() - failed > RECOVERY_SECONDS:
                del self._failing[name]
        if self.recovers_alone and not self._failing:
            self.outage.over()

    async def _settled(self, transaction: Transaction) -> list[Any]:
        replies = await self.wire.receive(transaction.replies)
        count = len(replies) - len(self.durability.commands)
        executed, confirmations = replies[:count], replies[count:]
        if transaction.multi:
            executed = [*executed[:-1], *(executed[-1] if isinstance(executed[-1], list) else executed[-1:])]
        for reply in [*executed, *confirmations]:
            if isinstance(reply, ResponseError):
                raise translate_error(reply)
        if transaction.multi:
            executed = executed[count - 1 :]
        self.durability.check(confirmations)
        if self.registration and executed.pop() == 0:
            self.unregistered.set()
        return list(executed)

    async def run(self, script: Script, meanwhile: Callable[[], object] = lambda: None, /, **named: Any) -> Any:
        """Run ``script`` as the only transaction under way, and return its result.

        Send its digest once the server has it. Call ``meanwhile`` while the server works. Raise as ``settled`` does.
        """
        return await self._run(script, meanwhile, named, recovers=True)

    async def _run(
        self, script: Script, meanwhile: Callable[[], object], named: dict[str, Any], *, recovers: bool
    ) -> Any:
        if script.name in self._known:
            await self.send(self.transaction(script.by_digest(**named)))
            meanwhile()
            try:
                return (await self.settled(recovers=recovers))[0]
            except NoScriptError:
                self._known.clear()
        await self.send(self.transaction(script.by_source(**named)))
        meanwhile()
        (result,) = await self.settled(recovers=recovers)
        self._known.add(script.name)
        return result

    async def run_unless_full(self, script: Script, *meanwhile: Callable[[], object], **named: Any) -> Any:
        """Like ``run``, but if the server's memory is full, pause and return ``REFUSED``: nothing was done."""
        return await self._unless_full(self.run(script, *meanwhile, **named))

    async def begin(self, script: Script, /, **named: Any) -> Any:
        """Like ``run_unless_full``, for a script that another one follows: its success does not end an outage."""
        return await self._unless_full(self._run(script, lambda: None, named, recovers=False), ends_outage=False)

    async def _unless_full(self, running: Awaitable[Any], *, ends_outage: bool = True) -> Any:
        try:
            result = await running
        except ResponseError as error:
            if not is_full(error):
                raise
            self.outage.full_server(error)
            await self.pause(FULL_POLL_SECONDS)
            return REFUSED
        if ends_outage:
            self.outage.has_room()
        return result

    async def start(self, script: Script, /, **named: Any) -> None:
        """Send ``script``; ``outcome`` returns its result. Several may be under way."""
        await self.send(self.prepared(script, **named))

    def prepared(self, script: Script, /, **named: Any) -> Transaction:
        """Return ``script`` as a transaction, by digest once the server has it."""
        known = script.name in self._known
        return self.transaction(script.by_digest(**named) if known else script.by_source(**named))

    async def outcome(self, script: Script, *, recovers: bool = True) -> Any:
        """Return the result of the oldest ``start``, that of ``script``. ``REFUSED``: nothing was done.

        The server is full, or has forgotten the script. Raise as ``settled`` does.
        """
        try:
            (result,) = await self.settled(recovers=recovers)
        except NoScriptError:
            self._known.clear()
            return REFUSED
        except ResponseError as error:
            if not is_full(error):
                raise
            self.outage.full_server(error)
            await self.pause(FULL_POLL_SECONDS)
            return REFUSED
        self._known.add(script.name)
        if recovers:
            self.outage.has_room()
        return result

    async def ask(self, script: Script, /, **named: Any) -> Any:
        """Return the result of the read-only ``script``, without a transaction. Raise as ``settled`` does."""
        with self._watched(only_looks=True):
            return await self._asked(script, named)

    async def _asked(self, script: Script, named: dict[str, Any]) -> Any:
        reply: Any = None
        calls = [script.by_digest, script.by_source] if script.name in self._known else [script.by_source]
        for command in calls:
            await self.wire.send(pack([command(**named)]))
            (reply,) = await self.wire.receive(1)
            if not isinstance(reply, NoScriptError):
                break
        if isinstance(reply, ResponseError):
            raise translate_error(reply)
        self._known.add(script.name)
        return reply

    async def named(self, error: ResponseError, *keys: str, expected: str = "list") -> Exception:
        """Return ``error``, or for a WRONGTYPE an error that names the one of ``keys`` that is not ``expected``."""
        if str(error).startswith("WRONGTYPE"):
            for key in keys:
                kind = decoded(await self.redis.type(key))
                if kind not in (expected, "none"):
                    return WrongType(f"{key} holds a {kind}, expected a {expected}")
        return error

    async def pause(self, seconds: float, news: asyncio.Event | None = None) -> None:
        """Sleep for ``seconds``, but end with the run, and when ``news`` is set."""
        await rest(seconds, *filter(None, (self._stopped, news)))
