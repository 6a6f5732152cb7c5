"""himporter: HTTP requests to a list, and the answers back."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, Final

import structlog
from redis.exceptions import RedisError

from common.context import Context
from common.http.access import Access, write_access
from common.http.proxies import Proxies
from common.http.server import HttpServer, listening_socket
from common.http.tokens import Tokens
from penstock.base.errors import PenstockError
from penstock.base.keys import Keys
from penstock.core.script import Script
from services.himporter.accepted import Accepted
from services.himporter.bridge import Bridge
from services.himporter.cache import Cache
from services.himporter.durable import Durable
from services.himporter.handler import RequestHandler
from services.himporter.settings import Settings

COUNT_SECONDS: Final = 1.0
"""Seconds between two writes of the counters."""
LINGER_SECONDS: Final = 3_600
"""Seconds after the death of an instance in which workers may still answer it."""
LEAVE_SECONDS: Final = 1.5
"""Seconds of ``stopTimeout`` that are kept for what follows draining."""
RIGHT: Final = "ask"
"""The right that a token must have."""
LUA: Final = Path(__file__).parent / "lua"
_keep_replies: Final = Script.read(LUA / "keep_replies.lua")
_log: Final = structlog.get_logger("penstock.himporter")


class Importer:
    """Runs of the service, and the port that it serves, which stays open while the server of the lists is away."""

    def __init__(self) -> None:
        self.access = Access()
        self.port = 0
        self.socket: socket.socket | None = None
        self._bridge: Bridge | None = None
        self._durable: Durable | None = None
        self._context: Context[Settings] | None = None

    @asynccontextmanager
    async def lifespan(self, settings: Settings) -> AsyncIterator[None]:
        """Serve ``settings``; at the end answer what is in hand, and write what was counted."""
        if self.socket is None:
            self.socket = listening_socket(settings.listen_host, settings.listen_port, shared=settings.share_port)
            self.port = self.socket.getsockname()[1]
        keys = Keys(str(settings.redis_namespace))
        bridge = self._bridge = Bridge(
            settings.redis, settings.out, keys, settings.timeout, settings.max_waiting, self.access
        )
        bridge.start()
        proxies = Proxies(settings.trusted_proxies)
        tokens = Tokens(keys, RIGHT, bridge.fetch) if settings.tokens else None
        cache = Cache(settings, keys, bridge, self.access)
        durable = self._durable = _durable(settings)
        call = durable.call if durable else bridge.call
        accepted = Accepted(settings, keys, bridge, self.access, call=call)
        handler = RequestHandler(bridge, proxies, tokens, accepted, cache, probes=settings.probes)
        server = HttpServer(settings.limits, handler=handler, proxies=proxies, access=self.access)
        log = _log.bind(service=settings.service, namespace=settings.redis_namespace)
        log.info("listening", host=settings.listen_host, port=self.port)
        starting = asyncio.create_task(server.start_when(lambda: bridge.is_open, self.socket))
        try:
            yield
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            closing = self.socket if self._context is None or self._context.is_last else None
            seconds = max(0.5, settings.stop_timeout - LEAVE_SECONDS)
            cut = await server.drain(seconds, closing, lambda many: log.info("draining", many=many, seconds=seconds))
            if cut:
                log.warning("connections cut", many=cut, reason="their requests had no answer within stopTimeout")
            self._bridge = None
            await bridge.close()
            if durable:
                await durable.close()
            await self._write_last()

    async def run(self, context: Context[Settings]) -> None:
        """Say who we are; keep the list of our answers, and write what was counted, until the end."""
        bridge, self._context = self._bridge, context
        if bridge is None:
            raise PenstockError("himporter runs within its lifespan")
        bridge.become(str(context.id))
        kept = -inf
        while context.running:
            if time.monotonic() - kept >= context.settings.service_renew:
                await self._keep_replies(context, bridge)
                kept = time.monotonic()
            await context.pause(COUNT_SECONDS)
            await self._write(context)
            bridge.check()
            if self._durable:
                self._durable.check()
            context.outage.has_room()
            context.outage.over()

    async def _keep_replies(self, context: Context[Settings], bridge: Bridge) -> None:
        """Keep the list of our answers, and remove lists whose time is over."""
        stale: list[Any] = []
        while True:
            stale = await _keep_replies(
                context.redis,
                replies=context.required_keys.responses,
                list=bridge.reply_to,
                stale=stale,
                expire=context.settings.service_expire,
                linger=context.settings.timeout + LINGER_SECONDS,
            )
            if not stale:
                return

    async def _write(self, context: Context[Settings]) -> None:
        await write_access(context.redis, context.required_keys.metric("http"), self.access)

    async def _write_last(self) -> None:
        """Write what was counted since the run ended, if the server is there."""
        if self._context is not None:
            with suppress(RedisError, PenstockError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._write(self._context)


def _durable(settings: Settings) -> Durable | None:
    """Return what confirms accepted requests, started; None if the server's memory suffices."""
    if settings.durability == "memory":
        return None
    durable = Durable(settings.redis, settings.durability, settings.durability_timeout)
    durable.start()
    return durable
