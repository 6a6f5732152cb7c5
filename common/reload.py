"""Orders to read the settings anew while the service runs: each is judged, obeyed or refused, and answered."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from structlog.typing import FilteringBoundLogger

from common.settings.base import ServiceSettings
from penstock.errors import SettingsError, Unsuitable

S = TypeVar("S", bound=ServiceSettings)


class Reload(Generic[S]):
    """One order after the other. One that changes something is answered when the new settings are in force.

    ``check`` raises ``Unsuitable`` where the server cannot do what settings ask; ``tell`` takes an order and why it is
    refused, empty where it is not. What else they raise is trouble: the order stands, for the next ``attend``.
    """

    def __init__(
        self,
        check: Callable[[S], Awaitable[None]],
        tell: Callable[[str, str], Awaitable[None]],
        log: FilteringBoundLogger,
    ) -> None:
        self._check, self._tell, self._log = check, tell, log
        self.news = asyncio.Event()
        """Set when there is an order to attend to."""
        self.settings: S | None = None
        """Those to be put in force, once the run has ended."""
        self._orders: deque[str] = deque()
        self._asked: str | None = None
        self._signals = 0
        self._changes: dict[str, str] = {}
        self._refused = ""

    def signalled(self) -> None:
        """SIGHUP came."""
        self._signals += 1
        self._add(f"SIGHUP {self._signals}")

    def asked(self, order: str | None) -> None:
        """The registration says ``order``, maybe as before."""
        if order is not None and order != self._asked:
            self._asked = order
            self._add(order)

    def _add(self, order: str) -> None:
        self._orders.append(order)
        self.news.set()

    async def attend(self, present: S) -> bool:
        """Answer what can be answered under the ``present`` settings; whether their run shall end for others."""
        while self._orders and self.settings is None:
            if not self._refused:
                await self._judge(present)
            if self.settings is None:
                await self._answer(self._orders[0])
        return self.settings is not None

    async def _judge(self, present: S) -> None:
        try:
            found = await asyncio.to_thread(present.again)
            if changes := found.changes_from(present):
                await self._check(found)
                self.settings, self._changes = found, changes
        except (SettingsError, Unsuitable) as error:
            self.refuse(str(error))

    async def _answer(self, order: str) -> None:
        await self._tell(order, self._refused)
        if not self._refused:
            self._log.info("reloaded", order=order, changes=self._changes)
        self._orders.popleft()
        self._changes, self._refused = {}, ""

    def take(self) -> S:
        """The settings to put in force."""
        assert self.settings
        settings, self.settings = self.settings, None
        return settings

    def repeat(self) -> None:
        """What could not be attended to can be now."""
        if self._orders:
            self.news.set()

    def refuse(self, reason: str) -> None:
        """The settings that the order is about are not to be used, or no more."""
        self._changes, self._refused = {}, reason
        for problem in reason.splitlines():
            self._log.error("reload refused", order=self._orders[0], problem=problem)
