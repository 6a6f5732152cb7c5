"""hqueue: queues of tasks over HTTP."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import groupby
from typing import Any, Final

import structlog
from redis.exceptions import RedisError

from common.context import Context
from common.http.access import Access, write_access
from common.http.caller import Caller
from common.http.proxies import Proxies
from common.http.server import HttpServer, listening_socket
from common.http.tokens import Tokens
from penstock.base.errors import PenstockError, WrongType
from penstock.base.keys import Keys
from penstock.core.connection import connect
from penstock.core.link import is_full
from penstock.sealing.keyring import Keyring
from penstock.sealing.master import master_key
from services.hqueue.actions import actions_of
from services.hqueue.delivering import Delivering
from services.hqueue.handler import RequestHandler
from services.hqueue.news import News
from services.hqueue.seals import Seals
from services.hqueue.served import Served
from services.hqueue.settings import Settings
from services.hqueue.steps import from_steps
from services.hqueue.store import SERVED_SECONDS, Store
from services.hqueue.task_token import TaskTokens
from services.hqueue.webhooks import Webhooks

DUE: Final = 500
"""Maximum number of tasks of each kind that one look finds due."""
LOOK_SECONDS: Final = 0.25
"""Longest time until a task that has become due is seen."""
LEAST_SECONDS: Final = 0.02
LEAVE_SECONDS: Final = 1.5
"""Seconds of ``stopTimeout`` that are kept for what follows draining."""
COUNT_SECONDS: Final = 1.0
ALL: Final = 1_000_000
_log: Final = structlog.get_logger("penstock.hqueue")


class Queues:
    """Runs of the service, and the port that it serves, which stays open while the server of the queues is away."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.access = Access()
        self._caller: Caller | None = None
        self._served: Served | None = None
        self._context: Context[Settings] | None = None
        self._trouble: Exception | None = None

    @asynccontextmanager
    async def lifespan(self, settings: Settings) -> AsyncIterator[None]:
        """Serve ``settings``; at the end answer what is in hand."""
        if self.socket is None:
            self.socket = listening_socket(settings.listen_host, settings.listen_port, shared=settings.share_port)
        keys = Keys(str(settings.redis_namespace))
        async with AsyncExitStack() as stack:
            caller = self._caller = Caller(settings.redis, "penstock-hqueue")
            caller.start()
            stack.push_async_callback(caller.close)
            seals = Seals(await _keyring(settings, keys, stack))
            secrets = (settings.webhook_secret or "").split()
            webhooks = Webhooks(settings.webhook_hosts, secrets, settings.webhook_timeout)
            stack.push_async_callback(webhooks.close)
            served = self._served = Served(Store(caller, keys, settings), settings, seals, webhooks)
            delivering = Delivering(served)
            delivering.start()
            stack.push_async_callback(delivering.close)
            news = News(settings.redis, {keys.task_news: partial(_hear, served, delivering)})
            news.start()
            stack.push_async_callback(news.close)
            proxies = Proxies(settings.trusted_proxies)
            tokens = Tokens(keys, "fetch", caller.fetch) if settings.tokens else None
            handler = RequestHandler(
                actions_of(served), tokens, partial(_is_ready, caller, served), self._note, settings
            )
            server = HttpServer(settings.limits, handler=handler, proxies=proxies, access=self.access)
            log = _log.bind(service=settings.service, namespace=settings.redis_namespace)
            log.info("listening", host=settings.listen_host, port=self.socket.getsockname()[1])
            starting = asyncio.create_task(server.start_when(lambda: caller.is_open, self.socket))
            try:
                yield
            finally:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                closing = self.socket if self._context is None or self._context.is_last else None
                served.tasks.close()
                served.ends.close()
                cut = await server.drain(max(0.5, settings.stop_timeout - LEAVE_SECONDS), closing)
                if cut:
                    log.warning("connections cut", many=cut, reason="their requests had no answer within stopTimeout")

    async def run(self, context: Context[Settings]) -> None:
        """Act on what is due, and write what was counted, until the end."""
        caller, served, self._context = self._caller, self._served, context
        if caller is None or served is None:
            raise PenstockError("hqueue runs within its lifespan")
        served.store.become(str(context.id))
        keys, counted_at, noted_at, is_said = context.required_keys, 0.0, 0.0, False
        policy: dict[Any, Any] = {"keeper": "hqueue", "eventCapacity": context.settings.event_capacity}
        while context.running:
            caller.check()
            is_said = is_said or await _has_room(context, context.redis.hset(keys.policy, mapping=policy))
            if served.key is None:
                await _agree(served)
            if time.monotonic() - noted_at >= SERVED_SECONDS:
                noted_at = time.monotonic()
                await from_steps(served.store.note_served())
            wait = await _act(served.store)
            self._tell(context)
            await context.pause(wait)
            if time.monotonic() - counted_at >= COUNT_SECONDS:
                counted_at = time.monotonic()
                if await _has_room(context, _agree(served)) and await _has_room(context, self._write(context)):
                    context.outage.has_room()
                    context.outage.over()
        with suppress(RedisError):
            await self._write(context)

    def _note(self, error: Exception) -> None:
        self._trouble = error

    def _tell(self, context: Context[Settings]) -> None:
        """Tell the operator of an error that a request has met; raise it, unless it is that the server is full."""
        trouble, self._trouble = self._trouble, None
        if trouble and is_full(trouble):
            context.outage.full_server(trouble)
        elif trouble:
            raise trouble

    async def _write(self, context: Context[Settings]) -> None:
        await write_access(context.redis, context.required_keys.metric("http"), self.access)


async def _agree(served: Served) -> None:
    """Sign task tokens with the key that the server has now: all other instances do."""
    known = None if served.key is None else served.key.key
    served.key = TaskTokens(await from_steps(served.store.shared_key(known)))


async def _has_room(context: Context[Settings], writing: Awaitable[object]) -> bool:
    """Return False if the server is too full for ``writing``, and go on: what is forgotten makes room."""
    try:
        await writing
    except RedisError as error:
        if not is_full(error):
            raise
        context.outage.full_server(error)
        return False
    return True


def _is_ready(caller: Caller, served: Served) -> bool:
    return caller.is_open and served.key is not None


def _hear(served: Served, delivering: Delivering, text: str | None) -> None:
    """Wake those who wait for what a script has published; all if something may have been missed."""
    kind, _, rest = (text or "").partition(" ")
    if kind == "ended":
        served.ends.wake(rest, ALL)
    elif kind == "ready":
        count, _, queue = rest.partition(" ")
        served.tasks.wake(queue, int(count))
    elif kind == "deliver":
        delivering.hear()
    else:
        delivering.hear()
        served.tasks.wake_all()
        served.ends.wake_all()


async def _act(store: Store) -> float:
    """Act on what is due, and return the seconds until more may be.

    A queue with a key of the wrong type keeps no other one waiting: all others are seen to before its error is raised.
    """
    wrong, skip = dict[str, WrongType](), 0
    while True:
        after, found = await from_steps(store.due(DUE, skip))
        await _sweep(store, found, wrong)
        if not wrong or len(found) < DUE:
            break
        skip += DUE
    for error in wrong.values():
        raise error
    if found or after is None:
        return LEAST_SECONDS if found else LOOK_SECONDS
    return min(max(after, LEAST_SECONDS), LOOK_SECONDS)


async def _sweep(store: Store, found: list[tuple[str, str]], wrong: dict[str, WrongType]) -> None:
    """Act on tasks, given by id and queue; note errors in ``wrong``, by queue, and leave such queues out."""
    for queue, pairs in groupby(sorted(found, key=lambda pair: pair[1]), key=lambda pair: pair[1]):
        ids = [] if queue in wrong else [id for id, _ in pairs]
        try:
            for first in range(0, len(ids), DUE):
                await from_steps(store.sweep(queue, ids[first : first + DUE]))
        except WrongType as error:
            wrong[queue] = error


async def _keyring(settings: Settings, keys: Keys, stack: AsyncExitStack) -> Keyring | None:
    """Return what seals, and hears of keys that change; None without a master key."""
    if settings.master_key is None:
        return None
    redis = connect(settings.keys_redis or settings.redis, name="penstock-hqueue-keys")
    stack.push_async_callback(redis.aclose)
    keyring = Keyring(redis, keys, master_key(settings.master_key))
    news = News(settings.keys_redis or settings.redis, {keys.key_changes: keyring.invalidate})
    news.start()
    stack.push_async_callback(news.close)
    return keyring
