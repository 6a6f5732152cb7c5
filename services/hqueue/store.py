"""What can be done with the tasks of a queue: one call of a script each."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from common.http.caller import Caller
from penstock.base.keys import Keys
from penstock.core.script import Script
from penstock.core.wire import Reply
from services.hqueue.keys import owner_of, queue_keys
from services.hqueue.settings import Settings
from services.hqueue.steps import Step

LUA: Final = Path(__file__).parent / "lua"
VERBS: Final = (
    "add", "fetch", "heartbeat", "ack", "sweep", "again", "cancel", "show", "page", "info", "due", "claim", "reply",
    "sent", "served",
)  # fmt: skip
_scripts: Final = {verb: Script.read(LUA / f"{verb}.lua") for verb in VERBS}
IDS: Final = range(10**11, 10**12)
"""Where the ids of an instance begin: short enough for tables, and for who reads them as numbers."""
SWEPT: Final = 200
"""Maximum number of tasks of a queue that one sweep acts on."""
KEY_BYTES: Final = 32
SERVED_SECONDS: Final = 0.5
"""Time between two notes in the server that requests are served; after ``AWAY_SECONDS`` without any they were not."""
AWAY_SECONDS: Final = 1.5
GRACE_SECONDS: Final = 10.0
"""How long leases last on after that, so that workers whose calls failed meanwhile can repeat them."""


class New(NamedTuple):
    """A task to add: ``record`` is JSON, ``value`` and ``more`` are as they are stored, ``delay`` is in seconds."""

    id: str
    record: bytes
    value: bytes
    more: bytes
    delay: float


class Ended(NamedTuple):
    """How an attempt ended: see ``lua/ack.lua``."""

    worker: str
    id: str
    attempt: int
    outcome: str
    content: bytes
    kind: str
    again: str


@dataclass(frozen=True, slots=True)
class Given:
    """A task as its worker gets it; ``value`` and ``progress`` as they are stored."""

    id: str
    index: int
    attempt: int
    lease_end: float
    """Seconds since the epoch."""
    value: bytes | None
    progress: bytes | None


class Store:
    """The queues of one namespace, as the instance ``id`` sees them; ``become`` says which."""

    def __init__(self, caller: Caller, keys: Keys, settings: Settings) -> None:
        self.keys = keys
        self._caller, self._settings = caller, settings
        self._ids = _fresh_ids()
        events = keys.event_keys if settings.event_capacity else {}
        self._common: dict[str, Any] = {"keep": settings.keep, "news": keys.task_news, "service": "", **events}
        self._common |= {"history": settings.event_capacity, "away": AWAY_SECONDS, "grace": GRACE_SECONDS}
        """What all scripts get that change tasks."""

    @property
    def is_open(self) -> bool:
        """Return whether the server is there."""
        return self._caller.is_open

    def become(self, id: str) -> None:
        """Act as the instance ``id`` from now on."""
        self._common["service"] = id

    async def shared_key(self, known: bytes | None) -> bytes:
        """Return the key that all instances sign task tokens with; the first one makes it.

        If the server has lost it, it gets ``known`` again, the key that this instance has.
        """
        found = await Step[bytes | None](self._caller.send("GET", self.keys.task_key))
        if found is None:  # a full server refuses SET with NX, too
            made = known or secrets.token_bytes(KEY_BYTES)
            await Step[Any](self._caller.send("SET", self.keys.task_key, made, "NX"))
            found = await Step[bytes](self._caller.send("GET", self.keys.task_key))
        return found

    async def new_id(self) -> str:
        """Return an id that no other task has had, in any namespace, nor before the server lost data."""
        return str(next(self._ids))

    async def add(self, queue: str, new: Sequence[New]) -> list[tuple[str, int, str, bool]] | None:
        """Add tasks; return id, index and state of each, and whether it is new. None if the queue is full.

        Return no tasks if one of the ids was given before: then ``new_id`` has others.
        """
        words = [word for each in new for word in (each.id, each.record, each.value, each.more, each.delay)]
        metrics = {name: self.keys.metric(name) for name in ("registered", "taken")}
        added = await self._act("add", queue, **metrics, capacity=self._settings.capacity, new=words)
        if added == -1:
            return None
        if added == -2:
            self._ids = _fresh_ids()
            return []
        return [(id.decode(), int(index), state.decode(), is_new == 1) for id, index, state, is_new in added]

    async def fetch(self, queue: str, worker: str, span: float, most: int, process: str = "-") -> list[Given]:
        """Return the tasks that ``worker`` has, or else up to ``most`` that wait, leased for ``span`` seconds.

        Several have at most ``maxBody`` bytes together. If ``process`` is not that of the last fetch, or is empty for
        the second time in turn, the worker has died, and the attempts that it had are over.
        """
        delivered, room, length = self.keys.metric("delivered"), self._settings.max_body, f"{span:.6f}"
        asked: dict[str, Any] = {"worker": worker, "process": process, "span": length, "most": most, "room": room}
        while True:
            given = await self._act("fetch", queue, delivered=delivered, **asked)
            if isinstance(given, list):
                return [
                    Given(id.decode(), int(index), attempt, float(end), value, more[0] if more else None)
                    for id, index, attempt, end, value, *more in given
                ]
            if not await self.sweep(queue, [given]):
                return []

    async def heartbeat(self, queue: str, id: str, attempt: int, span: float | None, progress: bytes) -> Any:
        """Renew a lease; return its end as text, and 1 if the task is to be given up. 0 if it is over."""
        touched, length = self.keys.metric("touched"), "" if span is None else f"{span:.6f}"
        return await self._act(
            "heartbeat", queue, touched=touched, id=id, attempt=attempt, span=length, progress=progress
        )

    async def ack(self, queue: str, ended: Sequence[Ended]) -> list[str | None]:
        """End attempts; return the state of each task, None if the worker does not have it any more."""
        metrics = {name: self.keys.metric(name) for name in ("failed", "retry")}
        words = [word for each in ended for word in each]
        states = await self._act("ack", queue, **metrics, acks=words)
        return [state.decode() if state else None for state in states]

    async def last_of(self, queue: str, worker: str) -> str | None:
        """Return the id of the task that ``worker`` fetched last; None if it has none."""
        found = await Step[bytes | None](self._caller.send("HGET", queue_keys(self.keys, queue)["workers"], worker))
        return found.split()[-1].decode() if found else None

    async def again(self, queue: str, ids: Sequence[str], *, dead_only: bool) -> int:
        """Let tasks that have ended wait again; return how many do."""
        metrics = {name: self.keys.metric(name) for name in ("revived", "registered", "taken")}
        life, only = self._settings.task_expire, int(dead_only)
        count: int = await self._act("again", queue, **metrics, life=life, dead_only=only, ids=list(ids))
        return count

    async def cancel(self, queue: str, id: str) -> str | None:
        """End a task that no worker has, or mark it; return the word of ``lua/cancel.lua``, None if there is none."""
        found = await self._act("cancel", queue, id=id)
        return found.decode() if found else None

    async def sweep(self, queue: str, due: Sequence[str | bytes]) -> int:
        """Act on what is due in a queue; return how many tasks were acted on."""
        metrics = {name: self.keys.metric(name) for name in ("timeout", "retry")}
        acted: int = await self._act("sweep", queue, **metrics, most=SWEPT, due=list(due))
        return acted

    async def note_served(self) -> None:
        """Note that requests are served, before leases end that workers could not renew while none were."""
        await Step[int](self._call("served", served=self.keys.tasks_served, away=AWAY_SECONDS, least=SERVED_SECONDS))

    async def due(self, most: int, skip: int = 0) -> tuple[float | None, list[tuple[str, str]]]:
        """Return the seconds until the next task of any queue is due, and id and queue of those that are.

        They are ``most`` of each kind, behind the first ``skip``.
        """
        keys = {"deadlines": self.keys.deadlines, "delayed": self.keys.delayed, "kept": self.keys.kept_tasks}
        after, found = await Step[Any](self._call("due", **keys, most=most, skip=skip))
        pairs = [member.decode().partition(" ") for member in found]
        return float(after) if after else None, [(id, queue) for id, _, queue in pairs]

    async def claim(self, most: int, span: float) -> tuple[float | None, list[tuple[str, str]]]:
        """Take up to ``most`` outcomes whose delivery is due, for ``span`` seconds; return them as ``due`` does."""
        after, found = await Step[Any](self._call("claim", outbox=self.keys.outbox, most=most, span=f"{span:.3f}"))
        pairs = [member.decode().partition(" ") for member in found]
        return float(after) if after else None, [(id, queue) for id, _, queue in pairs]

    async def reply(self, queue: str, id: str, turn: int, name: str, message: bytes) -> str:
        """Push the outcome of a task to the list ``name``; return the word of ``lua/reply.lua``."""
        replies, capacity = self.keys.outcomes(owner_of(queue), name), self._settings.capacity
        found: bytes = await self._deliver(
            "reply", queue, id, turn, replies=replies, message=message, capacity=capacity
        )
        return found.decode()

    async def sent(self, queue: str, id: str, turn: int, outcome: str, wait: float) -> str:
        """Note how an attempt to deliver ended; return what has become of the delivery. See ``lua/sent.lua``."""
        patience = self._settings.webhook_patience
        found: bytes = await self._deliver(
            "sent", queue, id, turn, outcome=outcome, wait=f"{wait:.3f}", patience=patience, news=self.keys.task_news
        )
        return found.decode()

    async def _deliver(self, verb: str, queue: str, id: str, turn: int, **named: Any) -> bytes:
        keys = {"tasks": queue_keys(self.keys, queue)["tasks"], "outbox": self.keys.outbox}
        outcomes = self.keys.metric("outcomes")
        found: bytes = await Step[bytes](
            self._call(verb, **keys, outcomes=outcomes, queue=queue, id=id, round=turn, **named)
        )
        return found

    async def show(self, queue: str, id: str) -> list[Any]:
        """Return record, more, result, error and progress of a task, None for what it has not."""
        found: list[Any] = await self._look("show", queue, ("tasks", "values"), id=id)
        return found

    async def page(self, queue: str, after: int, most: int) -> list[tuple[str, bytes]]:
        """Return ids and records of up to ``most`` tasks behind the index ``after``."""
        found = await self._look("page", queue, ("tasks", "order"), after=after, most=most)
        return [(id.decode(), record) for id, record in zip(found[::2], found[1::2], strict=True) if record]

    async def info(self, queue: str, most: int) -> list[Any]:
        """Return what ``lua/info.lua`` says of a queue."""
        parts = ("ready", "held", "later", "behind", "order", "tasks")
        found: list[Any] = await self._look("info", queue, parts, most=most)
        return found

    async def _look(self, verb: str, queue: str, parts: Sequence[str], **named: Any) -> Any:
        keys = queue_keys(self.keys, queue)
        return await Step[Any](self._call(verb, **{part: keys[part] for part in parts}, **named))

    async def _act(self, verb: str, queue: str, **named: Any) -> Any:
        return await Step[Any](self._call(verb, **queue_keys(self.keys, queue), **self._common, queue=queue, **named))

    def _call(self, verb: str, **named: Any) -> Reply:
        return self._caller.call(_scripts[verb], Reply(), named)


def _fresh_ids() -> Iterator[int]:
    """Return numbers in order from a random one on: a counter in the server would begin again with its data."""
    return count(secrets.choice(IDS))
