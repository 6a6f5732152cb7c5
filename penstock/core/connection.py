"""Connect to Redis or Valkey by URL: one connection each, no silent retries, cancellable."""

import asyncio
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis, Sentinel
from redis.asyncio.connection import ConnectCallbackT, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, MovedError

from penstock.base.urls import hosts_of
from penstock.core.certificates import versions_of
from penstock.core.link import OTHER_SERVER, Fate, fate

MAX_SILENCE: Final = 10.0
"""Seconds without a reply after which a connection counts as lost, e.g. if a link drops packets."""


def connect(
    url: str,
    *,
    silence: float | None = MAX_SILENCE,
    name: str | None = "penstock",
    on_connect: ConnectCallbackT | None = None,
) -> "Redis":
    """Return a client with one connection, opened on first use and lost after ``silence`` seconds without a reply.

    ``redis://``, ``rediss://`` and ``unix://`` are parsed as by redis-py. ``redis+sentinel://host:port,host:port/service``
    follows a primary; user and password are the server's, ``sentinel_username`` and ``sentinel_password`` the
    sentinels'. ``redis+cluster://host:port,host:port`` names nodes of a cluster, of which any may be down. With
    ``rediss+`` both use TLS, the sentinels unless ``sentinel_ssl=false``.

    A command is never sent again after a lost reply, since a second BLMOVE takes a second message: raise the error.
    """
    options: dict[str, Any] = {
        "socket_timeout": silence,
        "socket_connect_timeout": MAX_SILENCE,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "client_name": name,
        "redis_connect_func": on_connect,
    }
    if "+sentinel://" in url:
        client = _through_sentinel(url, options)
    elif "+cluster://" in url:
        client = _through_seeds(url, options)
    else:
        if url.startswith("unix://"):
            del options["socket_keepalive"]
        client = Redis.from_pool(BlockingConnectionPool.from_url(url, max_connections=1, timeout=None, **options))
    return cancellable(client)


def cancellable(client: "Redis") -> "Redis":
    """Change ``client``, not yet connected, so that a task that waits for it can be cancelled at any moment; return it.

    redis-py sends with ``asyncio.wait_for``, which before Python 3.12 swallows a cancellation that arrives just as the
    command is sent: https://github.com/python/cpython/issues/86296. The canceller would wait for ever.
    """
    kind: Any = client.connection_pool.connection_class

    class Cancellable(kind):  # type: ignore[misc]
        async def _connect(self) -> None:
            """Read certificates, keys and authorities again if their files have changed since the last success."""
            context = getattr(self, "ssl_context", None)
            now = context and versions_of(context.certfile, context.keyfile, context.ca_certs, context.ca_path)
            if context and now != vars(self).get("read"):
                context.context = None  # redis-py keeps the first one for good
            await super()._connect()
            self.read = now

        async def send_packed_command(self, *args: Any, **options: Any) -> None:
            task = asyncio.current_task()
            asked = task.cancelling() if task else 0
            try:
                await super().send_packed_command(*args, **options)
            except RuntimeError as error:  # as uvloop says that the connection was closed meanwhile
                raise ConnectionError(str(error)) from error
            if task and task.cancelling() > asked:
                await self.disconnect(nowait=True)  # its reply must not be taken for that of another command
                raise asyncio.CancelledError

    client.connection_pool.connection_class = Cancellable
    return client


@dataclass(frozen=True)
class SentinelOptions:
    """What a URL says of sentinels and of the server that they name, as options of redis-py."""

    service: str
    ours: dict[str, Any]
    theirs: dict[str, Any]
    """Those of the connections to the sentinels."""


def sentinel_options(url: str) -> SentinelOptions:
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    tls = _tls(parts.query) if parts.scheme.startswith("rediss") else {}
    login = {"username": given.get("sentinel_username"), "password": given.get("sentinel_password")}
    theirs = {} if given.get("sentinel_ssl", "true").lower() in ("false", "no", "0") else tls
    user, password = (unquote(part) if part else None for part in (parts.username, parts.password))
    credentials: dict[str, Any] = {"username": user, "password": password, "db": int(given.get("db", 0))}
    return SentinelOptions(parts.path.strip("/"), credentials | tls, login | theirs)


def _through_sentinel(url: str, options: dict[str, Any]) -> "Redis":
    how = sentinel_options(url)
    never_again = {"socket_timeout": MAX_SILENCE, "protocol": 2, "retry": options["retry"]}
    sentinel = Sentinel(hosts_of(url, 26379), sentinel_kwargs=never_again | how.theirs)
    for each in sentinel.sentinels:
        cancellable(each)
    client: Redis = sentinel.master_for(
        how.service, connection_pool_class=_PoolOfOne, max_connections=1, timeout=None, **options, **how.ours
    )
    return client


def _tls(query: str) -> dict[str, Any]:
    """Return the TLS options in a URL's query, converted to their types."""
    kept = urlencode([pair for pair in parse_qsl(query) if pair[0].startswith("ssl_")])
    found: dict[str, Any] = {**parse_url(f"rediss://host?{kept}")}
    return {name: value for name, value in found.items() if name.startswith("ssl_")} | {"ssl": True}


def _through_seeds(url: str, options: dict[str, Any]) -> "Redis":
    parts = urlsplit(url)
    seeds = hosts_of(url)
    login, mark, _ = parts.netloc.rpartition("@")
    first = parts._replace(scheme=parts.scheme.partition("+")[0], netloc=f"{login}{mark}{seeds[0][0]}:{seeds[0][1]}")
    pool = BlockingConnectionPool.from_url(first.geturl(), max_connections=1, timeout=None, **options)
    kind: Any = pool.connection_class

    class Seeded(kind):  # type: ignore[misc]
        async def _connect(self: Any) -> None:
            """Connect to the current node; if it is a seed and cannot be reached, to the next seed."""
            here = self.host, self.port
            places = [here, *(seed for seed in seeds if seed != here)] if here in seeds else [here]
            for place in places:
                vars(self).update(host=place[0], port=place[1])
                try:
                    return await kind._connect(self)  # type: ignore[no-any-return]
                except (OSError, TimeoutError):
                    if place == places[-1]:
                        raise

    pool.connection_class = Seeded
    return Redis.from_pool(pool)


class _PoolOfOne(SentinelConnectionPool, BlockingConnectionPool):
    """A pool of one connection to the primary that the sentinels name; other tasks wait for it."""

    async def get_master_address(self) -> Any:
        """Ask the sentinels, then close their connections: they are needed only after the next connection loss."""
        try:
            return await super().get_master_address()  # type: ignore[no-untyped-call]
        finally:
            await self.sentinel_manager.aclose()


async def hang_up(*clients: "Redis") -> None:
    """Have ``clients`` connect anew before their next commands: their server is no longer the one."""
    for client in clients:
        pool: Any = client.connection_pool
        await pool.update_active_connections_for_reconnect()
        await pool.disconnect(inuse_connections=False)


async def find_anew(error: Exception, *clients: "Redis") -> None:
    """Have ``clients`` go where ``error`` says that the server is, or ask for its address anew after a loss."""
    if str(error).startswith(OTHER_SERVER):
        return
    if isinstance(error, MovedError):
        await follow(error, *clients)
    elif (found := fate(error, was_open=True)) in (Fate.GONE, Fate.ELSEWHERE):
        await return_home(*clients)
        if found is Fate.ELSEWHERE:
            await hang_up(*clients)


async def follow(moved: MovedError, *clients: "Redis") -> None:
    """Redirect ``clients`` to the Redis Cluster node that has the slot; a command under way ends on the old node."""
    for client in clients:
        pool: Any = client.connection_pool
        pool.home = getattr(pool, "home", (pool.connection_kwargs.get("host"), pool.connection_kwargs.get("port")))
        _turn(pool, moved.host, moved.port)
        await hang_up(client)


async def return_home(*clients: "Redis") -> None:
    """Redirect ``clients`` back to the node of their URL after ``follow``: the other node may be gone for good."""
    for client in clients:
        if home := getattr(client.connection_pool, "home", None):
            _turn(client.connection_pool, *home)
            await hang_up(client)


def _turn(pool: Any, host: str, port: int) -> None:
    pool.connection_kwargs.update(host=host, port=port)
    for connection in (*pool._get_free_connections(), *pool._get_in_use_connections()):
        connection.host, connection.port = host, port


async def change_login(client: "Redis", url: str) -> None:
    """Reconnect ``client`` with the user and password in ``url``; close its old connections."""
    old = client.connection_pool
    pool = connect(url).connection_pool
    kept = "socket_timeout", "client_name", "redis_connect_func"
    pool.connection_kwargs.update({name: old.connection_kwargs[name] for name in kept})
    client.connection_pool = pool
    await old.disconnect()


def mask_password(url: str) -> str:
    """Return ``url`` with ``***`` for its password, for logs."""
    hidden = re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)(password=)[^&]*", r"\1***", hidden)


async def server_time(redis: "Redis") -> float:
    """Return the server's time in seconds since the epoch."""
    seconds, micros = await redis.time()
    return float(seconds + micros / 1e6)
