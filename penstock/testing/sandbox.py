"""A sandbox, which runs a composition on embedded servers and can kill, stop and restart each of its processes."""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError
from penstock.base.keys import Keys
from penstock.base.launch import search_path
from penstock.base.ports import free_port
from penstock.base.secrets import without_files
from penstock.base.shape import Place
from penstock.base.urls import server_of, split_server
from penstock.composition.model import Composition, Part
from penstock.composition.service import DEFAULT_URL
from penstock.core.connection import connect
from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from penstock.testing.service_process import ServiceProcess

Route = Callable[[str, str, int], Awaitable[str]]
"""Return the host and port for a process to connect to, given its name, a server's name and the embedded one's port."""
POLL_SECONDS: Final = 0.05
"""Seconds between two tries of a command."""
R = TypeVar("R")
SERVER_URL: Final = re.compile(r"(rediss?(\+sentinel|\+cluster)?|valkeys?|unix)://")
LOCAL_PORT: Final = re.compile(r"(?<=://)(localhost|127\.0\.0\.1):([0-9]+)")
LISTEN_PORT: Final = "listen_port"
"""The setting of a service that listens."""


class Sandbox:
    """The processes of ``composition`` that have a command, on embedded servers.

    Replace every server that their settings or environment name with an embedded one, empty at first, so that nothing
    reaches another. If a variable names the port on which a service listens, e.g. ``http://localhost:8080``, it gets a
    free one instead, and so does the service. ``route`` may lead a process to a server by another way, such as a proxy.
    ``overrides`` are settings for every service that has them; ``options`` are the servers'.
    """

    def __init__(
        self,
        composition: Composition,
        *,
        route: Route | None = None,
        overrides: Mapping[str, object] = {},
        aof: bool = False,
        **options: Any,
    ) -> None:
        self._parts = [part for part in composition.parts if part.command]
        if not self._parts:
            raise PenstockError(f"{composition.directory}: no process to start; expected a Procfile")
        for part in self._parts:
            if SERVER_URL.search(part.command or ""):
                raise PenstockError(
                    f"{composition.directory}: {part.name}: its command names a server, which it would reach; expected "
                    "the server in a variable, such as REDIS, that can be given another one here"
                )
        self._route, self._overrides, self._aof, self._options = route, overrides, aof, options
        self._ports = {port: str(free_port()) for port in _named_ports(self._parts)}
        self.servers: dict[str, EmbeddedServer] = {}
        """By host and port as in the settings: ``localhost:6379``."""
        self.processes: dict[str, ServiceProcess] = {}
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-sandbox-"))
        self._fork_server: ForkServer | None = None
        self._clients: dict[str, Redis] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _open(self) -> None:
        if any(part.module for part in self._parts):
            self._open_fork_server()
        await self._open_server(host_of(DEFAULT_URL))
        for part in self._parts:
            place = self._directory / part.name
            place.mkdir()
            environ = self._environ(part, place)
            for name, value in environ.items():
                if _is_server(value):
                    await self._open_server(host_of(value))
                    environ[name] = await self._way(part, value)
            self.processes[part.name] = ServiceProcess(part, environ, place / "log", self._fork_server)

    def _open_fork_server(self) -> None:
        """Import the settings of each service and what uses them; for a program, what most programs import."""
        modules = ["redis", "redis.asyncio"]
        for part in self._parts:
            if part.service and part.module:
                modules += [f"{part.module[0]}.{name}" for name in ("settings", "service")]
        self._fork_server = ForkServer(*dict.fromkeys(modules))

    async def start(self) -> None:
        """Start all processes."""
        for process in self.processes.values():
            await process.start()

    async def __aexit__(self, *_: object) -> None:
        """End everything, even if this task is cancelled meanwhile."""
        ending = asyncio.create_task(self._end_all())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait({ending})
            raise

    async def _end_all(self) -> None:
        # If one of them cannot be ended, all else must be, too.
        await asyncio.gather(*(process.kill() for process in self.processes.values()), return_exceptions=True)
        if self._fork_server:
            await asyncio.to_thread(self._fork_server.__exit__)
        for client in self._clients.values():
            await client.aclose()
        for server in self.servers.values():
            await asyncio.to_thread(server.__exit__)
        shutil.rmtree(self._directory, ignore_errors=True)

    def client(self, server: str) -> "Redis":
        """Return a client, past any route, of the server that settings call ``server`` (as in ``Place.server``)."""
        host, database = split_server(server)
        if server not in self._clients:
            self._clients[server] = connect(f"redis://127.0.0.1:{self.servers[host].port}/{database}")
        return self._clients[server]

    async def restart_server(self, host: str) -> None:
        """Stop a server with SIGTERM and start it again with the data that it has on disk."""
        for server, client in self._clients.items():
            if split_server(server)[0] == host:
                await client.connection_pool.disconnect()
        await asyncio.to_thread(self.servers[host].restart)

    async def flush_scripts(self) -> None:
        """Let every server that answers forget all scripts."""
        for host in self.servers:
            with suppress(RedisError):
                await self.client(f"{host}/0").script_flush()

    async def kill(self, name: str) -> None:
        """Kill a process and expire its registration."""
        process = self.processes[name]
        pid = process.pid
        await process.kill()
        await self.expire_registration(process.part, pid)

    async def expire_registration(self, part: Part, pid: int | None) -> None:
        """Expire the registration of a killed process now, instead of after ``serviceExpire`` seconds.

        ``pid`` is that of the killed shell, which the service had replaced by ``exec``; None if it did not run.
        """
        if part.namespace is None or pid is None:
            return
        redis, keys = self.registry(part), Keys(part.namespace)
        for id in await answered(lambda: redis.lrange(encoded(keys.ids), 0, -1)):
            key = encoded(keys.instance(decoded(id)))
            if await answered(partial(redis.hget, key, "pid")) == str(pid).encode():
                await answered(partial(redis.pexpire, key, 1))

    def registry(self, part: Part) -> "Redis":
        """Return a client of the server on which a service registers."""
        return self.client(server_of(part.urls[1]))

    async def spoil(self, place: Place) -> Callable[[], Awaitable[None]]:
        """Put a string in place of a list. Return a function that puts back what was there."""
        redis, key, aside = self.client(place.server), encoded(place.key), encoded(f"{place.key}:aside")
        async with redis.pipeline(transaction=True) as change:
            change.execute_command("COPY", key, aside, "REPLACE")
            change.set(key, "spoiled by a fault")
            await change.execute()

        async def mend() -> None:
            async with redis.pipeline(transaction=True) as change:
                change.delete(key)
                change.execute_command("COPY", aside, key)
                change.delete(aside)
                await change.execute()

        return mend

    async def _open_server(self, host: str) -> None:
        if host not in self.servers:
            self.servers[host] = EmbeddedServer(aof=self._aof, **self._options)
            await asyncio.to_thread(self.servers[host].start)

    def _environ(self, part: Part, place: Path) -> dict[str, str]:
        """Return the environment of a process, with the servers that its files name and none of this process."""
        environ = {name: value for name, value in os.environ.items() if not _is_server(value)}
        environ["PATH"] = search_path(environ)
        environ |= {"PYTHONUNBUFFERED": "1", "REDIS": part.ends[0].url if part.ends else DEFAULT_URL, **part.environ}
        if part.settings is not None:
            names, fields = part.settings.names(), dict(part.settings)
            for field, value in {**self._overrides, **part.settings.apart(place)}.items():
                if field in fields:
                    environ[names.variable_of(field)] = str(value)
            environ |= {names.variable_of(field): url for field, url in fields.items() if _is_server(url)}
            if (port := fields.get(LISTEN_PORT)) in self._ports:
                environ[names.variable_of(LISTEN_PORT)] = self._ports[port]
        return {name: self._with_free_port(value) for name, value in without_files(environ).items()}

    def _with_free_port(self, value: str) -> str:
        return LOCAL_PORT.sub(lambda found: f"{found[1]}:{self._ports.get(int(found[2]), found[2])}", value)

    async def _way(self, part: Part, url: str) -> str:
        host, database = split_server(server_of(url))
        port = self.servers[host].port
        way = await self._route(part.name, host, port) if self._route else f"127.0.0.1:{port}"
        return f"redis://{way}/{database}"


async def answered(call: Callable[[], Awaitable[R]]) -> R:
    """Await ``call`` again until the server answers, and return the answer."""
    while True:
        try:
            return await call()
        except (ConnectionError, TimeoutError):
            await asyncio.sleep(POLL_SECONDS)


def _named_ports(parts: Iterable[Part]) -> set[int]:
    """Return the ports on which services of ``parts`` listen, and which variables of other parts name."""
    named = {int(port) for part in parts for value in part.environ.values() for _, port in LOCAL_PORT.findall(value)}
    return named & {port for part in parts if part.settings for name, port in part.settings if name == LISTEN_PORT}


def host_of(url: str) -> str:
    """Return the host and port of ``url``, by which a sandbox knows a server."""
    return split_server(server_of(url))[0]


def _is_server(value: object) -> bool:
    return isinstance(value, str) and SERVER_URL.match(value) is not None
