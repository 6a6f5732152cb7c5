"""The life of a process that uses no server: it does what its lifespan does, until an order to stop."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import Generic, TypeVar

from common import logs
from common.health import beat
from common.process import Lifespan, enter_anew
from common.reload import Reload
from common.settings.base import ServiceSettings
from penstock.base.errors import PenstockError
from penstock.core.link import describe

S = TypeVar("S", bound=ServiceSettings)


class Alone(Generic[S]):
    """It registers nowhere and keeps no metrics; signals, settings, logs and the health file are as of ``Process``."""

    def __init__(self, settings: S, lifespan: Lifespan[S]) -> None:
        self._settings, self._lifespan = settings, lifespan
        self._log = logs.logger(lambda: {"service": settings.service})
        self._reload: Reload[S] = Reload(self._accept, self._accept, self._log)
        self._stop, self._is_ready = asyncio.Event(), False

    async def serve(self) -> int:
        """Run until an order to stop; return the exit status: 0 after an order, 1 for what must not be hidden."""
        orders = {signal.SIGTERM: self._stop.set, signal.SIGINT: self._stop.set, signal.SIGHUP: self._reload.signalled}
        for number, obey in orders.items():
            asyncio.get_running_loop().add_signal_handler(number, obey)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, orders)  # those that penstock.base.signals kept waiting
        self._log.log(logs.settings_level(), "settings", **self._settings.shown())
        self._warn()
        heartbeat = asyncio.create_task(beat(os.environ, self._problem, self._log))
        try:
            await self._live()
        except (PenstockError, OSError) as error:
            self._log.error("failed", reason=describe(error), exc_info=not isinstance(error, PenstockError))
            return 1
        finally:
            heartbeat.cancel()
            await asyncio.wait({heartbeat})
        return 0

    def _problem(self) -> str | None:
        return None if self._is_ready and not self._stop.is_set() else "not open"

    def _warn(self) -> None:
        for warning in self._settings.warnings():
            self._log.warning("settings", problem=warning)

    async def _accept(self, *_: object) -> None:
        """Nobody has to be asked, or told."""

    async def _live(self) -> None:
        async with AsyncExitStack() as around:
            await around.enter_async_context(self._lifespan(self._settings))
            self._is_ready = True
            self._log.info("ready", server="none")
            stop = asyncio.create_task(self._stop.wait())
            while not self._stop.is_set():
                news = asyncio.create_task(self._reload.news.wait())
                await asyncio.wait({stop, news}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                self._reload.news.clear()
                while not self._stop.is_set() and await self._reload.handle(self._settings):
                    await self._change(self._reload.take(), around)

    async def _change(self, settings: S, around: AsyncExitStack) -> None:
        """Apply ``settings``; keep the old ones if the lifespan cannot be entered with the new."""
        if not await enter_anew(around, self._lifespan, settings, self._settings, self._reload):
            return
        self._settings = settings
        logs.configure(settings.logger_level)
        self._warn()
