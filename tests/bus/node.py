"""Node's busmq 3.1.0, installed by npm, and programs of peers that tests talk to: Node's, or others of its protocol.

A program holds any number of peers. Each has a bus of its own and plays a role, such as ``push`` or ``serve``:
``busmq_peer.js`` describes them.
"""

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from bench.peers.install import FromNpm, Installed, NotInstalled
from penstock.core.orphaned import Watchdog
from tests.support.harness import PATIENCE

LONGEST_LINE: Final = 1 << 26
"""Maximum number of bytes in one line of a program."""
EXPECT_SECONDS: Final = PATIENCE
"""How long a peer may take for an event."""
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-tests"
_BUSMQ: Final = FromNpm({"busmq": "3.1.0", "redis": "2.8.0"}, {"flexbuffer": "0.0.6"})
"""ioredis 4.9.1 wants flexbuffer from GitHub; the release on npm does as well."""


_found: Final = dict[str, Installed | NotInstalled]()


def _install(origin: FromNpm, package: str) -> Installed | NotInstalled:
    """Install once for all tests and later runs, in a folder of the user's cache."""
    try:
        _CACHE.mkdir(parents=True, exist_ok=True)
        with (_CACHE / f"{package}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return origin.into(_CACHE / f"{package}-{origin.version}")
    except (NotInstalled, OSError) as reason:
        return NotInstalled(str(reason))


def from_npm(origin: FromNpm) -> Installed:
    """Return how to start programs that use a package; skip the test without Node, npm, or its registry."""
    package = next(iter(origin.packages))
    if package not in _found:
        _found[package] = _install(origin, package)
    found = _found[package]
    if isinstance(found, NotInstalled):
        pytest.skip(f"Node's {package} cannot be installed here: {found}")
    return found


def busmq() -> Installed:
    """Return how to start programs that use busmq, as ``from_npm`` does."""
    return from_npm(_BUSMQ)


class Peer:
    """One peer of a program; ``events`` are all that it has told, in order: name and values of each."""

    def __init__(self, program: "Program", number: int) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._program, self._number = program, number
        self._seen = 0

    async def send(self, line: str) -> None:
        """Send a line; its role says what happens."""
        await self._program.write([self._number, "line", line])

    async def call(self, method: str, *values: Any) -> None:
        """Call a method, in the role ``queue``."""
        await self.send(json.dumps([method, *values]))

    async def expect(self, event: str, *values: Any, within: float = EXPECT_SECONDS) -> tuple[Any, ...]:
        """Wait for an event whose first values are ``values``, and return all of its values.

        It is looked for behind the event that was returned last. Fail after ``within`` seconds.
        """
        wanted = (event, *values)

        def find() -> tuple[Any, ...] | None:
            for place in range(self._seen, len(self.events)):
                if self.events[place][: len(wanted)] == wanted:
                    self._seen = place + 1
                    return self.events[place][1:]
            return None

        return await self._program.wait(find, within, lambda: f"expected {wanted}, found {self.events[self._seen :]}")

    async def close(self) -> None:
        """Disconnect its bus, unless that is done."""
        if ("gone",) not in self.events:
            await self._program.write([self._number, "close"])
            await self.expect("gone")


class Program:
    """A process with peers; ``name`` says whose. Use ``started``."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name, self._process = name, process
        self._numbers = count(1)
        self._peers: dict[int, Peer] = {}
        self._changed = asyncio.Condition()
        self._errors: list[str] = []
        self._ended = False
        self._readers = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    @asynccontextmanager
    async def peer(
        self, role: str, name: str, redis: Sequence[str], *, driver: str | None = None, **options: Any
    ) -> AsyncIterator[Peer]:
        """Yield a peer that plays ``role`` with the object ``name``; its bus is disconnected at the end."""
        number = next(self._numbers)
        peer = self._peers[number] = Peer(self, number)
        await self.write([number, "open", role, name, options, {"redis": list(redis), "driver": driver}])
        try:
            yield peer
        except BaseException:
            await self.write([number, "close"])
            raise
        else:
            if self.is_alive:
                await peer.close()
        finally:
            del self._peers[number]

    async def write(self, line: list[Any]) -> None:
        """Send a line to the process; nothing happens if it has ended."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        with suppress(ConnectionError):
            await self._process.stdin.drain()

    async def wait(
        self, find: Callable[[], tuple[Any, ...] | None], within: float, otherwise: Callable[[], str]
    ) -> tuple[Any, ...]:
        """Return what ``find`` returns once that is not None; fail with ``otherwise()`` after ``within`` seconds."""
        try:
            async with asyncio.timeout(within), self._changed:
                while (found := find()) is None:
                    if self._ended:
                        break
                    await self._changed.wait()
                else:
                    return found
        except TimeoutError:
            pass
        if self._ended:
            await self.ended()
        state = "and it has ended" if self._ended else f"after {within:g} s"
        raise AssertionError(f"{self.name}: {otherwise()} {state}\n{''.join(self._errors)}")

    async def kill(self) -> None:
        """Send SIGKILL, as a crash is, and wait for the end."""
        if self.is_alive:
            self._process.kill()
        await self.ended()

    async def ended(self) -> int:
        """Wait for the end; return the exit status."""
        status = await self._process.wait()
        await asyncio.gather(*self._readers)
        return status

    async def _read(self) -> None:
        assert self._process.stdout
        try:
            async for line in self._process.stdout:
                number, *event = json.loads(line)
                if peer := self._peers.get(number):
                    peer.events.append(tuple(event))
                async with self._changed:
                    self._changed.notify_all()
        finally:
            self._ended = True
            async with self._changed:
                self._changed.notify_all()

    async def _read_errors(self) -> None:
        assert self._process.stderr
        async for line in self._process.stderr:
            self._errors.append(line.decode(errors="replace"))


@asynccontextmanager
async def started(name: str, *command: str, **environment: str) -> AsyncIterator[Program]:
    """Yield a program of peers; it is killed at the end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, limit=LONGEST_LINE, env={**os.environ, **environment}
    )
    watchdog = Watchdog(process.pid)
    program = Program(name, process)
    try:
        yield program
    finally:
        await program.kill()
        watchdog.release()


@asynccontextmanager
async def node() -> AsyncIterator[Program]:
    """Yield a program of Node's peers; skip the test where it cannot be had."""
    installed = busmq()
    script = str(Path(__file__).with_name("busmq_peer.js"))
    async with started("node", *installed.command, "--no-deprecation", script, **installed.environment) as program:
        yield program
