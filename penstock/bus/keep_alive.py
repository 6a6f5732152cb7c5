"""Keep queues alive that are attached to, and the leases of those that consume one alone."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.bus.place import Place
from penstock.bus.scripts import RELEASE, RENEW, TOUCH
from penstock.bus.taking import LEASE_SECONDS, Claim
from penstock.core.connection import connect
from penstock.core.instance import Instance
from penstock.core.watchdog import NAME, Watchdog

TOUCHED_AT_ONCE: Final = 250
"""Maximum number of queues that one script keeps alive."""
TOUCH_EARLY: Final = 0.8
"""Queues whose turn comes within the rest of their interval are kept alive with those that are due."""
_log: Final = Log("penstock.bus")


class KeepAlive:
    """The queues of a bus that are attached to; ``spawn`` runs a coroutine until the bus is disconnected."""

    def __init__(self, instances: Sequence[Instance], spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self.queues = dict[Place, float]()
        """By when (monotonic) each is due."""
        self._named = defaultdict[str, dict[Place, None]](dict)
        """The same by their names."""
        self._claims = dict[Claim, None]()
        """Those whose leases are renewed."""
        self._instances, self._spawn = instances, spawn
        self._wake = asyncio.Event()
        self._watchdog: Watchdog | None = None
        self._loop: asyncio.AbstractEventLoop

    def add(self, queue: Place) -> None:
        """Keep ``queue`` alive from now on."""
        self.queues[queue] = time.monotonic() + queue.seconds / 3
        self._named[queue.name][queue] = None
        self._wake.set()

    def remove(self, queue: Place) -> None:
        """Keep ``queue`` alive no more."""
        self.queues.pop(queue, None)
        self._named[queue.name].pop(queue, None)
        if not self._named[queue.name]:
            del self._named[queue.name]

    def named(self, name: str) -> list[Place]:
        """Return the queues ``name`` that are attached."""
        return [*self._named.get(name, ())]

    def hurry(self, instance: Instance) -> None:
        """Keep the queues of ``instance`` alive at once, since it is back."""
        for queue in self.queues:
            if queue.instance is instance:
                self.queues[queue] = 0.0
        self._wake.set()

    async def run(self) -> None:
        """Keep the queues alive, for ever."""
        self._wake = asyncio.Event()  # of this event loop
        while True:
            now = time.monotonic()
            next_one = min(self.queues.values(), default=now + 3600)
            self._wake.clear()
            if next_one > now:
                try:
                    async with asyncio.timeout(next_one - now):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            due = self._due(now)
            for instance in self._instances:  # those of one that is away are due when it comes back
                mine = [each for each in due if each.instance is instance and instance.is_up]
                for first in range(0, len(mine), TOUCHED_AT_ONCE):
                    self._spawn(self._touch(instance, mine[first : first + TOUCHED_AT_ONCE]))

    def renew(self, claim: Claim) -> None:
        """Renew the lease of ``claim`` until it is over, also while a handler blocks the event loop."""
        self._claims[claim] = None
        if self._watchdog is None:
            self._loop = asyncio.get_running_loop()
            self._watchdog = Watchdog(_log, LEASE_SECONDS / 3, self._consumed, self._renew_elsewhere)
            self._watchdog.start()

    def _unwatch(self) -> None:
        if self._watchdog:
            self._watchdog.stop()
            self._watchdog = None

    async def run_renewals(self) -> None:
        """Renew the leases of consumers that have their queues alone, for ever."""
        try:
            while True:
                await asyncio.sleep(LEASE_SECONDS / 3)
                self._claims = {each: None for each in self._claims if each.is_leased}
                alone = self._alone()
                for instance, mine in alone:
                    self._spawn(self._renew(instance, mine))
                if not self._claims:
                    self._unwatch()
        finally:
            self._unwatch()

    def _alone(self) -> list[tuple[Instance, list[Claim]]]:
        """Return those that have their queues alone, by instance, as many as one script renews."""
        alone = [each for each in tuple(self._claims) if each.is_leased and each.place.instance.is_up]
        found = list[tuple[Instance, list[Claim]]]()
        for instance in {each.place.instance for each in alone}:
            mine = [each for each in alone if each.place.instance is instance]
            found += [
                (instance, mine[first : first + TOUCHED_AT_ONCE]) for first in range(0, len(mine), TOUCHED_AT_ONCE)
            ]
        return found

    def _consumed(self) -> dict[str, object]:
        return next(({"queue": each.place.name} for _, mine in self._alone() for each in mine), {})

    async def _renew_elsewhere(self) -> None:
        """Renew from another event loop; what others have by now, the next renewal in this one finds out."""
        for instance, alone in self._alone():
            leases, owners = [each.place.lease for each in alone], [each.who for each in alone]
            begun = time.monotonic()
            async with connect(instance.url, name=NAME) as redis:
                ended = await RENEW(redis, leases=leases, seconds=LEASE_SECONDS, owners=owners)
                for each in alone:
                    if each.is_over:  # it may have come after the release
                        await RELEASE(redis, lease=each.place.lease, who=each.who)
            for place, each in enumerate(alone, start=1):
                if -place in ended:  # others may have had the queue meanwhile
                    self._loop.call_soon_threadsafe(each.lapsed)
                elif place not in ended:
                    each.leased_until = begun + LEASE_SECONDS  # and no more: the rest belongs to the other event loop

    def _due(self, now: float) -> list[Place]:
        """Return the queues whose turn it is, and note when the next one will be."""
        due = [each for each, at in self.queues.items() if at - now <= each.seconds / 3 * (1 - TOUCH_EARLY)]
        for queue in due:
            if 0 < self.queues[queue] < now - queue.seconds / 3:
                _log.warning("kept alive late", queue=queue.name, seconds=round(now - self.queues[queue], 1))
            self.queues[queue] = now + queue.seconds / 3
        return due

    async def _touch(self, instance: Instance, queues: list[Place]) -> None:
        begun = time.monotonic()
        keys = [key for queue in queues for key in queue.keys]
        try:
            gone, changed = await instance.run(TOUCH, keys=keys, ttls=[queue.seconds for queue in queues])
        except (PenstockError, RedisError) as error:
            _log.warning("queues not kept alive", server=instance.address, queues=len(queues), reason=str(error))
            return
        for place, ttl in zip(changed[::2], changed[1::2], strict=True):
            queues[place - 1].note_ttl(ttl)
        missing = {queues[place - 1] for place in gone}
        for queue in queues:
            if queue not in missing:
                queue.note_alive(begun)
        for queue in missing:
            try:
                await queue.note_gone(begun)
            except (PenstockError, RedisError) as error:  # the others are as alive as before
                _log.warning("queue not kept alive", queue=queue.name, reason=str(error))

    async def _renew(self, instance: Instance, alone: list[Claim]) -> None:
        """Renew once: again after a lost reply, it might come after the release of one that ends."""
        leases, owners = [each.place.lease for each in alone], [each.who for each in alone]
        begun = time.monotonic()
        try:
            ended = await instance.run_once(RENEW, leases=leases, seconds=LEASE_SECONDS, owners=owners)
        except (PenstockError, RedisError) as error:
            _log.warning("leases not renewed", server=instance.address, reason=str(error))
            return
        for place, each in enumerate(alone, start=1):
            if place in ended:
                each.note_fenced()
            else:
                if -place in ended:
                    each.lapsed()
                each.note_lease(begun)
