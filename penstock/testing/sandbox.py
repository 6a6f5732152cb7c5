"""A sandbox, which runs a composition on embedded servers and can kill, stop and restart each of its processes."""

import asyncio
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from redis.asyncio import Redis

from penstock.composition.files import DEFAULT_URL
from penstock.composition.model import Part, Place, Topology, server_of
from penstock.composition.procfile import STOP_SECONDS
from penstock.connection import connect
from penstock.encoding import decoded, encoded
from penstock.errors import PenstockError
from penstock.keys import Keys
from penstock.launch import search_path
from penstock.secrets import without_files
from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from penstock.testing.watchdog import Watchdog

Route = Callable[[str, int], Awaitable[str]]
"""Return the host and port for a process to connect to, given its name and the port of an embedded server."""
SERVER_URL: Final = re.compile(r"(rediss?(\+sentinel|\+cluster)?|valkeys?|unix)://")
RESTART_SECONDS: Final = 0.1
"""Seconds between the failure of a process and its next start."""


class ServiceProcess:
    """One process of a composition; if it fails, it is started again, as a container runtime does.

    ``fork_server`` starts it if its command is just ``python -m``; a shell starts any other command.
    """

    def __init__(self, part: Part, environ: Mapping[str, str], log: Path, fork_server: ForkServer | None) -> None:
        self.part, self.name, self.log = part, part.name, log
        self.pid: int | None = None
        """None while the process does not run."""
        self.starts = 0
        self._environ, self._fork_server = environ, fork_server if part.module else None
        self._end: asyncio.Task[int] | None = None
        self._wanted = False
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the process unless it runs. Raise ``PenstockError`` if the fork server cannot start it."""
        async with self._starting:
            self._wanted = True
            if self.pid is not None:
                return
            self._end = await (self._from_fork_server(self._fork_server) if self._fork_server else self._from_shell())
            self.starts += 1

    async def _from_fork_server(self, fork_server: ForkServer) -> "asyncio.Task[int]":
        try:
            connection = fork_server.run(self.part.module[0], self.part.module[1:], self._environ, self.log)
        except OSError as error:
            raise PenstockError(f"{self.name} cannot be started: the fork server has ended") from error
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            pid = await reader.readline()
        except BaseException:
            writer.close()  # which kills the process
            raise
        if not pid:
            raise PenstockError(
                f"{self.name} cannot be started: {self.log} cannot be written, or the fork server ended"
            )
        self.pid = int(pid)

        async def ended() -> int:
            status = int(await reader.readline() or -signal.SIGKILL)
            writer.close()
            return status

        return asyncio.create_task(self._watch(ended()))

    async def _from_shell(self) -> "asyncio.Task[int]":
        with self.log.open("ab") as output:
            process = await asyncio.create_subprocess_shell(
                str(self.part.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environ,
                start_new_session=True,
            )
        self.pid, watchdog = process.pid, Watchdog(process.pid)

        async def ended() -> int:
            status = await process.wait()
            watchdog.release()
            return status

        return asyncio.create_task(self._watch(ended()))

    async def _watch(self, end: Coroutine[None, None, int]) -> int:
        status = await end
        self.pid = None
        if status != 0 and self._wanted:
            await asyncio.sleep(RESTART_SECONDS)
            if self._wanted:
                await self.start()
        return status

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all that it started."""
        if self.pid:
            with suppress(ProcessLookupError):
                try:
                    os.killpg(self.pid, number)
                except ProcessLookupError:  # not yet in a session of its own
                    os.kill(self.pid, number)

    async def kill(self) -> None:
        await self._stopped(signal.SIGKILL)

    async def stop(self) -> int:
        """Send SIGTERM, and SIGKILL after ``STOP_SECONDS``; return the exit status, 0 if it was never started."""
        return await self._stopped(signal.SIGTERM)

    async def _stopped(self, number: signal.Signals) -> int:
        async with self._starting:  # otherwise a restart under way would go on unseen
            self._wanted = False
            if self._end is None:
                return 0
            self.send(number)
        end = self._end
        done, _ = await asyncio.wait({end}, timeout=STOP_SECONDS)
        if not done:
            self.send(signal.SIGKILL)
        async with asyncio.timeout(STOP_SECONDS):
            return await end

    def log_tail(self, characters: int = 2_000) -> str:
        """Return the last ``characters`` of its output."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.is_file() else ""


class Sandbox:
    """The processes of ``topology`` that have a command, on embedded servers.

    Replace every server that their settings or environment name with an embedded one, empty at first, so that nothing
    reaches another. ``route`` may lead a process there by another way, such as a proxy. ``overrides`` are settings for
    every service that has them; ``options`` are the servers'.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        route: Route | None = None,
        overrides: Mapping[str, object] = {},
        aof: bool = False,
        **options: Any,
    ) -> None:
        self._parts = [part for part in topology.parts if part.command]
        if not self._parts:
            raise PenstockError(f"{topology.directory}: no process to start; expected a Procfile")
        for part in self._parts:
            if SERVER_URL.search(part.command or ""):
                raise PenstockError(
                    f"{topology.directory}: {part.name}: its command names a server, which it would reach; expected "
                    "the server in a variable, such as REDIS, that can be given another one here"
                )
        self._route, self._overrides, self._aof, self._options = route, overrides, aof, options
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
        host, _, database = server.partition("/")
        if server not in self._clients:
            self._clients[server] = connect(f"redis://127.0.0.1:{self.servers[host].port}/{database or 0}")
        return self._clients[server]

    async def restart_server(self, host: str) -> None:
        """Stop a server with SIGTERM and start it again with the data that it has on disk."""
        for server, client in self._clients.items():
            if server.partition("/")[0] == host:
                await client.connection_pool.disconnect()
        await asyncio.to_thread(self.servers[host].restart)

    async def expire_registration(self, part: Part, pid: int) -> None:
        """Expire the registration of a killed process now, instead of after ``serviceExpire`` seconds.

        ``pid`` is that of the killed shell, which the service had replaced by ``exec``.
        """
        if part.namespace is None:
            return
        redis = self.registry(part)
        for id in await redis.lrange(encoded(Keys(part.namespace).ids), 0, -1):
            key = encoded(Keys(part.namespace).instance(decoded(id)))
            if await redis.hget(key, "pid") == str(pid).encode():
                await redis.pexpire(key, 1)

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
        return without_files(environ)

    async def _way(self, part: Part, url: str) -> str:
        port = self.servers[host_of(url)].port
        way = await self._route(part.name, port) if self._route else f"127.0.0.1:{port}"
        database = server_of(url).partition("/")[2]
        return f"redis://{way}/{database if database.isdigit() else 0}"


def host_of(url: str) -> str:
    """Return the host and port of ``url``, by which a sandbox knows a server."""
    return server_of(url).partition("/")[0]


def _is_server(value: object) -> bool:
    return isinstance(value, str) and SERVER_URL.match(value) is not None
