"""Injection and repair of the faults of a test."""

import asyncio
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from redis.asyncio import Redis

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError
from penstock.base.keys import Keys
from penstock.base.shape import Place
from penstock.base.urls import split_server
from penstock.composition.model import Part
from penstock.composition.procfile import OBEYED_SIGTERM
from penstock.testing.sandbox import POLL_SECONDS, Sandbox, answered
from penstock.testing.service_process import ServiceProcess
from penstock.testing.spec.declared import Fault
from penstock.testing.spec.injection import Injector
from penstock.testing.spec.keys import Places

START_SECONDS: Final = 30.0
"""Time for a service to register after its start."""


class Unexpected(PenstockError):
    """Stop the case: it cannot go on."""


class Faults:
    """Injects faults into the processes and servers of ``sandbox``, and repairs them."""

    def __init__(self, sandbox: Sandbox, places: Places, injector: Injector | None = None) -> None:
        self._sandbox, self._places, self._injector = sandbox, places, injector
        self._starts: Counter[str] = Counter()
        self._began = time.monotonic()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.injected: list[tuple[Fault, float]] = []
        """Each fault so far, with its time in seconds after the start."""
        self.restarted: list[Part] = []

    async def start_all(self) -> None:
        """Start all processes and wait until those that are services have registered."""
        parts = [process.part for process in self._sandbox.processes.values()]
        self._starts.update(part.name for part in parts)
        await self._sandbox.start()
        self._began = time.monotonic()
        namespaces = Counter(part.namespace for part in parts)
        for part in parts:
            await self._registered(part, set(), namespaces[part.namespace])

    @property
    def broken(self) -> list[Fault]:
        return [fault for fault, _ in self.injected]

    @asynccontextmanager
    async def held(self, place: Place) -> AsyncIterator["Redis"]:
        """Yield a client of the server of ``place``; no fault hits the server or the key meanwhile."""
        redis = self._sandbox.client(place.server)
        async with self._locks[split_server(place.server)[0]], self._locks[str(place)]:
            await answered(redis.ping)
            yield redis

    def crashed(self) -> str | None:
        """Return the name of a process that has failed before any fault, or None."""
        if self.injected:
            return None
        processes = self._sandbox.processes.items()
        return next((name for name, process in processes if process.starts > self._starts[name]), None)

    async def begin(self, fault: Fault) -> "asyncio.Task[None]":
        """Wait until ``fault`` has happened. Return a task that ends once it is repaired."""
        happened = asyncio.Event()
        injection = asyncio.create_task(self.inject(fault, happened))
        waiter = asyncio.create_task(happened.wait())
        try:
            await asyncio.wait({injection, waiter}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            injection.cancel()
            raise
        finally:
            waiter.cancel()
        return injection

    async def inject(self, fault: Fault, happened: asyncio.Event | None = None) -> None:
        """Inject ``fault`` at its trigger, set ``happened``, and repair it. Raise ``Unexpected`` if that fails."""
        happened = happened or asyncio.Event()
        if fault.seen:
            await self._until_seen(*fault.seen)
        if fault.verb in ("kill", "stop", "pause", "every"):
            await getattr(self, f"_{fault.verb}")(fault, self._sandbox.processes[fault.target], happened)
        elif fault.verb == "spoil":
            await self._spoil(fault, self._places.find(fault.target), happened)
        else:
            await getattr(self, f"_{fault.verb}")(fault, self._places.host(fault.target), happened)

    async def _broken(self, fault: Fault, happened: asyncio.Event) -> None:
        """Note that ``fault`` has happened, and sleep for its duration."""
        self._note(fault)
        happened.set()
        await asyncio.sleep(fault.lasts)

    def _note(self, fault: Fault) -> None:
        self.injected.append((fault, time.monotonic() - self._began))

    async def _kill(self, fault: Fault, process: ServiceProcess, happened: asyncio.Event) -> None:
        pid, before = process.pid, await self._registrations(process.part)
        await process.kill()
        await self._broken(fault, happened)
        await self._sandbox.expire_registration(process.part, pid)
        await self._start(process, before)

    async def _every(self, fault: Fault, process: ServiceProcess, happened: asyncio.Event) -> None:
        if self._injector is None:
            raise Unexpected(f"{fault}: no point is named for it")
        before = await self._registrations(process.part)
        self._note(fault)
        self.restarted.append(process.part)
        await self._injector.inject(happened)
        happened.set()
        if process.pid is None:
            await self._start(process, before)

    async def _stop(self, fault: Fault, process: ServiceProcess, happened: asyncio.Event) -> None:
        before = await self._registrations(process.part)
        status = await process.stop()
        if status not in OBEYED_SIGTERM:
            raise Unexpected(f"{process.name} was asked to stop, and ended with status {status}")
        await self._broken(fault, happened)
        await self._start(process, before)

    async def _pause(self, fault: Fault, process: ServiceProcess, happened: asyncio.Event) -> None:
        process.send(signal.SIGSTOP)
        await self._broken(fault, happened)
        process.send(signal.SIGCONT)

    async def _restart(self, fault: Fault, host: str, happened: asyncio.Event) -> None:
        server = self._sandbox.servers[host]
        async with self._locks[host]:
            await asyncio.to_thread(server.kill)
            await self._broken(fault, happened)
            await asyncio.to_thread(server.start)
            await answered(self._sandbox.client(f"{host}/0").ping)

    async def _flush(self, fault: Fault, host: str, happened: asyncio.Event) -> None:
        await answered(self._sandbox.client(f"{host}/0").script_flush)
        await self._broken(fault, happened)

    async def _spoil(self, fault: Fault, place: Place, happened: asyncio.Event) -> None:
        async with self._locks[str(place)]:
            mend = await self._sandbox.spoil(place)
            await self._broken(fault, happened)
            await mend()

    async def _start(self, process: ServiceProcess, before: set[str]) -> None:
        self._starts[process.name] += 1
        self.restarted.append(process.part)
        await process.start()
        await self._registered(process.part, before, 1)

    async def _registered(self, part: Part, before: set[str], count: int) -> None:
        """Wait until ``count`` instances that are not in ``before`` have registered in the namespace of ``part``."""
        until = time.monotonic() + START_SECONDS
        while part.namespace and len(await self._registrations(part) - before) < count:
            if crashed := self.crashed():
                raise Unexpected(f"{crashed} ended as it started")
            if time.monotonic() > until:
                raise Unexpected(f"{part.name} did not register within {START_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)

    async def _registrations(self, part: Part) -> set[str]:
        if part.namespace is None:
            return set()
        redis, keys = self._sandbox.registry(part), Keys(part.namespace)
        ids = [decoded(id) for id in await answered(lambda: redis.lrange(encoded(keys.ids), 0, -1))]
        there = [await answered(partial(redis.exists, encoded(keys.instance(id)))) for id in ids]
        return {id for id, exists in zip(ids, there, strict=True) if exists}

    async def _until_seen(self, key: str, count: int) -> None:
        place = self._places.find(key)
        redis = self._sandbox.client(place.server)
        while await answered(lambda: redis.llen(encoded(place.key))) < count:
            await asyncio.sleep(POLL_SECONDS / 10)
