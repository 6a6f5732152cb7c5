"""Final state of a composition: exit statuses, and what it left on its servers."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from redis.asyncio import Redis

from compose.keyspace import Keyspace


@dataclass(frozen=True)
class Ending:
    """State after the stop of all processes."""

    statuses: dict[str, int]
    """Exit status of each process by its name in the Procfile."""
    left: dict[str, int]
    """Messages left behind, by list."""
    registered: list[str]
    """Remaining registrations of instances that have stopped."""

    @classmethod
    async def read(cls, keyspace: Keyspace, statuses: Mapping[str, int], *servers: "Redis") -> Self:
        left, registered = dict[str, int](), list[str]()
        for server in servers:
            left |= await keyspace.left(server)
            registered += keyspace.registered(await keyspace.present(server))
        return cls(dict(statuses), left, registered)

    @property
    def line(self) -> str:
        """Return the exit statuses in words."""
        return f"Exit status on SIGTERM: {', '.join(f'{name} {status}' for name, status in self.statuses.items())}"

    def differences(self, *killed: str) -> list[str]:
        """Return a line for each message left, registration left, or exit status other than 0, or -9 if ``killed``."""
        found = [f"{name}: {length:,} left behind" for name, length in self.left.items()]
        found += [f"{key}: still registered" for key in self.registered]
        wanted = dict.fromkeys(killed, -signal.SIGKILL)
        return found + [
            f"{name}: exit status {status}" for name, status in self.statuses.items() if status != wanted.get(name, 0)
        ]
