"""Where a queue is: run calls on the server that has it, and follow it to another one."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import Gone, Moving
from penstock.base.log import Log
from penstock.bus.events import Emitter
from penstock.bus.host import Host
from penstock.bus.keys import QueueKeys, available_channel, lease_key, metadata_key
from penstock.core.instance import Instance
from penstock.core.script import Script
from penstock.core.wire import Reply

if TYPE_CHECKING:
    from penstock.bus.consumption import Consumption

_log: Final = Log("penstock.bus")


class Located(Emitter):
    """A queue by its name, with its keys and its server."""

    def __init__(self, bus: Host, name: str) -> None:
        super().__init__()
        self.name = name
        self.keys = QueueKeys.of(name)
        self.lease = lease_key(name)
        self.available = available_channel(name)
        self.instance: Instance
        """Its server once attached."""
        self.consumptions: list[Consumption] = []
        """The one that runs, if any, behind those that are ending."""
        self._bus = bus
        self._metadata = metadata_key(name)
        self._ready = asyncio.Event()
        self._reviving = asyncio.Lock()
        self._alive_at = 0.0

    @property
    def bus(self) -> Host:
        """Return the bus that the queue belongs to."""
        return self._bus

    @property
    def is_attached(self) -> bool:
        """Return whether messages can be pushed and consumed."""
        return self._ready.is_set()

    def note_ttl(self, seconds: int) -> None:
        """Note that the queue has another ttl (s)."""

    async def exists(self) -> bool:
        """Return whether the queue exists."""
        return bool(await (await self._home()).command("EXISTS", self.keys.metadata))

    async def call(self, script: Script, **named: Any) -> Any:
        """Run a script that may run twice on the queue's server; if the queue is moved to another one, there.

        Raise as ``Instance.run`` does, and ``Gone`` if the queue is nowhere.
        """
        return await self._wherever(lambda instance: instance.run(script, **named))

    async def call_durably(self, script: Script, **named: Any) -> Any:
        """As ``call_once``, and wait until it is durable: see ``Instance.run_durably``."""
        return await self._wherever(lambda instance: instance.run_durably(script, **named))

    async def call_once(self, script: Script, **named: Any) -> Any:
        """As ``call``, for a script that must not run twice: raise ``Unconfirmed`` if its reply was lost."""
        return await self._wherever(lambda instance: instance.run_once(script, **named))

    async def finish(self, sent: Reply | None, script: Script, **named: Any) -> Any:
        """As ``call_once``; if the script was ``sent``, run it only if the server has not executed it."""
        if sent is not None:
            with suppress(Moving, Gone):
                return await self.instance.finish(sent, script, **named)
        return await self.call_once(script, **named)

    async def follow(self, instance: Instance) -> bool:
        """Wait while the queue is moved away from ``instance``; return True if it is elsewhere, or there to stay."""
        if not self.is_attached:
            self._bus.forget_home(self._metadata)
            return await self._bus.locate(self._metadata) not in (None, instance)
        async with self._reviving:
            if self.instance is not instance:
                return True
            found = await self._bus.locate(self._metadata)
            if found in (None, instance):
                return False
            assert found is not None
            self.instance = found
            self._alive_at = time.monotonic()
            _log.info("queue followed", queue=self.name, server=found.address)
            for each in tuple(self.consumptions):
                await each.note_moved(instance)
            return True

    async def _wherever(self, run: Callable[[Instance], Awaitable[Any]]) -> Any:
        while True:
            instance = await self._home()
            try:
                return await run(instance)
            except Moving:
                await self.follow(instance)
            except Gone:
                if not await self.follow(instance):
                    raise

    async def _home(self) -> Instance:
        return self.instance if self.is_attached else await self._bus.home(self._metadata)
