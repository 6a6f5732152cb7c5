"""sregister: run a program, and keep it registered while it runs."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from redis.exceptions import RedisError

from common.context import Context
from penstock.core.atomic import AtomicWrites
from penstock.core.child import Child
from penstock.core.link import describe
from penstock.core.script import Script
from penstock.core.tasks import begin
from services.sregister.health import Health
from services.sregister.settings import Settings

STOP_SHARE: Final = 0.8
"""How much of ``stopTimeout`` a program has, to drain and to end."""
RENEWED: Final = 30.0
"""Seconds after which it is noted again what has not changed: somebody may have removed it."""
SIGNALLED: Final = 128
"""The status of a program that a signal has ended is this and the number of the signal, as in a shell."""
_mark: Final = Script.read(Path(__file__).parent / "lua" / "mark.lua")


class Program:
    """The program of one version of the settings, which runs until it ends or is stopped."""

    def __init__(self, settings: Settings) -> None:
        environ = _environment(settings)
        self.settings = settings
        self.health = Health(settings, environ)
        self.status = 0
        """The exit status once it has ended by itself, as a shell says it."""
        self.ended = asyncio.Event()
        self._child = Child("program", settings.command, environ, _write)
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Return its process id; 0 unless it runs."""
        return self._child.pid or 0

    async def start(self, finish: Callable[[], None]) -> None:
        """Start it the first time; call ``finish`` once it has ended by itself, though the server may be away then.

        Raise ``OSError`` if not even a shell can be started.
        """
        if self._watching is None:
            await self._child.start()
            self._watching = begin(self._watch(finish))

    async def _watch(self, finish: Callable[[], None]) -> None:
        status = await self._child.wait()
        self.status = SIGNALLED - status if status < 0 else status
        self.ended.set()
        finish()

    async def stop(self) -> None:
        """Wait until others have noticed that it is not registered any more; then stop it."""
        if self._watching is None:
            return
        settings = self.settings
        if self.pid and settings.drain:
            await asyncio.wait({self._watching}, timeout=settings.drain)
        self._watching.cancel()
        await self._child.stop(settings.stop_timeout * STOP_SHARE - settings.drain)


class Registrar:
    """Runs of the service."""

    _program: Program

    @property
    def status(self) -> int:
        """Return that of the program, if it has ended by itself; else 0."""
        return self._program.status

    @asynccontextmanager
    async def lifespan(self, settings: Settings) -> AsyncIterator[None]:
        """Have a program for these settings; it starts once it is registered."""
        program = self._program = Program(settings)
        try:
            yield
        finally:
            await program.stop()

    async def run(self, context: Context[Settings]) -> None:
        """Run the program, and note whether it is ready, until the run or the program ends."""
        program = self._program
        await program.start(context.finish)
        noted, noted_at, clock = None, 0.0, asyncio.get_running_loop().time
        while context.running and not program.ended.is_set():
            await program.health.check()
            if program.health.problem != noted or clock() - noted_at > RENEWED:
                if noted is None or program.health.problem != noted:
                    self._say(context, program.health.problem)
                noted, noted_at = program.health.problem, clock()
                await self._note(context, program)
            await context.pause(program.settings.health_interval, program.ended)
        if program.ended.is_set():
            await self._end(context, program)

    async def _note(self, context: Context[Settings], program: Program) -> None:
        keys = context.required_keys
        written = await _mark(
            context.redis,
            instance=keys.instance(context.id or ""),
            metrics=keys.metric("ready"),
            id=context.id or "",
            host=socket.gethostname(),
            pid=os.getpid(),
            address=program.settings.address or "",
            child=program.pid,
            unready=program.health.problem,
            channel=keys.ready,
        )
        if not written:
            context.unregistered.set()

    def _say(self, context: Context[Settings], problem: str) -> None:
        if problem:
            context.log.warning("not ready", reason=problem)
        else:
            context.log.info("ready", address=self._program.settings.address)

    async def _end(self, context: Context[Settings], program: Program) -> None:
        """Tell and count that the program has ended by itself."""
        say = context.log.warning if program.status else context.log.info
        say("program ended", status=program.status)
        try:
            async with AtomicWrites(context.redis) as writes:
                writes.hincrby(context.required_keys.metric("ready"), "ended", 1)
                await writes.execute()
        except RedisError as error:
            context.log.warning("end not counted", reason=describe(error))


def _environment(settings: Settings) -> Mapping[str, str]:
    """Return the environment of the program: ours, without our own settings, which may hold a password."""
    own = f"{settings.service.upper()}_"
    found = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return found | ({"PENSTOCK_ADDRESS": settings.address} if settings.address else {})


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
