"""Asks what is due of some streams of one server: jobs that waited, jobs that are repeated, jobs that were left."""

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.base.encoding import decoded
from penstock.base.log import Log
from penstock.base.payload import as_json
from penstock.core.script import Script
from penstock.jobs.consumer import Consumer
from penstock.jobs.repeating import Repeats
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance

LOOK_SHARE: Final = 4
"""How often what was left is looked for in the time after which it may be claimed."""
MAX_SECONDS: Final = 15.0
LEAST_SECONDS: Final = 0.02
NEXT_PAGE_SECONDS: Final = 1.0
"""Longest time until a look goes on that has not come to the end of what a group has in hand."""
MAX_CLAIMED: Final = 500
NEVER_MS: Final = 2**53
"""No entry is idle for so long."""
LOST: Final = {"name": "Lost", "message": "all of its consumers have died, or lost their server"}
_tend: Final = Script.read(Path(__file__).parent / "lua" / "tend.lua")
_log: Final = Log("penstock.jobs")


class Due(NamedTuple):
    """What was due of one stream."""

    claimed: Sequence[tuple[bytes, int, Sequence[bytes], bytes]]
    """Entry, number of the attempt and fields of each, and how it came: see ``lua/tend.lua``."""
    missing: Sequence[bytes]
    """Entries that had been deleted."""
    repeated: Sequence[bytes]
    """Name and time, in turn, of jobs that are to be sent once more."""
    is_paused: bool
    waits_for_room: bool
    """Whether more may be due that was not claimed, since ``most`` was 0."""


class Scheduler:
    """When to look, and what is found; ``ring`` is called when it is time."""

    def __init__(self, servers: Servers, node: "Instance", consumer: Consumer, ring: Callable[[], None]) -> None:
        self._servers, self._node, self._keys = servers, node, servers.keys
        self._consumer, self._options, self._ring = consumer, consumer.options, ring
        self._group = self._keys.group(consumer.group)
        self._from = dict[str, bytes]()
        """Where to go on looking for entries that were left, by stream."""
        self.seconds = min(MAX_SECONDS, consumer.options.claim_after / LOOK_SHARE)
        """Longest time between two looks."""
        self._loop = asyncio.get_running_loop()
        self.is_due = False
        """Whether it is time to look."""
        self._timer: asyncio.TimerHandle | None = None
        self.begin()

    def begin(self) -> None:
        """Note that a look begins: whoever wants another one says so from now on."""
        self.is_due, self._at = False, inf
        self.within(self.seconds)

    def within(self, seconds: float) -> None:
        """Look in ``seconds``, if not before."""
        at = self._loop.time() + seconds
        if at < self._at:
            self._at = at
            self.close()
            self._timer = self._loop.call_at(at, self._is_time)

    def _is_time(self) -> None:
        self.is_due = True
        self._ring()

    def close(self) -> None:
        """Ring no more."""
        if self._timer:
            self._timer.cancel()

    async def due(self, stream: str, most: int, *, is_limited: bool) -> Due:
        """Claim at most ``most`` jobs of a stream that are due."""
        of_group = self._keys.of_group(stream, self._consumer.group)
        after, claimed, missing, is_paused, repeated, self._from[stream] = await self._node.run(
            _tend,
            stream=of_group["stream"],
            wait=of_group["wait"],
            tries=of_group["tries"],
            later=self._keys.later(stream),
            repeats=self._keys.repeats(stream),
            paused=self._keys.paused(stream),
            group=self._group,
            consumer=self._consumer.id,
            most=most,
            idle=NEVER_MS if self._holders_come_back() else int(self._options.claim_after * 1000),
            lost=as_json(LOST),
            attempts=self._options.attempts,
            is_limited=int(is_limited),
            **{"from": self._from.get(stream, b"-")},
        )
        if claimed and len(claimed) == most:
            self.within(LEAST_SECONDS)
        elif self._from[stream] != b"-":
            self.within(NEXT_PAGE_SECONDS)
        if after and most:
            self.within(max(float(after), LEAST_SECONDS))
        return Due(claimed, missing, repeated, bool(is_paused), waits_for_room=bool(after) and not most)

    def _holders_come_back(self) -> bool:
        """Return whether the server was away for so long that jobs seem left which others have in hand, or have done.

        These are renewed, or settled, as soon as their consumers are connected again.
        """
        node, after = self._node, self._options.claim_after
        return 0 < node.lost_at < node.back_at - after / 2 and monotonic() < node.back_at + after / 2

    async def repeat(self, stream: str, repeated: Sequence[bytes]) -> None:
        """Send jobs that are repeated and due."""
        if any([await self._repeat(stream, *repeated[place : place + 2]) for place in range(0, len(repeated), 2)]):
            self.within(LEAST_SECONDS)

    async def _repeat(self, stream: str, name: bytes, due: bytes) -> bool:
        """Send a job that is repeated and due; return whether it was. One that cannot be stops no other."""
        try:
            await Repeats(self._servers).send(self._node, stream, name, due)
        except Exception as error:  # noqa: BLE001  # whatever stands there: others can write it
            _log.error("cannot repeat a job", stream=stream, name=decoded(name), reason=str(error))
            return False
        return True
