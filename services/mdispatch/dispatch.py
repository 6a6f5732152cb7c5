"""The moves of mdispatch: requests registered and delivered, in batches, without leaving the server twice."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redis.exceptions import ResponseError

from common.context import Context
from common.in_flight import counters, counting
from common.settings.collisions import different_slots
from common.settings.redaction import quoted
from common.transaction import REFUSED
from penstock.atomic import AtomicWrites
from penstock.encoding import encoded
from penstock.raw_connection import Packed
from penstock.script import Script
from penstock.tracking.policy import untaken_check_interval
from penstock.transfer.read_size import Sizes
from services.mdispatch.answers import replies_of
from services.mdispatch.request import Unreadable, read, rejected
from services.mdispatch.settings import Settings
from services.mdispatch.suspects import POISON, Suspects

_dispatch: Final = Script.read(Path(__file__).parent / "lua" / "dispatch.lua")
NOTHING: Final = Packed()


@dataclass
class Batch:
    """Requests in ``pending`` and the first of the ids that are theirs, ready for the script once they are read."""

    messages: list[bytes]
    first_id: int
    suspect: bool = False
    """Came from a dead instance: one at a time, and on record, since it may be what that one died of."""
    subjects: Packed = NOTHING
    requests: Packed = NOTHING
    rejects: bool = False
    """Whether one of them goes to the dead letters."""


class Dispatch:
    """From ``in`` through this instance's pending list to ``out``, leaving a record of each request.

    While there is a backlog two batches are in hand: one is read while the server registers the other.
    """

    def __init__(self, context: Context[Settings], remember: Callable[[bytes, int, str], object] | None = None) -> None:
        """``remember``: told the xid of each request, its id, and the list for its answer where it names one."""
        settings, keys = context.settings, context.keys
        assert keys
        assert context.id
        self._context, self._keys, self._remember = context, keys, remember
        self._pending = context.pending(settings.pending)
        self._count = counting(self._pending, counters(keys))
        self._batches: deque[Batch] = deque()
        self._spare: int | None = None
        self._sizes = Sizes()
        self._known = False
        """Whether the batches are what ``pending`` holds."""
        self._more = self._backlog = False
        """Whether ``in`` may hold more, and whether it held much more when it was last seen."""
        self._suspects = Suspects(context)
        self._cluster = False
        self._replies = replies_of(context)
        self._named: dict[str, Any] = {
            "pending": self._pending,
            "source": settings.in_,
            "out": settings.out,
            "counter": keys.message_counter,
            "ids": keys.message_ids,
            "deadlines": keys.deadlines,
            "pushed": keys.pushed,
            "looks": keys.looks,
            "delayed": keys.delayed,
            **keys.event_keys,
            "lease": keys.lease if settings.ordered else None,
            **counters(keys),
            **{name: keys.metric(name) for name in ("delivered", "registered", "untracked", "dead")},
            "token": context.token or 0,
            "bytes": settings.batch_bytes,
            "service": context.id,
            "every": untaken_check_interval(settings.message_timeout),
            "timeout": settings.message_timeout,
            "expire": settings.message_expire,
            "capacity": settings.message_capacity,
            "history": settings.event_capacity,
            "payloads": int(settings.event_messages),
            "due": keys.due,
            "prefix": len(encoded(keys.xid(""))),
        }

    async def recover(self) -> None:
        """Publish what monitors must know, and deliver what an earlier run or a dead instance has left."""
        policy = self._context.settings.policy()
        async with AtomicWrites(self._context.redis) as writes:
            writes.delete(self._keys.policy)
            writes.hset(self._keys.policy, items=[word for pair in policy.items() for word in pair])
            writes.publish(self._keys.due, "policy")
            await writes.execute()
        self._cluster = bool((await self._context.redis.info("cluster")).get("cluster_enabled"))
        await self.deliver()

    async def take(self) -> bool:
        """Wait for a request, at most ``popTimeout``; whether there may be something to deliver."""
        settings = self._context.settings
        taken = await self._context.take(settings.in_, self._pending, settings.pop_timeout, count=self._count)
        if taken.message is not None and self._known and self._spare is not None:
            self._batches.append(Batch([taken.message], self._spare))
            self._spare, self._more = None, False
        elif taken.anything:
            self._known = False
        return taken.anything

    async def deliver(self) -> None:
        """Deliver what is pending and then what waits behind it, until nothing does or the run shall end."""
        while True:
            if not self._known:
                await self._look()
            if not self._batches and not (self._more and self._context.running):
                return
            one_ahead = len(self._batches) > 1 or not self._backlog or not self._context.running
            await self._move(self._batches[0] if self._batches and one_ahead else Batch([], 0))

    async def _look(self) -> None:
        """See what ``pending`` holds, and give it ids."""
        pending: Any = await self._context.redis.lrange(self._pending, 0, -1)
        messages: list[bytes] = pending[::-1]
        first_id = await self._give_ids(len(messages)) if messages else 0
        self._batches.clear()
        suspects = self._suspects.among(messages)
        for place in range(suspects):
            self._batches.append(Batch(messages[place : place + 1], first_id + place, suspect=True))
        step = self._context.settings.batch
        for place in range(suspects, len(messages), step):
            self._batches.append(Batch(messages[place : place + step], first_id + place))
        self._known = self._more = True
        self._backlog = False

    async def _give_ids(self, messages: int) -> int:
        """The first one of so many."""
        counter = self._keys.message_counter
        try:
            last_id: int = await self._context.redis.incrby(counter, messages)
        except ResponseError as error:
            raise await self._context.named(error, counter, expected="string") from None
        return last_id - messages + 1

    async def _move(self, batch: Batch) -> None:
        """Have ``batch`` registered and delivered, and as many more taken; meanwhile read the batch after it."""
        await self._replies.refresh()
        survived = await self._suspects.enter(batch.messages[0]) if batch.suspect else None
        self._read(batch, buried=survived is not None and survived.is_poison)
        room = self._context.running and len(self._batches) <= 2
        wanted = self._context.settings.batch if room else 0
        self._known = False  # until the outcome is known
        reply = await self._context.run_unless_full(
            _dispatch,
            lambda: self._read_next(batch),
            held=sum(len(each.messages) for each in self._batches),
            batch=wanted,
            spare=int(self._spare is not None),
            letters=self._keys.dead if batch.rejects else None,
            deaths=self._keys.deaths if survived else None,
            survived=survived.digest if survived else "",
            first=batch.first_id,
            subjects=batch.subjects,
            requests=batch.requests,
            **self._sizes.named,
            **self._named,
        )
        self._known = reply is not None
        if reply is None or reply is REFUSED:
            return
        if batch.messages:
            self._batches.popleft()
        if survived:
            self._suspects.survived()
        first_id, taken = reply
        if taken:
            self._sizes.note_all(taken)
            self._batches.append(Batch(taken, first_id))
        elif first_id:
            self._spare = first_id
        if wanted:
            self._more, self._backlog = bool(taken), 2 * len(taken) >= wanted

    def _why_not(self, name: str) -> str | None:
        """Why a list cannot be one for answers; None if it can."""
        settings = self._context.settings
        if self._cluster and (moved := different_slots([settings.in_, name])):
            return f"slot {moved[name]} of the cluster is not that of {quoted(settings.in_)}: use the same hash tag"
        return self._replies.refusal(name)

    def _read_next(self, batch: Batch) -> None:
        following = next((each for each in self._batches if each is not batch), None)
        if following and not following.suspect:
            self._read(following)

    def _read(self, batch: Batch, *, buried: bool = False) -> None:
        """Make of the messages what the script takes."""
        if batch.subjects.count or not batch.messages:
            return
        record, xid_key = encoded(self._keys.message("")), encoded(self._keys.xid(""))
        subjects: list[bytes] = []
        requests: list[str] = []
        for id, message in enumerate(batch.messages, start=batch.first_id):
            try:
                request = POISON if buried else read(message, self._why_not)
            except Unreadable as error:
                request = rejected("badRequest", str(error))
            subjects += (b"%b%d" % (record, id), xid_key + request.xid)
            requests.append(request.words)
            batch.rejects |= not request.xid
            if self._remember and request.xid:
                self._remember(request.xid, id, request.reply_to)
        batch.subjects = Packed(subjects)
        batch.requests = Packed(requests[:1] if len(set(requests)) == 1 else requests)
