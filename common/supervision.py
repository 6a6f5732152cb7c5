"""One run of a service beside the watch over it: it ends when the run must, and begins again after an outage."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, Generic, TypeVar

from redis.exceptions import RedisError
from structlog.typing import FilteringBoundLogger

from common.connections import Connections
from common.context import Context
from common.membership import Membership
from common.reload import Reload
from common.settings.base import ServiceSettings
from common.wrong_types import name_wrong_key
from penstock.base.errors import Fenced, PenstockError, WrongType
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicWrites
from penstock.core.link import OTHER_SERVER, Outage, again, describe, first_of, passes
from penstock.core.metrics import count

S = TypeVar("S", bound=ServiceSettings)
T = TypeVar("T")
Run = Callable[[Context[S]], Awaitable[None]]
FAILURES: Final = (PenstockError, RedisError, OSError, ExceptionGroup)
CHECK_SECONDS: Final = 1.5
"""Seconds between two checks for an order to stop while nothing moves."""
MAX_UNCHECKED: Final = 6.0
"""Seconds without a check after which a service is not ready: its server is silent."""


class Supervisor(Generic[S]):
    """Runs ``run`` until the order ``stop``, a deleted registration, or new settings.

    ``membership`` is None for a service without a namespace.
    """

    def __init__(
        self,
        run: Run[S],
        connections: Connections,
        membership: Membership[S] | None,
        reload: Reload[S],
        keys: Keys | None,
        log: FilteringBoundLogger,
    ) -> None:
        self._run, self._connections, self._membership, self._reload = run, connections, membership, reload
        self._keys, self._log = keys, log
        self.outage = Outage(log)
        self.stop = asyncio.Event()
        """Set by an order to stop."""
        self.was_connected = False
        """Whether the server has accepted the login once."""
        self._checked_at = inf
        """Monotonic time of the last check, or of the start of the run; infinite while there is no run."""

    @property
    def unchecked(self) -> float:
        """Seconds since the registration was checked."""
        return time.monotonic() - self._checked_at

    async def run_once(self, context: Context[S]) -> None:
        """Run the service until it must stop, or go on with other settings."""
        if self._membership:
            self._checked_at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(self._work(context))
            tasks.create_task(self._watch(context, work))

    async def _work(self, context: Context[S]) -> None:
        """Run the service; after an outage run it again, so that it recovers again."""
        while await self.again(partial(self._live, context), ends_outage=False):
            pass

    async def _live(self, context: Context[S]) -> bool:
        """Run the service until it returns, or raises; return whether it is to run again."""
        if not context.running:
            return False
        try:
            if self._membership:
                await self._membership.enter(context)
                if self._membership.deleted:
                    self._stop_deleted()
                    return False
                self._reload.retry()
            in_hand = context.adopted.total() > 0 and not context.settings.ordered
            if context.running or in_hand:  # what was adopted before the order to stop is finished, too
                await context.confirm()
                await self._run(context)
        except FAILURES as error:
            _forget_cancellation()
            await context.reset()
            context.unregistered.set()
            cause = first_of(error)
            if not isinstance(cause, Fenced):
                raise await self.name_key(cause, context.settings) from error
            event = "fenced by the other server" if str(cause).startswith(OTHER_SERVER) else "lease lost"
            self._log.warning(event, key=str(cause).removeprefix(OTHER_SERVER))
        return True

    async def _watch(self, context: Context[S], work: "asyncio.Task[None]") -> None:
        """End the run when it must: let it settle what is in hand, but end its wait at once."""
        while not work.done() and await self._may_go_on(context):
            await self._wait_for_news(context, work)
        self._checked_at = inf
        context.is_last = self.stop.is_set()
        context.stop()
        while not work.done():
            await self._connections.cut_silent()
            with suppress(RedisError):
                await context.wake()
            await asyncio.wait({work}, timeout=0.02)

    async def _may_go_on(self, context: Context[S]) -> bool:
        await self._connections.cut_silent()
        if self.stop.is_set() or (self._membership and context.id is None):
            return not self.stop.is_set()
        try:
            return await self._is_member(context) and not await self._reload.handle(context.settings)
        except FAILURES as error:
            if self._lasts(error):
                raise
            await self._connections.after(first_of(error))
            return True

    async def _is_member(self, context: Context[S]) -> bool:
        if self._membership is None:
            return True
        goes_on = await self._membership.check(context)
        self._checked_at = time.monotonic()
        self._reload.request(self._membership.reload_order)
        if self._membership.deleted:
            self._stop_deleted()
        return goes_on

    def _stop_deleted(self) -> None:
        """Obey a deletion, whether the run or the watch meets it first."""
        if self._membership and not self.stop.is_set():
            self._log.info(f"registration {self._membership.gone}: stopping")
            self.stop.set()

    async def _wait_for_news(self, context: Context[S], work: "asyncio.Task[None]") -> None:
        """Wait for an order, a missing registration, or the end of the run; at most until the next check."""
        events = (self.stop, context.unregistered, self._reload.news)
        news = [asyncio.create_task(event.wait()) for event in events]
        settings = context.settings
        longest = min(CHECK_SECONDS, settings.lease_expire / 3) if settings.ordered else CHECK_SECONDS
        await asyncio.wait({work, *news}, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
        self._reload.news.clear()
        for each in news:
            each.cancel()

    async def again(self, call: Callable[[], Awaitable[T]], *, ends_outage: bool = True) -> T:
        """Return what ``call`` does; call again as long as trouble with the servers passes by itself."""
        return await again(
            call, self.outage, lasts=self._lasts, mend=self._mend, until=self.stop, ends_outage=ends_outage
        )

    def _lasts(self, error: Exception) -> bool:
        return not isinstance(error, FAILURES) or not passes(error, was_connected=self.was_connected)

    async def _mend(self, error: Exception, is_news: bool) -> None:
        if is_news and isinstance(error, WrongType):
            await self.count_error(error)
        await self._connections.after(error)

    async def name_key(self, error: Exception, settings: S) -> Exception:
        """Return ``error`` with the name of the key if a server says that one is of the wrong type."""
        id = self._membership.id if self._membership else ""
        return await name_wrong_key(error, (self._connections.redis, self._connections.registry), settings, id)

    async def count_error(self, error: Exception) -> None:
        if self._keys:
            with suppress(RedisError):
                async with AtomicWrites(self._connections.redis) as writes:
                    count(writes, self._keys.metric("error"))
                    writes.hset(self._keys.metric("error"), "last", describe(error))
                    await writes.execute()


def _forget_cancellation() -> None:
    """Undo the cancellation by which a failed group of tasks ended this one: Python 3.11 leaves it on record."""
    task = asyncio.current_task()
    while task and task.cancelling():
        task.uncancel()
