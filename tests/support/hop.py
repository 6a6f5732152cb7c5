"""A tracked hop that a test drives step by step: services act, and time passes, only by calls."""

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
from common.tracking.completion import Completions, CompletionSource
from penstock.accounting.answers import audit_answers
from penstock.accounting.tracked import audit_tracked
from penstock.base.encoding import decoded, decoded_fields, encoded
from penstock.base.errors import Stale
from penstock.base.keys import Keys
from penstock.core.link import Outage
from penstock.core.raw_connection import RawConnection
from penstock.core.script import Script
from penstock.tracking.dead_letters import Letter
from penstock.tracking.events import read_entries
from penstock.tracking.policy import Policy
from penstock.tracking.record import UNTAKEN, touch
from services.mdispatch import settings as mdispatch
from services.mdispatch.answers import AnswerDelivery
from services.mdispatch.dispatch import Dispatch
from services.monitor import settings as monitor
from services.monitor.done import parse_done
from services.monitor.reply_lists import ReplyListExpiry
from services.monitor.sweep import Sweeper

NAMES: dict[str, Any] = {"in_": "in", "pending": "pending", "out": "out", "res": "res", "reply_lists": ["*"]}
TIMES = ("timestamp", "deadline", "delivered", "died", "taken", "until")
"""Fields of a record that are times."""


@dataclass
class PausableContext(Context[Any]):
    """A context that can be paused before a script, to let something else happen at the worst moment."""

    hold: str = ""
    """The script to pause before."""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, script: Script, meanwhile: Callable[[], object] = lambda: None, /, **named: Any) -> Any:
        if script.name == self.hold:
            self.held.set()
            await self.go_on.wait()
        return await super().run(script, meanwhile, **named)


class Monitor:
    """One of several monitors, without its loops."""

    def __init__(self, hop: "Hop", id: int) -> None:
        settings = monitor.Settings(
            redis="redis://h", redis_namespace="watcher", watch=[hop.keys.namespace], ordered=hop.settings.ordered
        )
        self.context = hop.context(settings, id=str(id))
        pending = self.context.pending(settings.pending_of(hop.keys.namespace))
        done = hop.settings.done or hop.keys.done
        place = CompletionSource(
            hop.keys, done, pending, settings.batch, settings.batch_bytes, hop.settings.event_capacity
        )
        place = replace(place, accept_late=hop.settings.accept_late)
        words = partial(parse_done, done_by=hop.settings.done_by)
        self.finisher = Completions(self.context, place, words, partial(_touch, hop))
        self.sweeper = Sweeper(self.context, hop.keys)
        self.task: asyncio.Task[Any] | None = None

    async def halt(self, script: str, work: Any) -> bool:
        """Run ``work`` until it is about to run ``script``; return False if it ends without that."""
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
        """Run the rest of the work."""
        assert self.task
        self.context.hold = ""
        self.context.go_on.set()
        await self.task


class Hop:
    """An mdispatch and ``monitors`` of a namespace, on a server of their own."""

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
        self._checker = Monitor(self, monitors + 1)
        self.taken: list[bytes] = []
        """Messages that workers have taken, oldest first."""
        self.eager = True
        """Whether workers take all messages before time passes, and a monitor notices it."""
        self.policy: Policy
        self.is_sound = True
        """Whether the audit must find no problem at the end of a test; see the fixture ``start``."""

    def context(self, settings: Any, id: str) -> PausableContext:
        log = structlog.get_logger()
        wires, durability = partial(RawConnection, self.redis), Durability("memory", 1)
        context = PausableContext(settings, self.redis, wires, log, Outage(log), durability, keys=self.keys, id=id)
        context.token = 1 if settings.ordered else None
        return context

    def forget(self) -> None:
        """Let an instance that has dispatched nothing handle the answers from now on, as after a restart."""
        self.answers = AnswerDelivery(self._beside, self.settings.res or "")

    async def start(self) -> "Hop":
        if self.settings.ordered:
            await self.redis.hset(self.keys.lease, "token", 1)
        await self.dispatch.recover()
        policy = await Policy.read(self.redis, self.keys)
        assert policy
        self.policy = policy
        return self

    async def push(self, *messages: bytes | str) -> None:
        """Push ``messages``, oldest first, and let mdispatch register and deliver them."""
        if messages:
            await self.redis.lpush(self.settings.in_, *messages)
            await self.dispatch.take()
            await self.dispatch.deliver()

    async def push_done(self, *entries: bytes | str | dict[str, Any], monitor: int = 0) -> None:
        """Push ``entries`` to the done list, oldest first, and let a monitor process them."""
        await self.redis.lpush(self.settings.done or self.keys.done, *map(_written, entries))
        await self.finish(monitor)

    async def push_done_batch(self, *entries: bytes | str | dict[str, Any], monitor: int = 0) -> None:
        """As ``push_done``, but in one batch, as if adopted; otherwise the first entry is a batch of its own."""
        context = self.monitors[monitor].context
        pending = context.pending(context.settings.pending_of(self.keys.namespace))
        await self.redis.lpush(pending, *map(_written, entries))
        await context.wake()
        await self.finish(monitor)

    async def finish(self, monitor: int = 0) -> None:
        """Let a monitor process the done list."""
        await self.monitors[monitor].finisher.take(1)
        await self.monitors[monitor].finisher.deliver()

    async def answer(self, *answers: bytes | str | dict[str, Any]) -> None:
        """Push ``answers`` to ``res``, oldest first, and let mdispatch forward them."""
        await self.redis.lpush(self.settings.res or "", *map(_written, answers))
        await self.answers.take(1)
        await self.answers.deliver()

    async def take(self, most: int = 1_000_000) -> list[bytes]:
        """Let workers take messages, and a monitor notice it; return the messages, oldest first."""
        taken: list[bytes] = await self.redis.rpop(self.settings.out, most) or []
        self.taken += taken
        await self.check_taken()
        return taken

    async def check_taken(self) -> None:
        """Let a monitor check which messages have been taken."""
        await self._checker.sweeper.observe_queue(self.policy)

    async def sweep(self, monitor: int = 0) -> float:
        """Let a monitor do all that is due; return the seconds until more is."""
        for _ in range(1000):
            if wait := await self.monitors[monitor].sweeper.sweep(self.policy):
                return wait
        raise AssertionError("the sweep does not come to an end")

    async def end_answers(self, monitor: int = 0) -> float:
        """Let a monitor close the reply lists that have expired; return the seconds until more do."""
        return await ReplyListExpiry(self.monitors[monitor].context, self.keys).expire()

    async def advance(self, seconds: int) -> None:
        """Let ``seconds`` pass: make all recorded times that much older, and shorten all TTLs by as much."""
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
        return decoded_fields(await self.redis.hgetall(self.keys.message(str(id))))

    async def chain(self, xid: str) -> dict[str, str]:
        """Return the chain of messages with ``xid``."""
        return decoded_fields(await self.redis.hgetall(encoded(self.keys.xid(xid))))

    async def in_flight(self) -> list[str]:
        return [decoded(id) for id in await self.redis.zrange(self.keys.deadlines, 0, -1)]

    async def delayed(self) -> list[str]:
        return [decoded(id) for id in await self.redis.zrange(self.keys.delayed, 0, -1)]

    async def ids(self) -> list[str]:
        return [decoded(id) for id in await self.redis.lrange(self.keys.message_ids, 0, -1)]

    async def held(self, name: str = "out") -> list[bytes]:
        """Return the messages in a list, oldest first; for ``out`` also those that workers have taken."""
        found: list[bytes] = await self.redis.lrange(name, 0, -1)
        return (self.taken if name == self.settings.out else []) + found[::-1]

    async def letters(self) -> list[dict[str, Any]]:
        """Return the dead letters, oldest first, with their messages as bytes."""
        letters = [Letter(letter) for letter in await self.held(self.keys.dead)]
        return [letter.fields | {"message": letter.message} for letter in letters]

    async def events(self) -> list[tuple[str, str, str]]:
        """Return event, id and attempt of each event."""
        found = [
            event async for chunk in read_entries(self.redis, self.keys) for entry in chunk for event in entry.events()
        ]
        return [(event.event, event.id, "" if event.attempt is None else str(event.attempt)) for event in found]

    async def metric(self, name: str) -> dict[str, float]:
        return {field: float(value) for field, value in (await self.texts(self.keys.metric(name))).items()}

    async def counts(self) -> dict[str, int]:
        """Return the counts of all metrics, without those of 0, and that of the events in the stream."""
        names = [decoded(key) async for key in self.redis.scan_iter(f"{self.keys.metric('')}*")]
        counts = {name: int(await self.redis.hget(name, "count") or 0) for name in sorted(names)}
        counts.pop(self.keys.metric("events"), None)
        return {name.removeprefix(self.keys.metric("")): count for name, count in counts.items() if count}

    async def texts(self, key: str) -> dict[str, str]:
        return decoded_fields(await self.redis.hgetall(key))

    async def problems(self) -> list[str]:
        """Return the problems that ``penstock audit`` finds."""
        found = await audit_tracked(self.redis, self.keys)
        assert found
        return found.problems + (await audit_answers(self.redis, self.keys))[1]


Start = Callable[..., Awaitable[Hop]]
"""Type of the fixture ``start``: ``await start(monitors=3, attempts=2)``."""


async def _touch(hop: Hop, id: bytes, seconds: float, attempt: str) -> bool:
    try:
        await touch(hop.redis, hop.keys, decoded(id), seconds, attempt)
    except Stale:
        return False
    return True


def _written(entry: bytes | str | dict[str, Any]) -> bytes | str:
    return json.dumps(entry) if isinstance(entry, dict) else entry
