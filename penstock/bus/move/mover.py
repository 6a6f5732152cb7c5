"""A run of ``penstock bus move``: several queues at once, one run at a time."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from redis.exceptions import RedisError

from penstock.base.encoding import decoded
from penstock.base.errors import Fenced, Occupied, PenstockError
from penstock.base.urls import server_of
from penstock.bus.host import Host
from penstock.bus.keys import metadata_key
from penstock.bus.move.lease import Lease
from penstock.bus.move.plan import Plan, Step
from penstock.bus.move.transfer import Moved, Transfer, gather, seal, sweep
from penstock.bus.placement import INDEX, Placement
from penstock.core.instance import Instance

AT_ONCE: Final = 8
"""Queues that are moved at the same time."""


class Mover:
    """Moves queues of ``bus``, which must be connected to all its servers."""

    def __init__(self, bus: Host, *, placement: Placement = Placement.BUSMQ, target: Instance | None = None) -> None:
        self.moved = Moved()
        self.problems = list[str]()
        """What ``plan`` found that it cannot mend."""
        self.stopping = self._is_fenced = False
        """Set it to give up the queues in hand, and begin no other."""
        self._bus, self._target = bus, target
        self._index = INDEX[placement]
        self._urls = [each.url for each in bus.instances]
        self._by_address = {server_of(each.url): each for each in bus.instances}

    async def plan(self, pattern: str = "*", advance: Callable[[int], None] = lambda _: None) -> list[Step]:
        """Return what has to be done for the queues that match ``pattern``, sorted by name.

        ``advance`` is called with the number of keys looked at. A queue on two servers is left alone: see ``problems``.
        """
        plan = Plan(self._bus.instances, pattern, self._home)
        steps = await plan.steps(advance)
        self.problems += plan.problems
        return steps

    async def run(self, steps: list[Step], report: Callable[[Step, Exception | None], None]) -> None:
        """Do all ``steps``, several at once; ``report`` is called after each, with what went wrong.

        Raise ``Occupied`` if another run moves queues of these servers, ``Fenced`` if one has begun meanwhile.
        """
        rest = iter(steps)

        async def work() -> None:
            for step in rest:
                if self.stopping:
                    return
                try:
                    await (self.sweep(step) if step.gone else self.gather(step) if step.stray else self.move(step))
                except (PenstockError, RedisError, OSError) as error:
                    report(step, error)
                else:
                    report(step, None)

        if steps:
            async with Lease(self._bus.instances, self._fence):
                await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(steps)))))
        if self._is_fenced:
            raise Fenced("this move did nothing for too long, and another one has begun: run it again after that")

    async def move(self, step: Step) -> None:
        """Move one queue, or end a move of it that was interrupted. Raise ``Stopped``, or what went wrong.

        Unless the target has taken over, the queue is then where it was.
        """
        for each in step.late:
            await self.gather(replace(step, source=each, target=step.source))
        sealed = await seal(step, f"carried {secrets.token_hex(8)} {server_of(step.target.url)}")
        if sealed is None:
            return
        state, token, address = decoded(sealed[0]).split(" ", 2)
        target = self._by_address.get(address)
        if target is None or target is step.source:
            raise Occupied(f"a move of it to {address} has not ended: name that server, too")
        step = replace(step, target=target)
        if await Transfer(step, token, self.moved, self._is_stopping).run(state):
            self.moved.queues += 1
            await self.gather(step)

    async def gather(self, step: Step) -> None:
        """Carry messages that were pushed to the source after the move to the queue, behind those that are there."""
        self.moved.gathered += await gather(step, self._is_stopping)

    async def sweep(self, step: Step) -> None:
        """Delete what a killed move has left of a queue that does not exist any more."""
        await sweep(step)

    def _is_stopping(self) -> bool:
        return self.stopping

    def _fence(self) -> None:
        self.stopping = self._is_fenced = True

    def _home(self, name: str) -> Instance:
        return self._target or self._bus.instances[self._index(metadata_key(name), self._urls)]
