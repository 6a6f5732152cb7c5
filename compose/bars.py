"""Progress bars of the demos: they follow counts on the servers until all messages are through."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Self

from redis.asyncio import Redis
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.composition.procfile import ProcessGroup

MAX_SECONDS: Final = 60.0
"""Maximum time until all messages are through."""
STANDSTILL_SECONDS: Final = 1.0
"""Seconds after which messages count as lost if none is in flight."""
LOOK_SECONDS: Final = 0.05
"""Time between two looks (s)."""


class Snapshot(NamedTuple):
    """Progress of the messages at one moment."""

    counts: Mapping[str, int]
    """Numbers that change while messages move; those of bars by the names of the bars."""
    waiting: bool
    """True if messages are in flight."""
    states: Mapping[str, str] = {}
    """What is printed behind a bar."""
    through: bool = True
    """False if more has to come than ``counts`` show."""


class Bars:
    """Bars on stderr, each with its total; ``look`` returns the progress. A context manager."""

    def __init__(self, totals: Mapping[str, int], look: Callable[[], Awaitable[Snapshot]], width: int = 40) -> None:
        columns = (TextColumn("{task.description:9}"), BarColumn(width), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[state]}"), console=Console(stderr=True))
        self._bars = {name: self._progress.add_task(name, total=total, state="") for name, total in totals.items()}
        self._totals, self._look = totals, look

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    async def draw(self) -> Snapshot:
        """Look once, and update the bars."""
        snapshot = await self._look()
        for name, bar in self._bars.items():
            self._progress.update(bar, completed=snapshot.counts.get(name), state=snapshot.states.get(name, ""))
        return snapshot

    async def push(self, redis: "Redis", source: str, rows: Sequence[bytes], batch: int) -> None:
        """Push ``rows``, oldest first, in batches; the bar ``pushed`` follows."""
        for start in range(0, len(rows), batch):
            pushed = rows[start : start + batch]
            await redis.lpush(source, *pushed)
            self._progress.advance(self._bars["pushed"], len(pushed))

    async def until_through(
        self, composition: ProcessGroup, *, standstill: float = STANDSTILL_SECONDS, killed: Collection[str] = ()
    ) -> None:
        """Wait until all bars are full and nothing is in flight, or until that is no longer possible.

        It is not if nothing changes for ``standstill`` seconds, or a process ends that is none of ``killed``.
        """
        end, since = time.monotonic() + MAX_SECONDS, time.monotonic()
        seen: Snapshot | None = None
        while time.monotonic() < end and composition.commands.keys() - composition.running <= {*killed}:
            now = await self.draw()
            if now.waiting or now != seen:
                seen, since = now, time.monotonic()
            full = all(count >= self._totals.get(name, 0) for name, count in now.counts.items())
            if not now.waiting and ((full and now.through) or time.monotonic() - since > standstill):
                return
            await asyncio.sleep(LOOK_SECONDS)
