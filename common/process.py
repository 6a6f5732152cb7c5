"""The life of a service's process: connect, register, run under supervision, stop, leave."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import Final, Generic, TypeVar

from redis.exceptions import RedisError

from common import logs
from common.acl import require_rights
from common.connections import Connections
from common.context import Context
from common.durability import Durability
from common.health import beat
from common.membership import Membership
from common.reload import Reload
from common.server import check_logins, check_server
from common.settings.base import ServiceSettings
from common.supervision import FAILURES, MAX_UNCHECKED, Run, Supervisor
from penstock.base.errors import PenstockError, WrongType
from penstock.base.keys import Keys
from penstock.core.link import describe, first_of

S = TypeVar("S", bound=ServiceSettings)
Lifespan = Callable[[S], AbstractAsyncContextManager[object]]
"""A context entered once for each version of the settings; it stays open while the server is away."""
STAY: Final = "PENSTOCK_STAY"
"""The environment variable with which a process whose registration was deleted stops its work, but does not end."""


class Process(Generic[S]):
    """One service from its settings to its exit status; ``serve`` is its whole life."""

    def __init__(self, settings: S, run: Run[S], lifespan: Lifespan[S] = nullcontext) -> None:
        self._settings, self._lifespan = settings, lifespan
        self._log = logs.logger(self._identity)
        self._connections = Connections(settings, f"penstock-{settings.service}")
        self._durability = Durability(settings.durability, settings.durability_timeout)
        self._reload: Reload[S] = Reload(self._check_server, self._answer, self._log)
        self._keys = Keys(settings.redis_namespace) if settings.redis_namespace else None
        self._membership: Membership[S] | None = None
        redis, registry = self._connections.redis, self._connections.registry
        if self._keys:
            self._membership = Membership(registry, redis, self._keys, settings, self._log)
        self._supervisor = Supervisor(run, self._connections, self._membership, self._reload, self._keys, self._log)
        self._stop, self._outage = self._supervisor.stop, self._supervisor.outage

    def _identity(self) -> dict[str, str]:
        """Return the service, and the namespace and the id once they are known."""
        namespace, id = self._settings.redis_namespace, self._membership.id if self._membership else None
        known = {"service": self._settings.service, "namespace": namespace, "id": id}
        return {name: value for name, value in known.items() if value}

    async def serve(self) -> int:
        """Run until an order to stop; return the exit status: 0 after an order, 1 for what must not be hidden."""
        orders = {signal.SIGTERM: self._stop.set, signal.SIGINT: self._stop.set, signal.SIGHUP: self._reload.signalled}
        for number, obey in orders.items():
            asyncio.get_running_loop().add_signal_handler(number, obey)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, orders)  # those that penstock.base.signals kept waiting
        heartbeat = asyncio.create_task(beat(os.environ, self._problem, self._log))
        try:
            status = await self._serve()
            if status == 0 and self._deleted and os.environ.get(STAY):
                await self._stay()
            return status
        finally:
            heartbeat.cancel()
            await asyncio.wait({heartbeat})

    async def _stay(self) -> None:
        """Wait for a signal: a container that ended would be started again, against the order to stop."""
        self._log.info("idle until a signal comes", reason=self._problem())
        self._stop.clear()
        await self._stop.wait()

    def _problem(self) -> str | None:
        """Return why the service does not do its work; None while it does."""
        if self._membership and self._membership.deleted:
            return f"stopped: its registration was {self._membership.gone}"
        if self._outage.reason:
            return f"waiting: {self._outage.reason}"
        if (silent := self._supervisor.unchecked) > MAX_UNCHECKED:
            return f"waiting: no answer for {silent:.0f} s"
        registered = self._membership is None or self._membership.is_registered
        return None if registered and not self._stop.is_set() else "not registered"

    @property
    def _deleted(self) -> bool:
        return self._membership is not None and self._membership.deleted

    async def _serve(self) -> int:
        self._log.log(logs.settings_level(), "settings", **self._settings.shown())
        self._warn()
        try:
            return await self._until_stopped(asyncio.create_task(self._live()))
        except FAILURES as error:
            cause = first_of(error)
            await self._supervisor.count_error(cause)
            self._log.error(
                "failed", reason=describe(cause), exc_info=not isinstance(cause, PenstockError | RedisError)
            )
            return 1
        finally:
            await self._connections.close()

    def _warn(self) -> None:
        for warning in self._settings.warnings():
            self._log.warning("settings", problem=warning)

    async def _until_stopped(self, life: "asyncio.Task[None]") -> int:
        """End the process at most ``stopTimeout`` seconds after the order to stop."""
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
                    await self._supervisor.run_once(self._new_context())
                    if self._reload.settings and not self._stop.is_set():
                        await self._change(self._reload.take(), around)
            finally:
                await self._leave()

    def _new_context(self) -> Context[S]:
        """Return the context of a run; it uses the raw connections of the run before."""
        raw = iter(self._connections.raw.copy())
        return Context(
            self._settings,
            self._connections.redis,
            lambda: next(raw, None) or self._connections.new_raw(),
            self._log,
            self._outage,
            self._durability,
            keys=self._keys,
            finish=self._stop.set,
        )

    async def _change(self, settings: S, around: AsyncExitStack) -> None:
        """Apply ``settings``; keep the old ones if the lifespan cannot be entered with the new."""
        if not await enter_anew(around, self._lifespan, settings, self._settings, self._reload):
            return
        await self._connections.use(settings)
        self._settings = settings
        self._durability = Durability(settings.durability, settings.durability_timeout)
        if self._membership:
            self._membership.change(settings)
        logs.configure(settings.logger_level)
        self._warn()

    async def _answer(self, order: str, refused: str) -> None:
        if self._membership:
            await self._membership.answer(order, refused)

    async def _wait_for_server(self) -> None:
        """Connect, however long it takes. Raise ``Unsuitable`` for a server that cannot be used."""

        async def check() -> None:
            if self._stop.is_set():
                return
            try:
                await self._check_server(self._settings)
            except FAILURES as error:
                raise await self._supervisor.name_key(first_of(error), self._settings) from error
            self._supervisor.was_connected = True
            self._outage.over()

        await self._supervisor.again(check, ends_outage=False)

    async def _check_server(self, settings: S) -> None:
        """Raise ``Unsuitable`` if the server cannot do what ``settings`` ask."""
        if settings is not self._settings:
            await check_logins(settings, self._settings)
        names, redis = [*settings.lists(), *([self._keys.ids] if self._keys else [])], self._connections.redis
        await require_rights(settings, names)
        await check_server(redis, names, self._log)
        await Durability(settings.durability, settings.durability_timeout).check_server(redis)

    async def _leave(self) -> None:
        if self._membership:
            try:
                await self._membership.leave()
            except (RedisError, WrongType) as error:
                reason = describe(await self._supervisor.name_key(error, self._settings))
                self._log.warning("not deregistered; the registration ends by itself", reason=reason)


async def enter_anew(around: AsyncExitStack, lifespan: Lifespan[S], settings: S, former: S, reload: Reload[S]) -> bool:
    """Leave ``around``, and enter ``lifespan`` with ``settings``; if that fails, refuse them and enter with ``former``.

    Return whether the new settings are in force.
    """
    await around.aclose()
    try:
        await around.enter_async_context(lifespan(settings))
    except PenstockError as error:
        reload.refuse(describe(error))
        await around.enter_async_context(lifespan(former))
        return False
    return True
