"""Jobs that are repeated: by a cron expression, or every so many seconds."""

import json
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.encoding import decoded, encoded
from penstock.errors import WrongCall
from penstock.jobs.job import WEEK, packed_value
from penstock.jobs.keys import checked_name
from penstock.payload import as_json
from penstock.script import Script

if TYPE_CHECKING:
    from penstock.bus.instance import Instance
    from penstock.jobs.server import Jobs

PRODUCER: Final = "penstock-repeat"
"""The producer of jobs that are repeated."""
LEAST_EVERY: Final = 0.1
ROUNDING: Final = 0.001
"""Seconds; times are kept in ms: what is due sooner than that has been sent."""
_repeat: Final = Script.read(Path(__file__).parent / "lua" / "repeat.lua")


def next_time(plan: Mapping[str, Any], after: float) -> float:
    """Return when a job is due next (s since the epoch). Raise ``WrongCall`` for a plan that cannot be."""
    if (every := plan.get("every")) is not None:
        if not LEAST_EVERY <= every <= 315_360_000:
            raise WrongCall(f"every={every}: expected seconds, at least {LEAST_EVERY:g}")
        begun = plan.get("begun", after)
        found = float(begun + (int((after - begun) / every) + 1) * every)
        return found if found - after >= ROUNDING else found + every
    try:
        from croniter import croniter
    except ModuleNotFoundError as error:
        text = f"cron expressions need {error.name}, which is not installed: pip install 'penstock[jobs]'"
        raise WrongCall(text) from None
    try:
        zone = ZoneInfo(plan.get("zone") or "UTC")
        return float(croniter(plan["cron"], datetime.fromtimestamp(after, zone)).get_next(datetime).timestamp())
    except (ValueError, KeyError, AttributeError, ZoneInfoNotFoundError) as error:
        raise WrongCall(f"cron={plan.get('cron')!r}, zone={plan.get('zone')!r}: {error}") from None


class Repeats:
    """The jobs that are repeated, of all streams."""

    def __init__(self, jobs: "Jobs") -> None:
        self._jobs, self._keys = jobs, jobs.keys

    async def set(
        self, name: str, stream: str, values: Mapping[str, Any] | None = None, *, cron: str | None = None,
        every: float | None = None, zone: str = "UTC", key: str | None = None, route: str | None = None,
    ) -> float:  # fmt: skip
        """Repeat a job under a ``name`` of the stream, which replaces the former one; return when it is due first.

        ``cron`` is an expression in the time zone ``zone``, ``every`` a number of seconds. While no consumer runs, what
        is due several times is sent once. The job's id is the name, ``@``, and when it was due.
        """
        if (cron is None) == (every is None):
            raise WrongCall("expected cron or every")
        checked_name("stream", stream, pattern=True)
        plan: dict[str, Any] = {"cron": cron, "every": every, "zone": zone, "key": key, "begun": time.time()}
        plan["values"] = {
            checked_name("key", at): decoded(packed_value(at, value)) for at, value in (values or {}).items()
        }
        due = next_time(plan, time.time())
        node = self._jobs.node(route or stream)
        await node.command("HSET", encoded(self._keys.repeated(stream)), checked_name("name", name), as_json(plan))
        await node.command("ZADD", encoded(self._keys.repeats(stream)), f"{due:.3f}", name)
        await node.command("PUBLISH", encoded(self._keys.control(stream)), f"due {max(0.0, due - time.time()):.3f}")
        return due

    async def remove(self, name: str, stream: str, *, route: str | None = None) -> bool:
        """Repeat a job no more; return whether it was there."""
        node = self._jobs.node(route or stream)
        found = await node.command("ZREM", encoded(self._keys.repeats(stream)), name)
        await node.command("HDEL", encoded(self._keys.repeated(stream)), name)
        return bool(found)

    async def all(self, stream: str, *, route: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the jobs that are repeated, by name: ``due`` (s since the epoch), ``cron`` or ``every``, ``zone``."""
        node = self._jobs.node(route or stream)
        found = await node.command("ZRANGE", encoded(self._keys.repeats(stream)), 0, -1, "WITHSCORES")
        plans = await node.command("HGETALL", encoded(self._keys.repeated(stream)))
        known = dict(zip(plans[::2], plans[1::2], strict=True))
        return {
            decoded(name): {"due": float(due)} | {k: v for k, v in json.loads(known.get(name, b"{}")).items() if v}
            for name, due in zip(found[::2], found[1::2], strict=True)
        }

    async def send(self, node: "Instance", stream: str, name: bytes, due: bytes) -> None:
        """Send a job that is due, unless another consumer does."""
        plan = json.loads(await node.command("HGET", encoded(self._keys.repeated(stream)), name) or b"null")
        if plan is None:
            await node.command("ZREM", encoded(self._keys.repeats(stream)), name)
            return
        id = f"{decoded(name)}@{float(due):.3f}"
        values = {at: encoded(value) for at, value in plan.get("values", {}).items()}
        fields = ["prd", PRODUCER, "job", id, "keys", decoded(as_json([*plan.get("values", {})]))]
        fields += ["key", plan["key"]] if plan.get("key") else []
        if values and self._jobs.node(id) is not node:
            job = self._jobs.job(id)
            for at, value in values.items():
                job.set(at, value)
            await job.push()
            values = {}
        await node.run(
            _repeat,
            stream=self._keys.stream(stream),
            repeats=self._keys.repeats(stream),
            keys=[self._keys.payload(id, at) for at in values],
            name=name,
            due=due,
            next_due=f"{next_time(plan, max(time.time(), float(due))):.3f}",
            fields=as_json(fields),
            words=[word for value in values.values() for word in (value, int(WEEK * 1000))],
        )
