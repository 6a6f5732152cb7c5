"""Composition under load whose files a test changes."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from redis.asyncio import Redis

from penstock.base.keys import Keys
from tests.support.commandline import Result, _run_in_process
from tests.support.harness import Service, eventually

FAN: dict[str, Any] = {"redisNamespace": "fan", "in": "in", "pending": "fan:pending", "out": ["a", "b"]}
TRACK: dict[str, Any] = {
    "redisNamespace": "track",
    "in": "b",
    "pending": "track:pending",
    "out": "work",
    "messageTimeout": 600,
    "messageExpire": 7200,
}
SEND: dict[str, Any] = {
    "redisNamespace": "send",
    "in": "b",
    "pending": "send:pending",
    "outRedis": "redis://localhost:1/0",
    "out": "far",
}


class Composition:
    """A composition in a folder: ``change`` writes a service's file, ``start`` also starts the service."""

    def __init__(self, directory: Path, redis: "Redis", url: str, ends: ExitStack) -> None:
        self.directory, self.redis, self._url, self._ends = directory, redis, url, ends
        self.settings: dict[str, dict[str, Any]] = {}
        self.services: dict[str, Service] = {}

    def change(self, file: str, **settings: Any) -> None:
        self.settings[file] = {"redis": self._url, **self.settings.get(file, {}), **settings}
        text = yaml.safe_dump(self.settings[file])
        (self.directory / "new").write_text(text)
        (self.directory / "new").rename(self.directory / f"{file}.yaml")

    async def start(self, file: str, reads: Path | None = None, **settings: Any) -> Service:
        """Write ``file``, start the service that its name begins with, and wait for it; ``reads`` replaces its file."""
        self.change(file, **settings)
        service = Service(file.partition("-")[0], self.directory.parent / f"{file}.log", redis=self._url)
        service._environment["PROPS_FILE"] = str(reads or self.directory / f"{file}.yaml")
        before = await self.started(file)
        self.services[file] = self._ends.enter_context(service)

        async def is_up() -> bool:
            namespace = self.settings[file]["redisNamespace"]
            is_known = await self.redis.hexists(Keys(namespace).directories[0], namespace)
            return await self.started(file) > before and bool(is_known)

        await eventually(is_up)
        return service

    async def started(self, file: str) -> int:
        return int(await self.redis.hget(f"{self.settings[file]['redisNamespace']}:metrics:start", "count") or 0)

    async def penstock(self, command: str, *words: str) -> Result:
        return await asyncio.to_thread(_run_in_process, [command, f"{self.directory}{os.sep}", *words], None)

    async def apply(self, *words: str) -> Result:
        return await self.penstock("apply", "--yes", *words)

    async def held(self, name: str) -> list[int]:
        """Return the numbers in a list, oldest first."""
        return [int(number) for number in reversed(await self.redis.lrange(name, 0, -1))]

    async def settled(self, *sources: str) -> None:
        """Wait until ``sources`` and all pending lists are empty."""

        async def is_empty() -> bool:
            pending = [key async for key in self.redis.scan_iter("*:pending*", _type="list")]
            return not pending and not await self.redis.exists(*sources)

        await eventually(is_empty)


class Producer:
    """Pushes 1, 2, 3 … to ``target``, which may be changed at any time."""

    def __init__(self, redis: "Redis", target: str) -> None:
        self._redis, self.target, self.pushed = redis, target, 0

    @asynccontextmanager
    async def pushing(self) -> "AsyncIterator[Producer]":
        task = asyncio.create_task(self._push())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _push(self) -> None:
        while True:
            numbers = range(self.pushed + 1, self.pushed + 11)
            pushing = asyncio.ensure_future(self._redis.lpush(self.target, *numbers))
            try:
                await asyncio.shield(pushing)
            except asyncio.CancelledError:
                await pushing
                self.pushed += 10
                raise
            self.pushed += 10
            await asyncio.sleep(0.002)

    async def more(self, count: int = 50) -> None:
        """Wait until ``count`` more messages have been pushed."""
        wanted = self.pushed + count

        async def is_there() -> bool:
            return self.pushed >= wanted

        await eventually(is_there)
