"""Looks after some streams of one server: what waits is due, what was left is claimed, what is done is removed."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError
from penstock.base.log import Log
from penstock.base.payload import as_json
from penstock.core.link import passes
from penstock.core.script import Script
from penstock.jobs.keys import OURS
from penstock.jobs.repeating import Repeats
from penstock.jobs.settler import SILENT_MS

if TYPE_CHECKING:
    from penstock.jobs.reader import Reader
    from penstock.jobs.worker import Worker

TEND_SHARE: Final = 4
"""How often what was left is looked for in the time after which it may be claimed."""
MAX_TEND_SECONDS: Final = 15.0
LEAST_SECONDS: Final = 0.02
LOOK_SECONDS: Final = 1.0
"""Longest wait for a permit until it is looked for again."""
KEEPERS: Final = 2
"""How many of our consumers keep the completions of Node's: one may die."""
WATCH_SECONDS: Final = 1.0
"""Shortest time between two looks for consumers of Node's."""
MAX_READ: Final = 500
NEVER_MS: Final = 2**53
"""No entry is idle for so long."""
LOST: Final = {"name": "Lost", "message": "all of its consumers have died, or lost their server"}
_lua: Final = Path(__file__).parent / "lua"
_tend, _watch = (Script.read(_lua / f"{verb}.lua") for verb in ("tend", "watch"))
_log: Final = Log("penstock.jobs")


class Tender:
    """Looks after the streams of ``reader``."""

    def __init__(self, reader: "Reader", worker: "Worker") -> None:
        self._reader, self._node = reader, reader.node
        self._worker, self._consumer, self._keys = worker, worker.consumer, worker.servers.keys
        self._group = self._keys.group(worker.consumer.group)
        self._from = dict[str, bytes]()
        """Where to go on looking for entries that were left, by stream."""
        self._seconds = min(MAX_TEND_SECONDS, worker.options.claim_after / TEND_SHARE)
        self._watch_seconds = max(WATCH_SECONDS, self._seconds)
        self._watch_at = dict[str, float]()
        """When (monotonic) to look for consumers of Node's again, by stream."""
        self._kept = set[str]()
        """Streams whose completions of Node's consumers this one keeps."""
        self._at, self._news = 0.0, asyncio.Event()

    async def run(self) -> None:
        """Look again and again, until all shall stop."""
        while not self._worker.stopping:
            wait = self._seconds
            self._at = time.monotonic() + wait
            for name in self._reader.streams:
                try:
                    wait = min(wait, await self._tend(name))
                except (RedisError, OSError, PenstockError) as error:
                    if not passes(error) and "NOGROUP" not in str(error):
                        _log.warning("cannot claim jobs", stream=name, server=self._node.address, reason=str(error))
            self._reader.cut_if_silent()
            self.within(max(wait, LEAST_SECONDS))
            while (left := self._at - time.monotonic()) > 0 and not self._worker.stopping:
                self._news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._news.wait()

    async def _tend(self, name: str) -> float:
        """Claim what is due of one stream; return the seconds until more is."""
        is_held = self._consumer.is_paused or self._reader.settler.is_held_up
        most = 0 if is_held else min(self._worker.free, MAX_READ)
        of_group = self._keys.of_group(name, self._consumer.group)
        after, claimed, missing, is_paused, due, self._from[name] = await self._node.run(
            _tend,
            stream=of_group["stream"],
            wait=of_group["wait"],
            tries=of_group["tries"],
            later=self._keys.later(name),
            repeats=self._keys.repeats(name),
            paused=self._keys.paused(name),
            group=self._group,
            consumer=self._consumer.id,
            most=most,
            idle=NEVER_MS if self._holders_come_back() else int(self._worker.options.claim_after * 1000),
            lost=as_json(LOST),
            attempts=self._worker.options.attempts,
            is_limited=int(self._reader.permits is not None),
            **{"from": self._from.get(name, b"-")},
        )
        was_paused = name in self._reader.paused
        (self._reader.paused.add if is_paused else self._reader.paused.discard)(name)
        if was_paused != bool(is_paused):
            self._reader.wake()
        if claimed:
            await self._reader.begin(name, claimed)
        repeated = [await self._repeat(name, due[place], due[place + 1]) for place in range(0, len(due), 2)]
        if missing:
            _log.warning("jobs were removed from the stream before they were done", stream=name, many=len(missing))
            await self._reader.note_gone(name, missing)
        if self._reader.permits:
            await self._reader.permits.take([], parks=True)  # frees what dead consumers had
        self._reader.settler.forward(name)
        if self._worker.options.trim:
            await self._reader.settler.trim(name)
        if self._watch_at.get(name, 0.0) <= time.monotonic():
            self._watch_at[name] = time.monotonic() + self._watch_seconds
            await self._watch(name)
        if after and not most:
            self._worker.looks_when_free = True
        if any(repeated) or (claimed and len(claimed) == most):
            return LEAST_SECONDS
        soon = self._seconds if self._from[name] == b"-" else min(self._seconds, LOOK_SECONDS)
        return min(float(after), soon) if after and most else soon

    def _holders_come_back(self) -> bool:
        """Return whether the server was away for so long that jobs seem left which others have in hand, or have done.

        These are renewed, or settled, as soon as their consumers are connected again.
        """
        node, after = self._node, self._worker.options.claim_after
        return 0 < node.lost_at < node.back_at - after / 2 and time.monotonic() < node.back_at + after / 2

    async def _watch(self, stream: str) -> None:
        """Keep what consumers of Node's publish, if there are any, unless enough others of ours do."""
        is_wanted = await self._node.run(
            _watch,
            stream=self._keys.stream(stream),
            keepers=self._keys.keepers(stream),
            consumer=self._consumer.id,
            prefix=OURS,
            silent=SILENT_MS,
            lease=3 * self._watch_seconds,
            most=KEEPERS,
        )
        if is_wanted and stream not in self._kept:
            self._kept.add(stream)
            self._worker.servers.keeper(stream).add(stream)
        elif not is_wanted:
            await self._keep_no_more(stream)

    async def _keep_no_more(self, stream: str) -> None:
        if stream in self._kept:
            self._kept.discard(stream)
            await self._worker.servers.keeper(stream).discard(stream)

    async def _repeat(self, stream: str, name: bytes, due: bytes) -> bool:
        """Send a job that is repeated and due; return whether it was. One that cannot be stops no other."""
        try:
            await Repeats(self._worker.servers).send(self._node, stream, name, due)
        except Exception as error:  # noqa: BLE001  # whatever stands there: others can write it
            _log.error("cannot repeat a job", stream=stream, name=decoded(name), reason=str(error))
            return False
        return True

    def within(self, seconds: float) -> None:
        """Look after what waits in ``seconds``, if not before."""
        at = time.monotonic() + seconds
        if at < self._at:
            self._at = at
            self._news.set()

    async def close(self) -> None:
        """Keep completions of Node's no more."""
        for name in self._reader.streams:
            if name in self._kept:
                await self._keep_no_more(name)
                with suppress(RedisError, OSError, PenstockError):
                    if not self._node.is_away:
                        await self._node.command("ZREM", encoded(self._keys.keepers(name)), self._consumer.id)
