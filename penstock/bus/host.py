"""What the objects of a bus need of it."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from penstock.core.instance import Instance

T = TypeVar("T")


class Host(Protocol):
    """A bus, as its objects see it: servers, patience, and a life."""

    id: str
    """Made up for each bus."""

    @property
    def instances(self) -> list[Instance]:
        """Return its servers."""

    @property
    def first(self) -> Instance:
        """Return the first server, which has all topics. Raise ``WrongCall`` if the bus has none."""

    @property
    def patience(self) -> float | None:
        """Return how long (s) a call waits; None without end."""

    @property
    def buffer(self) -> int:
        """Return how many calls wait for one server at most."""

    @property
    def leaves(self) -> bool:
        """Return whether it is being disconnected, or was."""

    @property
    def away(self) -> asyncio.Event | None:
        """Return what is set while a server is away, if pushes go to an outbox then; None without one."""

    def bounded(self, why: Callable[[], str]) -> AbstractAsyncContextManager[None]:
        """Raise ``Unavailable`` with ``why()`` if a block waits for longer than ``patience``."""

    def check_connected(self) -> None:
        """Raise ``WrongCall`` outside ``connect`` and ``disconnect``."""

    async def home(self, key: str, *, anew: bool = False) -> Instance:
        """Return the server that has ``key``, or that will."""

    async def locate(self, key: str) -> Instance | None:
        """Return the server that has the metadata ``key``."""

    def forget_home(self, key: str) -> None:
        """Ask again for the server of ``key`` the next time."""

    def keep_alive(self, queue: Any) -> None:
        """Keep ``queue``, which is attached, alive from now on."""

    def renew(self, claim: Any) -> None:
        """Renew the lease of ``claim`` until it is over, also while a handler blocks the event loop."""

    def abandon(self, queue: Any) -> None:
        """Keep ``queue`` alive no more."""

    def announce(self, key: str, ttl: int) -> None:
        """Tell other sites that the queue with the metadata ``key`` lives for ``ttl`` seconds."""

    def ends_with(self, each: Any) -> None:
        """Call ``each.leave()`` when the bus is disconnected."""

    def ended(self, each: Any) -> None:
        """Note that ``each`` has ended by itself."""

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run ``work`` until it ends or the bus is disconnected. Emit ``error`` if it ends by a bug."""
