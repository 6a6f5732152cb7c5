"""The life of a service's process: connect, register, run under supervision, stop, leave."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from math import inf
from typing import Final, Generic, TypeVar

from redis.asyncio import Redis
from redis.backoff import EqualJitterBackoff
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import MovedError, RedisError
from redis.exceptions import TimeoutError as Unanswered

from common import logs
from common.acl import require_rights
from common.context import Context
from common.durability import Durability
from common.health import beat
from common.membership import Membership
from common.outage import Trouble, first_of, passes, told
from common.reload import Reload
from common.server import check_logins, check_server
from common.settings.base import ServiceSettings
from common.wrong_types import name_wrong_key
from penstock.atomic import AtomicWrites
from penstock.connection import MAX_SILENCE, OTHER_SERVER, change_login, connect, follow, return_home
from penstock.errors import Fenced, PenstockError, WrongType
from penstock.keys import Keys
from penstock.metrics import count
from penstock.raw_connection import RawConnection

S = TypeVar("S", bound=ServiceSettings)
Run = Callable[[Context[S]], Awaitable[None]]
Lifespan = Callable[[S], AbstractAsyncContextManager[object]]
"""What a service needs around its runs under the same settings, while the server is away, too."""
FAILURES: Final = (PenstockError, RedisError, OSError, ExceptionGroup)
BACKOFF: Final = EqualJitterBackoff(cap=1, base=0.02)
STAY: Final = "PENSTOCK_STAY"
"""The environment variable with which a process whose registration was deleted stops its work, but does not end."""
LOOK: Final = 1.5
"""Seconds between two looks for an order to stop while nothing moves."""
UNSEEN: Final = 6.0
"""Seconds without such a look after which a service is not ready: its server is silent."""


class Process(Generic[S]):
    """One service from its settings to its exit status; ``serve`` is its whole life."""

    def __init__(self, service: str, settings: S, run: Run[S], lifespan: Lifespan[S] = nullcontext) -> None:
        self._settings, self._run, self._lifespan = settings, run, lifespan
        self._log = logs.logger(self._identity)
        self._reload: Reload[S] = Reload(self._check_server, self._tell, self._log)
        self._trouble = Trouble(self._log)
        self._durability = Durability(settings.durability, settings.durability_timeout)
        self._stop = asyncio.Event()
        self._seen_at = inf
        """When (monotonic) the own registration was looked at last, or a run began; infinite while none is."""
        self._was_in = False
        """Whether the server has let us in, with this login."""
        self._name = name = f"penstock-{service}"
        self._redis = connect(settings.redis, name=name)
        self._wires: list[RawConnection] = []
        elsewhere = settings.service_redis not in (None, settings.redis)
        self._registry_redis = connect(str(settings.service_redis), name=name) if elsewhere else self._redis
        self._keys = Keys(settings.redis_namespace) if settings.redis_namespace else None
        self._membership: Membership[S] | None = None
        if self._keys:
            self._membership = Membership(self._registry_redis, self._redis, self._keys, service, settings, self._log)

    def _identity(self) -> dict[str, str]:
        """Return the service, and the namespace and the id once they are known."""
        namespace, id = self._settings.redis_namespace, self._membership.id if self._membership else None
        known = {"service": self._settings.service, "namespace": namespace, "id": id}
        return {name: value for name, value in known.items() if value}

    def _new_wire(self) -> RawConnection:
        self._wires.append(RawConnection.to(self._settings.redis, self._name))
        return self._wires[-1]

    @property
    def _clients(self) -> "list[Redis]":
        """Those that are connected to the server of the lists."""
        return [self._redis, *(wire.redis for wire in self._wires)]

    async def serve(self) -> int:
        """Run until told to stop; the exit status: 0 as ordered, 1 for whatever must not be hidden."""
        orders = {signal.SIGTERM: self._stop.set, signal.SIGINT: self._stop.set, signal.SIGHUP: self._reload.signalled}
        for number, obey in orders.items():
            asyncio.get_running_loop().add_signal_handler(number, obey)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, orders)  # those that common.signals kept waiting
        beating = asyncio.create_task(beat(os.environ, self._problem, self._log))
        try:
            status = await self._serve()
            if status == 0 and self._dismissed and os.environ.get(STAY):
                await self._stay()
            return status
        finally:
            beating.cancel()
            await asyncio.wait({beating})

    async def _stay(self) -> None:
        """Wait for a signal: a container that ended would be started again, against the order to stop."""
        self._log.info("idle until a signal comes", reason="the registration was deleted")
        self._stop.clear()
        await self._stop.wait()

    def _problem(self) -> str | None:
        """Return why the service does not do its work; None while it does."""
        if self._dismissed:
            return "stopped: its registration was deleted"
        if self._trouble.reason:
            return f"waiting: {self._trouble.reason}"
        if (silent := time.monotonic() - self._seen_at) > UNSEEN:
            return f"waiting: no answer for {silent:.0f} s"
        registered = self._membership is None or self._membership.is_registered
        return None if registered and not self._stop.is_set() else "not registered"

    @property
    def _dismissed(self) -> bool:
        return self._membership is not None and self._membership.dismissed

    async def _serve(self) -> int:
        self._log.info("settings", **self._settings.shown())
        self._warn()
        try:
            return await self._until_stopped(asyncio.create_task(self._live()))
        except FAILURES as error:
            cause = first_of(error)
            await self._count_error(cause)
            self._log.error("failed", reason=told(cause), exc_info=not isinstance(cause, PenstockError | RedisError))
            return 1
        finally:
            for wire in self._wires:
                await wire.close()
            for redis in (*self._clients, self._registry_redis):
                await redis.aclose()

    def _warn(self) -> None:
        for warning in self._settings.warnings():
            self._log.warning("settings", problem=warning)

    async def _until_stopped(self, life: "asyncio.Task[None]") -> int:
        """``stopTimeout`` seconds after the order to stop, the process ends in any case."""
        order = asyncio.create_task(self._stop.wait())
        await asyncio.wait({life, order}, return_when=asyncio.FIRST_COMPLETED)
        order.cancel()
        await asyncio.wait({life}, timeout=self._settings.stop_timeout)
        if life.done():
            life.result()
            return 0
        self._log.error("did not stop in time", stop_timeout=self._settings.stop_timeout)
        life.cancel()
        await asyncio.wait({life}, timeout=1)
        return 1

    async def _live(self) -> None:
        """Run, and run again under a new registration or new settings, until the order to stop."""
        async with AsyncExitStack() as around:
            await around.enter_async_context(self._lifespan(self._settings))
            await self._wait_for_server()
            try:
                while not self._stop.is_set():
                    await self._run_once()
                    if self._reload.settings and not self._stop.is_set():
                        await self._change(self._reload.take(), around)
            finally:
                await self._leave()

    async def _change(self, settings: S, around: AsyncExitStack) -> None:
        """Put ``settings`` in force, unless what the service needs around its runs cannot be had with them."""
        await around.aclose()
        try:
            await around.enter_async_context(self._lifespan(settings))
        except PenstockError as error:
            self._reload.refuse(told(error))
            await around.enter_async_context(self._lifespan(self._settings))
            return
        await self._log_in(settings)
        self._settings = settings
        self._durability = Durability(settings.durability, settings.durability_timeout)
        if self._membership:
            self._membership.change(settings)
        logs.configure(settings.logger_level)
        self._warn()

    async def _log_in(self, settings: S) -> None:
        """Connect by the login of ``settings`` from now on, if it is another one than before."""
        if settings.redis != self._settings.redis:
            for wire in self._wires:
                await wire.close()
            for redis in self._clients:
                await change_login(redis, settings.redis)
        registry = settings.service_redis
        if registry and registry != self._settings.service_redis and self._registry_redis is not self._redis:
            await change_login(self._registry_redis, registry)

    async def _tell(self, order: str, refused: str) -> None:
        if self._membership:
            await self._membership.answer(order, refused)

    async def _wait_for_server(self) -> None:
        """Connect, as long as it takes; raise ``Unsuitable`` for a server that will not do."""
        while not self._stop.is_set():
            try:
                await self._check_server(self._settings)
                self._was_in = True
                self._trouble.over()
                return
            except FAILURES as error:
                await self._bear(first_of(error))

    async def _check_server(self, settings: S) -> None:
        """Raise ``Unsuitable`` where it cannot do what ``settings`` ask."""
        if settings is not self._settings:
            await check_logins(settings, self._settings)
        names = [*settings.lists(), *([self._keys.ids] if self._keys else [])]
        await require_rights(settings, names)
        await check_server(self._redis, names, self._log)
        await Durability(settings.durability, settings.durability_timeout).check_server(self._redis)

    async def _run_once(self) -> None:
        """One run beside the watch over it."""
        if self._membership:
            self._seen_at = time.monotonic()
        wires = iter(self._wires.copy())
        context = Context(
            self._settings,
            self._redis,
            lambda: next(wires, None) or self._new_wire(),
            self._log,
            self._trouble,
            self._durability,
            keys=self._keys,
        )
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(self._supervise(context))
            tasks.create_task(self._watch(context, work))

    async def _supervise(self, context: Context[S]) -> None:
        """Run the service; when it meets trouble that passes, wait and run it again, so that it recovers again."""
        while context.running:
            try:
                if self._membership:
                    await self._membership.enter(context)
                    if self._membership.dismissed:
                        return
                    self._reload.repeat()
                in_hand = context.adopted.total() > 0 and not self._settings.ordered
                if context.running or in_hand:  # what was adopted before the order to stop is finished, too
                    await context.confirm()
                    await self._run(context)
            except FAILURES as error:
                _forget_cancellation()
                await context.reset()
                context.suspect.set()
                await self._bear(first_of(error))

    async def _watch(self, context: Context[S], work: "asyncio.Task[None]") -> None:
        """End the run when it shall not go on: let what is in hand settle, but end its wait at once."""
        while not work.done() and await self._may_go_on(context):
            await self._wait_for_news(context, work)
        self._seen_at = inf
        context.stop()
        while not work.done():
            await self._cut_silent_wires()
            with suppress(RedisError):
                await context.wake()
            await asyncio.wait({work}, timeout=0.02)

    async def _cut_silent_wires(self) -> None:
        for wire in self._wires:
            await wire.cut_if_silent(self._settings.longest_wait + MAX_SILENCE)

    async def _may_go_on(self, context: Context[S]) -> bool:
        await self._cut_silent_wires()
        if self._stop.is_set() or (self._membership and context.id is None):
            return not self._stop.is_set()
        try:
            return await self._is_member(context) and not await self._reload.attend(self._settings)
        except FAILURES as error:
            if not passes(error, was_in=self._was_in):
                raise
            return True

    async def _is_member(self, context: Context[S]) -> bool:
        if self._membership is None:
            return True
        goes_on = await self._membership.attend(context)
        self._seen_at = time.monotonic()
        self._reload.asked(self._membership.order)
        if self._membership.dismissed:
            self._log.info("registration deleted: stopping")
            self._stop.set()
        return goes_on

    async def _wait_for_news(self, context: Context[S], work: "asyncio.Task[None]") -> None:
        """An order, a missing registration, or the end of the run; at most until it is time to look again."""
        events = (self._stop, context.suspect, self._reload.news)
        news = [asyncio.create_task(event.wait()) for event in events]
        longest = min(LOOK, self._settings.lease_expire / 3) if self._settings.ordered else LOOK
        await asyncio.wait({work, *news}, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
        self._reload.news.clear()
        for each in news:
            each.cancel()

    async def _bear(self, error: Exception) -> None:
        """Wait, ever longer up to a second, where waiting mends it; raise it where it does not."""
        if isinstance(error, Fenced):
            event = "fenced by the other server" if str(error).startswith(OTHER_SERVER) else "lease lost"
            self._log.warning(event, key=str(error).removeprefix(OTHER_SERVER))
            return
        if not passes(error, was_in=self._was_in):
            raise error
        error = await self._named(error)
        if self._trouble.begins(error) and isinstance(error, WrongType):
            await self._count_error(error)
        if isinstance(error, MovedError):
            await follow(error, *self._clients)
        elif isinstance(error, Disconnected | Unanswered):
            await return_home(*self._clients)
        with suppress(TimeoutError):
            async with asyncio.timeout(BACKOFF.compute(self._trouble.failures)):
                await self._stop.wait()

    async def _named(self, error: Exception) -> Exception:
        """Return ``error`` with the name of the key, where a server says that one is of the wrong type."""
        id = self._membership.id if self._membership else ""
        return await name_wrong_key(error, (self._redis, self._registry_redis), self._settings, id)

    async def _count_error(self, error: Exception) -> None:
        if self._keys:
            with suppress(RedisError):
                async with AtomicWrites(self._redis) as writes:
                    count(writes, self._keys.metric("error"))
                    writes.hset(self._keys.metric("error"), "last", told(error))
                    await writes.execute()

    async def _leave(self) -> None:
        if self._membership:
            try:
                await self._membership.leave()
            except (RedisError, WrongType) as error:
                reason = told(await self._named(error))
                self._log.warning("not deregistered; the registration ends by itself", reason=reason)


def _forget_cancellation() -> None:
    """A group of tasks that failed has cancelled ours to end it; Python 3.11 leaves that on record."""
    task = asyncio.current_task()
    while task and task.cancelling():
        task.uncancel()
