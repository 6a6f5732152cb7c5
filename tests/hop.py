"""A tracked hop in the hands of a test: its services move only when told to, and time passes only when told to."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any

import structlog
from redis.asyncio import Redis

from common.context import Context
from common.durability import Durability
from common.outage import Trouble
from common.tracking.completion import Finisher, Place
from penstock.accounting.answers import audit_answers
from penstock.accounting.tracked import audit_tracked
from penstock.encoding import decoded, encoded
from penstock.errors import Stale
from penstock.keys import Keys
from penstock.raw_connection import RawConnection
from penstock.script import Script
from penstock.tracking.events import read_entries
from penstock.tracking.policy import Policy
from penstock.tracking.record import UNTAKEN, touch
from services.mdispatch import settings as mdispatch
from services.mdispatch.answers import Answers
from services.mdispatch.dispatch import Dispatch
from services.monitor import settings as monitor
from services.monitor.answers import Answers as Answering
from services.monitor.done import understood
from services.monitor.sweep import Sweep

NAMES: dict[str, Any] = {"in_": "in", "pending": "pending", "out": "out", "res": "res", "reply_lists": ["*"]}
TIMES = ("timestamp", "deadline", "delivered", "died", "taken")
"""Fields of a record that are moments."""


@dataclass
class Halting(Context[Any]):
    """A run that can be held before a script, so that something else happens at the worst moment."""

    hold: str = ""
    """The name of the script."""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, script: Script, meanwhile: Callable[[], object] = lambda: None, /, **named: Any) -> Any:
        if script.name == self.hold:
            self.held.set()
            await self.go_on.wait()
        return await super().run(script, meanwhile, **named)


class Monitor:
    """One of several, without its loops."""

    def __init__(self, hop: "Hop", id: int) -> None:
        settings = monitor.Settings(
            redis="redis://h", redis_namespace="watcher", watch=[hop.keys.namespace], ordered=hop.settings.ordered
        )
        self.context = hop.context(settings, id=str(id))
        pending = self.context.pending(settings.pending_of(hop.keys.namespace))
        done = hop.settings.done or hop.keys.done
        place = Place(hop.keys, done, pending, settings.batch, settings.batch_bytes, hop.settings.event_capacity)
        place = replace(place, accept_late=hop.settings.accept_late)
        words = partial(understood, done_by=hop.settings.done_by)
        self.finisher = Finisher(self.context, place, words, partial(_touch, hop))
        self.sweeper = Sweep(self.context, hop.keys)
        self.task: asyncio.Task[Any] | None = None

    async def halt(self, script: str, work: Any) -> bool:
        """Do ``work`` until it is to run ``script``; whether it came to that."""
        self.context.hold = script
        self.context.held.clear()
        self.context.go_on.clear()
        self.task = asyncio.create_task(work)
        reached = asyncio.create_task(self.context.held.wait())
        await asyncio.wait({self.task, reached}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        if self.task.done():
            self.context.hold = ""
            self.task.result()
        return not self.task.done()

    async def resume(self) -> None:
        """Do the rest of it."""
        assert self.task
        self.context.hold = ""
        self.context.go_on.set()
        await self.task


class Hop:
    """mdispatch and ``monitors`` of a namespace, on a server whose data nobody else has."""

    def __init__(self, redis: "Redis", monitors: int = 1, namespace: str = "demo", **settings: Any) -> None:
        self.redis: Any = redis
        self.keys = Keys(namespace)
        self.settings = mdispatch.Settings(
            redis="redis://h", redis_namespace=self.keys.namespace, **{**NAMES, **settings}
        )
        context = self.context(self.settings, id="1")
        self.dispatch = Dispatch(context, lambda *request: self.answers.remember(*request))
        self._beside = context.beside("answers")
        self.forget()
        self.monitors = [Monitor(self, id + 1) for id in range(monitors)]
        self._looker = Monitor(self, monitors + 1)
        self.hands: list[bytes] = []
        """What workers have taken, the oldest first."""
        self.eager = True
        """Whether workers take everything before time passes, and a monitor sees it."""
        self.policy: Policy

    def context(self, settings: Any, id: str) -> Halting:
        log = structlog.get_logger()
        wires, durability = partial(RawConnection, self.redis), Durability("memory", 1)
        context = Halting(settings, self.redis, wires, log, Trouble(log), durability, keys=self.keys, id=id)
        context.token = 1 if settings.ordered else None
        return context

    def forget(self) -> None:
        """From now on answers are taken by what has dispatched nothing yet: another instance, or the next run."""
        self.answers = Answers(self._beside)

    async def start(self) -> "Hop":
        if self.settings.ordered:
            await self.redis.hset(self.keys.lease, "token", 1)
        await self.dispatch.recover()
        policy = await Policy.read(self.redis, self.keys)
        assert policy
        self.policy = policy
        return self

    async def push(self, *messages: bytes | str) -> None:
        """Have ``messages``, the oldest first, registered and delivered."""
        if messages:
            await self.redis.lpush(self.settings.in_, *messages)
            await self.dispatch.take()
            await self.dispatch.deliver()

    async def say(self, *entries: bytes | str | dict[str, Any], monitor: int = 0) -> None:
        """What workers push to the done list, the oldest first, and have it carried out."""
        await self.redis.lpush(self.settings.done or self.keys.done, *map(_written, entries))
        await self.finish(monitor)

    async def say_at_once(self, *entries: bytes | str | dict[str, Any], monitor: int = 0) -> None:
        """The same in one batch, as when a monitor adopts them; else the first one goes alone."""
        context = self.monitors[monitor].context
        pending = context.pending(context.settings.pending_of(self.keys.namespace))
        await self.redis.lpush(pending, *map(_written, entries))
        await context.wake()
        await self.finish(monitor)

    async def finish(self, monitor: int = 0) -> None:
        """Have carried out what lies in the done list."""
        await self.monitors[monitor].finisher.take(1)
        await self.monitors[monitor].finisher.deliver()

    async def answer(self, *answers: bytes | str | dict[str, Any]) -> None:
        """What workers push to ``res``, the oldest first, and have it passed on."""
        await self.redis.lpush(self.settings.res or "", *map(_written, answers))
        await self.answers.take(1)
        await self.answers.deliver()

    async def take(self, most: int = 1_000_000) -> list[bytes]:
        """Have workers take messages, and a monitor look; return them, the oldest first."""
        taken: list[bytes] = await self.redis.rpop(self.settings.out, most) or []
        self.hands += taken
        await self.look()
        return taken

    async def look(self) -> None:
        """Have a monitor see what has been taken."""
        await self._looker.sweeper.look(self.policy)

    async def sweep(self, monitor: int = 0) -> float:
        """Have done all that is due; seconds until more is."""
        for _ in range(1000):
            if wait := await self.monitors[monitor].sweeper.act(self.policy):
                return wait
        raise AssertionError("the sweep does not come to an end")

    async def end_answers(self, monitor: int = 0) -> float:
        """Have lists for answers ended whose time is over; seconds until more are due."""
        return await Answering(self.monitors[monitor].context, self.keys).end()

    async def advance(self, seconds: int) -> None:
        """Let time pass: everything that is on record becomes so much older, and ends so much sooner."""
        if self.eager:
            await self.take()
        names = [key async for key in self.redis.scan_iter(f"{self.keys.message('')}*")]
        hashes = [key for key in names if await self.redis.type(key) == b"hash"]
        async with self.redis.pipeline(transaction=False) as wire:
            for key in hashes:
                wire.hmget(key, TIMES)
                wire.pttl(key)
            replies = await wire.execute()
        zsets = {key: await self.redis.zrange(key, 0, -1, withscores=True) for key in self._zsets}
        lists = {name: await self.redis.pttl(name) for name, _ in zsets[self.keys.answers]}
        async with self.redis.pipeline(transaction=True) as wire:
            for key, moments, left in zip(hashes, replies[::2], replies[1::2], strict=True):
                known = {name: moment for name, moment in zip(TIMES, moments, strict=True) if moment is not None}
                for name, moment in known.items():
                    wire.hset(key, name, str(Decimal(decoded(moment)) - seconds))
                if left >= 0:
                    wire.pexpire(key, max(left - seconds * 1000, 0))
            for name, left in lists.items():
                if left >= 0:
                    wire.pexpire(name, max(left - seconds * 1000, 0))
            for key, scores in zsets.items():
                if scores:
                    wire.zadd(key, {id: score - seconds if score < UNTAKEN else score for id, score in scores})
            await wire.execute()
        for name, words in (await self.redis.hgetall(self.keys.looks)).items():
            looks = [look.split(":") for look in decoded(words).split()]
            moved = " ".join(f"{number}:{Decimal(moment) - seconds}" for number, moment in looks)
            await self.redis.hset(self.keys.looks, name, moved)

    @property
    def _zsets(self) -> tuple[str, ...]:
        return self.keys.deadlines, self.keys.delayed, self.keys.answers

    async def now(self) -> float:
        seconds, micros = await self.redis.time()
        return float(seconds) + float(micros) / 1e6

    async def record(self, id: int | str) -> dict[str, str]:
        return _texts(await self.redis.hgetall(self.keys.message(str(id))))

    async def chain(self, xid: str) -> dict[str, str]:
        """The record of an xid."""
        return _texts(await self.redis.hgetall(encoded(self.keys.xid(xid))))

    async def in_flight(self) -> list[str]:
        return [decoded(id) for id in await self.redis.zrange(self.keys.deadlines, 0, -1)]

    async def delayed(self) -> list[str]:
        return [decoded(id) for id in await self.redis.zrange(self.keys.delayed, 0, -1)]

    async def ids(self) -> list[str]:
        return [decoded(id) for id in await self.redis.lrange(self.keys.message_ids, 0, -1)]

    async def held(self, name: str = "out") -> list[bytes]:
        """What a list holds, the oldest first; of ``out`` what workers have taken, too."""
        found: list[bytes] = await self.redis.lrange(name, 0, -1)
        return (self.hands if name == self.settings.out else []) + found[::-1]

    async def letters(self) -> list[dict[str, Any]]:
        """Dead letters, the oldest first; their messages are bytes."""
        letters = [json.loads(decoded(letter)) for letter in await self.held(self.keys.dead)]
        return [letter | {"message": encoded(letter["message"])} for letter in letters]

    async def events(self) -> list[tuple[str, str, str]]:
        """Event, id and attempt of each."""
        found = [
            event async for chunk in read_entries(self.redis, self.keys) for entry in chunk for event in entry.events()
        ]
        return [(event.event, event.id, "" if event.attempt is None else str(event.attempt)) for event in found]

    async def metric(self, name: str) -> dict[str, float]:
        return {field: float(value) for field, value in (await self.texts(self.keys.metric(name))).items()}

    async def counts(self) -> dict[str, int]:
        """The count of every metric that has one, those that are 0 left out, and that of the events themselves."""
        names = [decoded(key) async for key in self.redis.scan_iter(f"{self.keys.metric('')}*")]
        counts = {name: int(await self.redis.hget(name, "count") or 0) for name in sorted(names)}
        counts.pop(self.keys.metric("events"), None)
        return {name.removeprefix(self.keys.metric("")): count for name, count in counts.items() if count}

    async def texts(self, key: str) -> dict[str, str]:
        return _texts(await self.redis.hgetall(key))

    async def problems(self) -> list[str]:
        """What ``penstock audit`` objects to."""
        found = await audit_tracked(self.redis, self.keys)
        assert found
        return found.problems + (await audit_answers(self.redis, self.keys))[1]


Start = Callable[..., Awaitable[Hop]]
"""``await start(monitors=3, attempts=2)``: the fixture of that name."""


async def _touch(hop: Hop, id: bytes, seconds: float, attempt: str) -> bool:
    try:
        await touch(hop.redis, hop.keys, decoded(id), seconds, attempt)
    except Stale:
        return False
    return True


def _texts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {decoded(name): decoded(value) for name, value in fields.items()}


def _written(entry: bytes | str | dict[str, Any]) -> bytes | str:
    return json.dumps(entry) if isinstance(entry, dict) else entry
