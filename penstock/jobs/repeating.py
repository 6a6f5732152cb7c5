"""Jobs that are repeated: by a cron expression, or every so many seconds."""

import asyncio
import json
from collections.abc import Mapping
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import WrongCall
from penstock.base.payload import as_json
from penstock.core.script import Script
from penstock.jobs.job import WEEK, Job, packed_value
from penstock.jobs.keys import checked_name
from penstock.jobs.schedule import Schedule, check_cron, drawn
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance

PRODUCER: Final = "penstock-repeat"
"""The producer of jobs that are repeated."""
LEAST_EVERY: Final = 0.1
ROUNDING: Final = 0.001
"""Seconds; times are kept in ms: what is due sooner than that has been sent."""
KEPT: Final[dict[str, type | tuple[type, ...]]] = {"begun": (int, float), "sent": (int, float), "drawn": str}
"""What is kept of a plan that is set again with the same times."""
_lua: Final = Path(__file__).parent / "lua"
_repeat, _plan = (Script.read(_lua / f"{verb}.lua") for verb in ("repeat", "plan"))


def next_time(plan: Mapping[str, Any], after: float) -> float | None:
    """Return when a job is due next (s since the epoch), None if never. ``WrongCall`` says why a plan cannot be."""
    try:
        if (every := plan.get("every")) is None:
            return Schedule(plan.get("drawn") or plan["cron"], plan.get("zone") or "UTC").after(after)
        if not LEAST_EVERY <= every <= 315_360_000:
            raise WrongCall(f"every={every}: expected seconds, at least {LEAST_EVERY:g}")
        begun = plan.get("begun", after)
        found = float(begun + (floor((after - begun) / every) + 1) * every)
        return found if found - after >= ROUNDING else found + every
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError, OSError) as error:
        what = ", ".join(f"{name}={plan[name]!r}" for name in ("cron", "every", "zone") if plan.get(name) is not None)
        raise WrongCall(f"{what}: {error}") from None


async def time_at(node: "Instance") -> float:
    """Return the time of a server (s since the epoch)."""
    seconds, micros = await node.ask("TIME")
    return int(seconds) + int(micros) / 1e6


class Repeats:
    """The jobs that are repeated, of all streams."""

    def __init__(self, servers: Servers) -> None:
        self._servers, self._keys = servers, servers.keys

    async def set(
        self, name: str, stream: str, values: Mapping[str, Any] | None = None, *, cron: str | None = None,
        every: float | None = None, zone: str = "UTC", key: str | None = None, route: str | None = None,
    ) -> float:  # fmt: skip
        """Repeat a job under a ``name`` of the stream, which replaces the former one; return when it is due first.

        ``cron`` is an expression in the time zone ``zone``, ``every`` a number of seconds. While no consumer runs, what
        is due several times is sent once. The job's id is the name, ``@``, and when it was due.

        Set again with the same times, it goes on as it was, with the new values and ``key``: what is due, or overdue,
        stays so. Raise ``WrongCall`` for a plan that cannot be, or is never due.
        """
        if (cron is None) == (every is None):
            raise WrongCall("expected cron or every")
        checked_name("stream", stream, pattern=True)
        checked_name("name", name)
        if cron is not None:
            check_cron(cron)
        given: dict[str, Any] = {"cron": cron, "every": every, "zone": zone, "key": key}
        given["values"] = {
            checked_name("key", at): decoded(packed_value(at, value)) for at, value in (values or {}).items()
        }
        node = self._servers.node(route or stream)
        while True:
            known, score, now = await self._read(node, stream, name)
            was = _read_plan(known)
            is_same = _times(was) == _times(given)
            kept = {each: was[each] for each, kind in KEPT.items() if is_same and isinstance(was.get(each), kind)}
            plan = _with_draw(given | {"begun": now} | kept, stream, name)
            due = next_time(plan, max(now, plan.get("sent", now)))
            if is_same and score is not None:  # what is overdue stays so; a clock that was wrong delays nothing
                due = float(score) if due is None else min(due, float(score))
            elif due is None and "sent" not in plan:
                raise WrongCall(f"cron={cron!r}, zone={zone!r}: it is never due")
            if await self._store(node, stream, name, known, score, plan, due):
                return plan["sent"] if due is None else round(due, 3)  # as it is stored

    async def _read(self, node: "Instance", stream: str, name: str) -> tuple[bytes, bytes | None, float]:
        """Return a plan as it is stored, empty if it is not, when it is due, and the server's time."""
        known, score, now = await asyncio.gather(
            node.command("HGET", encoded(self._keys.repeated(stream)), name),
            node.command("ZSCORE", encoded(self._keys.repeats(stream)), name),
            time_at(node),
        )
        return known or b"", score, now

    async def _store(
        self, node: "Instance", stream: str, name: str, known: bytes, score: bytes | None, plan: dict[str, Any],
        due: float | None,
    ) -> bool:  # fmt: skip
        """Store a plan and when it is due, if ever; return False if it was changed since it was ``known``."""
        return bool(
            await node.run(
                _plan,
                repeats=self._keys.repeats(stream),
                repeated=self._keys.repeated(stream),
                name=name,
                known=known,
                score=score or "",
                plan=as_json(plan),
                due="" if due is None else f"{due:.3f}",
                control=self._keys.control(stream),
            )
        )

    async def remove(self, name: str, stream: str, *, route: str | None = None) -> bool:
        """Repeat a job no more; return whether it was there."""
        node = self._servers.node(route or stream)
        found = await node.command("ZREM", encoded(self._keys.repeats(stream)), name)
        return bool(await node.command("HDEL", encoded(self._keys.repeated(stream)), name) or found)

    async def all(self, stream: str, *, route: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the jobs that are repeated, by name: ``due`` (s since the epoch), ``cron`` or ``every``, ``zone``.

        ``sent`` is when one was due last. A job that will never be due again is repeated no more.
        """
        node = self._servers.node(route or stream)
        found = await node.command("ZRANGE", encoded(self._keys.repeats(stream)), 0, -1, "WITHSCORES")
        plans = await node.command("HGETALL", encoded(self._keys.repeated(stream)))
        known = dict(zip(plans[::2], plans[1::2], strict=True))
        return {
            decoded(name): {"due": float(due)} | {k: v for k, v in _read_plan(known.get(name, b"")).items() if v}
            for name, due in zip(found[::2], found[1::2], strict=True)
        }

    async def send(self, node: "Instance", stream: str, name: bytes, due: bytes) -> None:
        """Send a job that is due, unless another consumer has; then note when it is due next.

        Raise ``WrongCall`` if that cannot be known here: the job is sent, and others may know it.
        """
        known = await node.command("HGET", encoded(self._keys.repeated(stream)), name)
        if known is None:
            await node.command("ZREM", encoded(self._keys.repeats(stream)), name)
            return
        plan = json.loads(known)
        if plan.get("sent") != float(due):
            plan["sent"] = float(due)
            noted = as_json(plan)
            if not await self._send_once(node, stream, name, due, plan, known, noted):
                return
            known = noted
        plan = _with_draw(plan, stream, decoded(name))
        found = next_time(plan, max(await time_at(node), float(due)))
        await self._store(node, stream, decoded(name), known, due, plan, found)

    async def _send_once(
        self, node: "Instance", stream: str, name: bytes, due: bytes, plan: dict[str, Any], known: bytes, noted: bytes
    ) -> bool:
        """Send a job, and note that in its plan; return False if another consumer has, or the plan was changed."""
        id = f"{decoded(name)}@{float(due):.3f}"
        values = {at: encoded(value) for at, value in plan.get("values", {}).items()}
        fields = ["prd", PRODUCER, "job", id, "keys", decoded(as_json([*values]))]
        fields += ["key", plan["key"]] if plan.get("key") else []
        if values and self._servers.node(id) is not node:
            job = Job(self._servers, id)
            for at, value in values.items():
                job.set(at, value)
            await job.push()
            values = {}
        found = await node.run(
            _repeat,
            stream=self._keys.stream(stream),
            repeats=self._keys.repeats(stream),
            repeated=self._keys.repeated(stream),
            keys=[self._keys.payload(id, at) for at in values],
            name=name,
            due=due,
            known=known,
            noted=noted,
            fields=as_json(fields),
            words=[word for value in values.values() for word in (value, int(WEEK * 1000))],
        )
        return bool(found)


def _read_plan(known: bytes) -> dict[str, Any]:
    """Return a plan that is stored; an empty one if it cannot be read."""
    try:
        found = json.loads(known or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _times(plan: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what of a plan decides when it is due."""
    if (cron := plan.get("cron")) is None:
        return None, plan.get("every")
    return str(cron).lower().split(), plan.get("zone") or "UTC"


def _with_draw(plan: dict[str, Any], stream: str, name: str) -> dict[str, Any]:
    """Return a plan with the numbers for ``R`` and ``H`` of its expression, which are drawn once."""
    cron = plan.get("cron")
    if not isinstance(cron, str) or "drawn" in plan or (found := drawn(cron, f"{stream}:{name}")) == cron:
        return plan
    return plan | {"drawn": found}
