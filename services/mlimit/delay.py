"""A limit by field: messages over it wait in the server, each until its own bucket has a token."""

import asyncio
import time
from math import inf
from typing import Any

from common.context import Context
from common.in_flight import counters
from common.settle import Batch
from common.transaction import REFUSED
from penstock.core.script import Script
from services.mlimit.limit import LUA, NAP, limit
from services.mlimit.request import reader
from services.mlimit.settings import Settings

_delay, _release = (Script.read(LUA / f"{name}.lua") for name in ("delay_batch", "release"))


class Delay:
    """Settles messages: those that have a token go to ``out``, the others wait, and go there later."""

    def __init__(self, context: Context[Settings]) -> None:
        settings, keys = context.settings, context.required_keys
        self._context, self._release_wire = context, context.beside("release")
        self._read = reader(settings.by, settings.field)
        self._wakes_at, self._earlier = 0.0, asyncio.Event()
        self._named: dict[str, Any] = {
            "out": settings.out,
            "waiting": keys.waiting,
            **{name: keys.metric(name) for name in ("settled", "delivered")},
        }
        self._taking = {
            **self._named,
            "letters": keys.dead,
            **{name: keys.metric(name) for name in ("dead", "limited")},
            "capacity": settings.capacity,
            "source": settings.in_,
            **limit(settings),
        }
        self._releasing = {
            **self._named,
            **counters(keys),
            "interval": 1e6 / settings.rate,
            "lease": keys.lease if settings.ordered else None,
            "token": context.token or 0,
            "batch": settings.batch,
            "bytes": settings.batch_bytes,
        }

    async def take(self) -> None:
        """Settle batch after batch until the run ends; while too many messages wait, take none."""
        context, settings = self._context, self._context.settings
        async for batch in context.batches(settings.batch, settings.batch_bytes):
            reply = await context.settle_by(_delay, batch, isolates=True, **self._requests(batch), **self._taking)
            if reply is not REFUSED:
                done, next_due = reply
                context.block("full: too many messages wait for a token" if done < 0 else "")
                self._wake_by(next_due)
                if done < 0:
                    await context.pause(next_due / 1e6 + NAP)

    async def release(self) -> None:
        """Move messages that are due to ``out``, until the run ends.

        Messages that another instance has delayed are found within ``popTimeout`` after they are due, if it dies.
        """
        wire, longest = self._release_wire, self._context.settings.pop_timeout
        while wire.running:
            self._earlier.clear()
            self._wakes_at = inf  # a message that is delayed while the script runs may be due before the pause ends
            reply = await wire.run_unless_full(_release, **self._releasing)
            if reply is not REFUSED and reply[1]:
                pause = longest if reply[1] < 0 else max(min(reply[1] / 1e6, longest), NAP)
                self._wakes_at = time.monotonic() + pause
                await wire.pause(pause, self._earlier)

    def _requests(self, batch: Batch) -> dict[str, Any]:
        """Return the buckets of the messages, and for each message the place of its own, with its deadline."""
        keys, places = self._context.required_keys, dict[str, int]()
        words = []
        for request in map(self._read, batch):
            place = places.setdefault(request.bucket, len(places) + 1)
            words.append(f"{place} {request.deadline:.6f}" if request.deadline < inf else str(place))
        return {"buckets": [*map(keys.bucket_of, places)], "places": words}

    def _wake_by(self, next_due: int) -> None:
        """End the pause in ``release`` if a message is due before it does."""
        if next_due >= 0 and time.monotonic() + next_due / 1e6 < self._wakes_at:
            self._earlier.set()
