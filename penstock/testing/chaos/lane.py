"""A composition on servers of its own, behind proxies, into which faults are injected one after the other."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from penstock.base.encoding import decoded, encoded
from penstock.base.shape import Place
from penstock.composition.model import Composition
from penstock.testing.chaos.messages import Account, Routes, message, recognised
from penstock.testing.chaos.subject import POLL_SECONDS, Subject
from penstock.testing.sandbox import Sandbox
from penstock.testing.service_process import ServiceProcess

FAST_SETTINGS: Final[dict[str, int]] = {"service_renew": 5}
"""Settings that let periodic work of services happen during a run."""
BASELINE_ACCOUNT, STOP_ACCOUNT = 0, 99_999
"""Accounts of messages pushed before any fault: with all processes running, and while one after the other stops."""
Times = dict[tuple[Place, Place], int]


@dataclass
class Stall:
    """The longest time in seconds in which messages were owed and none came out."""

    since: float = field(default_factory=time.monotonic)
    longest: float = 0.0

    def update(self, *, progress: bool) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self.since)
        if progress:
            self.since = now


class Lane:
    """A composition in a sandbox with a proxy for each process and server.

    ``accounts`` hold the messages pushed here, by the number of the fault that they were pushed for.
    """

    def __init__(self, composition: Composition, routes: Routes, times: Times) -> None:
        self._composition, self._routes, self.times = composition, routes, times
        self._sandbox = Sandbox(
            composition, route=self._open, overrides=FAST_SETTINGS, aof=True, appendfsync="everysec"
        )
        self._exits = AsyncExitStack()
        self.subjects = {part.name: Subject(part.name, self._sandbox) for part in composition.parts if part.command}
        self.accounts: dict[int, Account] = {}
        self._servers_stand = asyncio.Lock()
        """Held during the restart of a server, and by code that a restart would break."""
        self.order = 1
        """1 if programs add to the head of an output list, -1 if to its tail."""

    async def __aenter__(self) -> Self:
        try:
            await self._exits.enter_async_context(self._sandbox)
            await self._sandbox.start()
            await asyncio.gather(*(subject.wait_until_quiet() for subject in self.subjects.values()))
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    @property
    def processes(self) -> dict[str, ServiceProcess]:
        return self._sandbox.processes

    @property
    def longest_pause(self) -> float:
        """Seconds in which all periodic work of the processes happens at least once."""
        services = any(process.part.service for process in self.processes.values())
        return max(FAST_SETTINGS.values()) + 2.0 if services else 2.0

    @property
    def servers(self) -> Mapping[str, Any]:
        return self._sandbox.servers

    def client(self, place: Place) -> "Redis":
        return self._sandbox.client(place.server)

    async def _open(self, process: str, server: str, port: int) -> str:
        return await self.subjects[process].way(server, port, self._exits)

    async def push(self, number: int, many: int) -> None:
        """Push ``many`` more messages of account ``number`` to each input list: the first alone, the others at once."""
        account = self.accounts.setdefault(number, Account())
        async with self._servers_stand:
            await self._push(account, number, many)

    async def _push(self, account: Account, number: int, many: int) -> None:
        for source in self._routes.sinks:
            begin = sum(map(len, account.pushed.values()))
            numbers = list(range(begin, begin + many))
            account.pushed[source] += numbers
            words = [message(self._composition.chaos.message, number, each) for each in numbers]
            redis = self.client(source)
            await redis.lpush(encoded(source.key), words[0])
            if words[1:]:
                await asyncio.sleep(POLL_SECONDS)
                await redis.lpush(encoded(source.key), *words[1:])

    async def collect(self) -> int:
        """Move new output to the accounts and return the number of messages; a server that is down counts as empty."""
        count = 0
        for place in self._routes.places:
            key = encoded(place.key)
            try:
                async with self.client(place).pipeline(transaction=True) as transaction:
                    transaction.lrange(key, 0, -1)
                    transaction.delete(key)
                    entries, _ = await transaction.execute()
            except RedisError:
                continue
            for entry in entries[:: -self.order]:
                known = recognised(entry)
                if known and known[0] in self.accounts:
                    self.accounts[known[0]].arrived[place].append(known[1])
                    count += 1
        return count

    async def wait_until_settled(self, number: int, stall_limit: float) -> float:
        """Wait until an account is complete or stalls for ``stall_limit`` seconds. Return the longest stall (s)."""
        account, stall = self.accounts[number], Stall()
        while account.owed(self._routes, self.times):
            await asyncio.sleep(POLL_SECONDS)
            stall.update(progress=await self.collect() > 0)
            if time.monotonic() - stall.since > stall_limit:
                break
        return stall.longest

    async def wait_until_all_settled(self, stall_limit: float) -> None:
        """Wait until all accounts are complete, or until no message comes for ``stall_limit`` seconds."""
        stall = Stall()
        accounts = [account for number, account in self.accounts.items() if number != STOP_ACCOUNT]
        while any(account.owed(self._routes, self.times) for account in accounts):
            await asyncio.sleep(POLL_SECONDS)
            stall.update(progress=await self.collect() > 0)
            if time.monotonic() - stall.since > stall_limit:
                return
        await self.collect()

    async def command(self, server: str, *words: str | int) -> Any:
        """Send a command to a server, given by its name in the settings."""
        async with self._servers_stand:
            return await self._sandbox.client(f"{server}/0").execute_command(*words)

    async def restart_server(self, server: str) -> None:
        async with self._servers_stand:
            await self._sandbox.restart_server(server)

    def lists(self) -> list[Place]:
        """Return all lists into which services put messages."""
        return fed_lists(self._composition)

    async def spoil(self, place: Place) -> Callable[[], Awaitable[None]]:
        """Put a string in place of a list. Return a function that puts the list back."""
        return await self._sandbox.spoil(place)

    async def find_lists(self, lost: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """Return the list that holds each lost message, for those that are still in one."""
        found: dict[tuple[int, int], str] = {}
        for host in self._sandbox.servers:
            redis = self._sandbox.client(f"{host}/0")
            async for key in redis.scan_iter(_type="list", count=10_000):
                entries: list[Any] = await redis.lrange(key, 0, -1)
                for entry in entries:
                    known = recognised(entry)
                    if known in lost:
                        found[known] = decoded(key)
        return found


def fed_lists(composition: Composition) -> list[Place]:
    """Return the lists into which services, not programs, put messages.

    A MULTI of a program does not roll back at a key of the wrong type, so the fault would prove nothing there.
    """
    return sorted({end.place for part, end in composition.ends("writes") if part.service and end.role == "out"})
