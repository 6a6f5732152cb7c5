"""Orders to reload the settings while the service runs: each is checked, applied or refused, and answered."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from structlog.typing import FilteringBoundLogger

from common.settings.base import ServiceSettings
from penstock.base.errors import SettingsError, Unsuitable

S = TypeVar("S", bound=ServiceSettings)


class Reload(Generic[S]):
    """Handles one order after the other. One that changes something is answered once the new settings apply.

    ``check`` raises ``Unsuitable`` if the server cannot do what the settings ask. ``answer`` takes an order, and why it
    is refused or an empty text. If they raise anything else, the order stays for the next ``handle``.
    """

    def __init__(
        self,
        check: Callable[[S], Awaitable[None]],
        answer: Callable[[str, str], Awaitable[None]],
        log: FilteringBoundLogger,
    ) -> None:
        self._check, self._send_answer, self._log = check, answer, log
        self.news = asyncio.Event()
        """Set when an order waits."""
        self.settings: S | None = None
        """The settings to apply once the run has ended."""
        self._orders: deque[str] = deque()
        self._requested: str | None = None
        self._signals = 0
        self._begun: str | None = None
        """The last order for which a run ends."""
        self._changes: dict[str, str] = {}
        self._refused = ""

    def signalled(self) -> None:
        """Note that SIGHUP came."""
        self._signals += 1
        self._add(f"SIGHUP {self._signals}")

    def request(self, order: str | None) -> None:
        """Note the order in the registration, which may be the last one still."""
        if order is not None and order != self._requested:
            self._requested = order
            self._add(order)

    def _add(self, order: str) -> None:
        self._orders.append(order)
        self.news.set()

    async def handle(self, present: S) -> bool:
        """Answer what can be answered under the ``present`` settings; return whether their run must end."""
        while self._orders and self.settings is None:
            if not self._refused:
                await self._check_order(present)
            if self.settings is None:
                await self._answer(self._orders[0])
        return self.settings is not None

    async def _check_order(self, present: S) -> None:
        try:
            found = await asyncio.to_thread(present.again)
            changes, order = found.changes_from(present), self._orders[0]
            if changes or (found.runs_anew and self._begun != order):
                await self._check(found)
                self.settings, self._changes, self._begun = found, changes, order
        except (SettingsError, Unsuitable) as error:
            self.refuse(str(error))

    async def _answer(self, order: str) -> None:
        await self._send_answer(order, self._refused)
        if not self._refused:
            self._log.info("reloaded", order=order, changes=self._changes)
        self._orders.popleft()
        self._changes, self._refused = {}, ""

    def take(self) -> S:
        """Return the settings to apply."""
        assert self.settings
        settings, self.settings = self.settings, None
        return settings

    def retry(self) -> None:
        """Handle again what could not be handled during an outage."""
        if self._orders:
            self.news.set()

    def refuse(self, reason: str) -> None:
        """Refuse the settings that the order is about."""
        self._changes, self._refused = {}, reason
        for problem in reason.splitlines():
            self._log.error("reload refused", order=self._orders[0], problem=problem)
