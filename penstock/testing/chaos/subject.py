"""A process that reaches its servers through proxies, so that its commands are seen and a fault can hit any of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.proxy import FaultProxy, ProxyFault, Timing
from penstock.testing.sandbox import Sandbox
from penstock.testing.service_process import ServiceProcess

POLL_SECONDS: Final = 0.04
"""Seconds between two checks."""
QUIET_SECONDS: Final = 0.25
"""Seconds without a command after which a process counts as quiet."""
START_SECONDS: Final = 10.0
"""Seconds after which a process counts as started even if it keeps sending commands."""
MEET_SECONDS: Final = 12.0
"""Seconds to wait for a process to meet a point: longer than the time between two renewals of a registration."""
KILL_SECONDS: Final = 0.5
"""Seconds to wait for the command at which a process is to be killed."""
BURST_SIZE: Final = 5
"""Messages pushed at once, after a single one."""
SENT_ONCE: Final = ("CLIENT", "HELLO", "AUTH", "SELECT", "EVAL ", "SCRIPT", "INFO")
"""Prefixes of commands that a process may send only once."""
Messages = Callable[[int], Awaitable[None]]
"""Push that many messages, the first alone and the others at once, or let those of a test come."""


class Subject:
    """The process ``name`` of ``sandbox``, once it is open."""

    def __init__(self, name: str, sandbox: Sandbox) -> None:
        self.name, self._sandbox = name, sandbox
        self.proxies: dict[str, FaultProxy] = {}
        """By server, as in the settings."""

    async def way(self, server: str, port: int, exits: AsyncExitStack) -> str:
        """Return the host and port of the proxy to a server, which ``exits`` close."""
        if server not in self.proxies:
            self.proxies[server] = await exits.enter_async_context(FaultProxy(port))
        return self.proxies[server].address

    @property
    def process(self) -> ServiceProcess:
        return self._sandbox.processes[self.name]

    async def start(self, seconds: float = START_SECONDS) -> None:
        """Start the process and wait until it is up; ``seen`` returns the commands of its start."""
        self.forget()
        await self.process.start()
        await self.wait_until_quiet(seconds)

    async def wait_until_quiet(self, seconds: float = START_SECONDS) -> None:
        """Wait until the process has sent a command and then been quiet, for at most ``seconds``."""
        count, since = 0, time.monotonic()
        until = since + seconds
        while time.monotonic() < until and not (count and time.monotonic() - since > QUIET_SECONDS):
            if (seen := sum(len(proxy.seen) for proxy in self.proxies.values())) != count:
                count, since = seen, time.monotonic()
            await asyncio.sleep(POLL_SECONDS)

    def seen(self, phase: Phase, after: str = "") -> set[Point]:
        """Return the points of the commands since the last call or ``forget``."""
        proxies = self.proxies.items()
        points = {Point(self.name, phase.value, host, shape, after) for host, proxy in proxies for shape in proxy.seen}
        self.forget()
        return points

    def forget(self) -> None:
        for proxy in self.proxies.values():
            proxy.seen.clear()

    async def kill(self) -> None:
        """Kill the process and expire its registration; it stays dead until it is started."""
        await self._sandbox.kill(self.name)

    async def kill_at(self, point: Point, messages: Messages, seconds: float = KILL_SECONDS) -> None:
        """Kill the process at a command of its flow, while it handles ``messages``.

        If the command does not come in time, kill it anyway: at a periodic command it holds the same messages as ever.
        """
        proxy = self.proxies[point.server]
        proxy.fault = fault = ProxyFault(point.after or point.shape, Timing.BEFORE, act=self.kill)
        await messages(1 + BURST_SIZE)
        await wait_until_happened(fault, seconds)
        proxy.fault = None
        await self.kill()

    async def forget_scripts(self) -> None:
        """Flush all scripts, since a process sends the source only to a server without it."""
        await self._sandbox.flush_scripts()


async def wait_until_happened(fault: ProxyFault, seconds: float) -> bool:
    """Return True if ``fault`` happens within ``seconds``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await fault.happened.wait()
    return fault.happened.is_set()
