"""Registration and delivery of requests, in batches."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

from redis.exceptions import ResponseError

from common.context import Context
from common.in_flight import counters, counting
from common.isolation import Isolation
from common.settings.collisions import different_slots
from common.settings.redaction import quoted
from common.transaction import REFUSED
from penstock.base.encoding import encoded
from penstock.core.atomic import AtomicWrites
from penstock.core.link import describe, is_of_script
from penstock.core.raw_connection import Packed
from penstock.core.read_size import Sizes, fitting
from penstock.core.script import Script
from penstock.tracking.policy import untaken_check_interval
from services.mdispatch.answers import reply_rules
from services.mdispatch.poison import POISON, Claim, PoisonDetector
from services.mdispatch.request import BadRequest, parse_request, rejection
from services.mdispatch.settings import Settings

_dispatch: Final = Script.read(Path(__file__).parent / "lua" / "dispatch.lua")
EMPTY: Final = Packed()


class Queue(Enum):
    """What is known of ``pending`` and ``in``."""

    UNKNOWN = auto()
    """``pending`` may hold other messages than the batches: read it again."""
    EMPTY = auto()
    """``in`` was empty when it was last read."""
    MORE = auto()
    """``in`` may hold more."""
    BACKLOG = auto()
    """``in`` filled at least half of the last batch."""


@dataclass
class Requests:
    """Requests in ``pending`` with consecutive ids from ``first_id``, ready for the script once they are parsed."""

    messages: list[bytes]
    first_id: int
    adopted: bool = False
    """Whether its one message came from a dead instance, and may have killed it: claim it first."""
    subjects: Packed = EMPTY
    requests: Packed = EMPTY
    rejects: bool = False
    """Whether one of them becomes a dead letter."""
    reason: str = ""
    """Why the script has failed with its one message for the last time: then that becomes a dead letter."""


class Dispatch:
    """Moves requests from ``in`` through this instance's pending list to ``out``, and records each.

    During a backlog two batches are in hand: one is parsed while the server registers the other.
    """

    def __init__(self, context: Context[Settings], remember: Callable[[bytes, int, str], object] | None = None) -> None:
        """``remember`` is called with each request's xid, id and reply list (empty if it names none)."""
        settings, keys = context.settings, context.required_keys
        self._context, self._keys, self._remember = context, keys, remember
        self._pending = context.pending(settings.pending)
        self._count = counting(self._pending, counters(keys))
        self._batches: deque[Requests] = deque()
        self._spare_id: int | None = None
        """An id that the script has reserved for a message that comes alone."""
        self._comes_in_batches = False
        """Whether several requests came at a time: then those behind the next one are taken with it."""
        self._sizes = Sizes()
        self._queue = Queue.UNKNOWN
        self._poison = PoisonDetector(context)
        self._isolation = Isolation(context, limit=settings.attempts)
        self._cluster = False
        self._replies = reply_rules(context)
        self._obeys_attempts = settings.message_attempts == "obey"
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
            **{name: keys.metric(name) for name in ("delivered", "registered", "untracked", "dropped", "dead")},
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
        """Write the policy for monitors, and deliver what an earlier run or a dead instance has left."""
        policy = self._context.settings.policy()
        async with AtomicWrites(self._context.redis) as writes:
            writes.delete(self._keys.policy)
            writes.hset(self._keys.policy, items=[word for pair in policy.items() for word in pair])
            writes.publish(self._keys.due, "policy")
            await writes.execute()
        self._cluster = bool((await self._context.redis.info("cluster")).get("cluster_enabled"))
        await self.deliver()

    async def take(self) -> bool:
        """Wait for a request, at most ``popTimeout``; return whether there may be something to deliver."""
        context, settings = self._context, self._context.settings
        knows = self._queue is not Queue.UNKNOWN and self._spare_id is not None
        if knows and self._comes_in_batches and not context.is_woken:
            more = context.prepared(_dispatch, **self._call(Requests([], 0), held=1, wanted=settings.batch, spare=0))
            taken = await context.take(settings.in_, self._pending, settings.pop_timeout, then=more)
            return await self._read_more(taken.message)
        taken = await context.take(settings.in_, self._pending, settings.pop_timeout, count=self._count)
        if taken.message is not None and knows:
            self._add([taken.message], [], 0)
        elif taken.anything:
            self._queue = Queue.UNKNOWN
        return taken.anything

    async def _read_more(self, message: bytes | None) -> bool:
        """Read what the script has taken right behind ``message``; return whether there may be something to deliver."""
        self._queue = Queue.UNKNOWN
        reply = await self._context.outcome(_dispatch, recovers=False)
        if reply is REFUSED:
            await self._context.count(self._count)
        elif reply is not None and message is not None:
            first_id, found = reply
            self._sizes.note_all(found)
            self._add([message], found, first_id)
        self._comes_in_batches = False  # until there were several
        return True

    def _add(self, messages: list[bytes], found: list[bytes], first_id: int) -> None:
        """Make a batch of one message, for which there is an id, and of what was ``found`` behind it."""
        spare, self._spare_id, self._queue = self._spare_id or 0, None, Queue.EMPTY
        if found and first_id == spare + 1:
            messages = [*messages, *found]
        self._batches.append(Requests(messages, spare))
        if not found:
            self._spare_id = first_id or None
        elif first_id != spare + 1:
            self._batches.append(Requests(found, first_id))

    async def deliver(self) -> None:
        """Deliver what is pending and then what waits behind it, until nothing does or the run is to end."""
        while True:
            if self._queue is Queue.UNKNOWN:
                await self._read_pending()
            if not self._batches and not (self._queue is not Queue.EMPTY and self._context.running):
                return
            one_ahead = len(self._batches) > 1 or self._queue is not Queue.BACKLOG or not self._context.running
            await self._move(self._batches[0] if self._batches and one_ahead else Requests([], 0))

    async def _read_pending(self) -> None:
        """Make batches of what ``pending`` holds, with new ids."""
        pending: Any = await self._context.redis.lrange(self._pending, 0, -1)
        messages: list[bytes] = pending[::-1]
        first_id = await self._reserve_ids(len(messages)) if messages else 0
        self._batches.clear()
        adopted = self._poison.count_adopted(messages)
        for place in range(adopted):
            self._batches.append(Requests(messages[place : place + 1], first_id + place, adopted=True))
        settings, place = self._context.settings, adopted
        while place < len(messages):
            batch = messages[place : place + settings.batch]
            batch = batch[: fitting(batch, settings.batch_bytes)]
            self._batches.append(Requests(batch, first_id + place))
            place += len(batch)
        self._queue = Queue.MORE

    async def _reserve_ids(self, messages: int) -> int:
        """Reserve an id for each of ``messages`` messages; return the first."""
        counter = self._keys.message_counter
        try:
            last_id: int = await self._context.redis.incrby(counter, messages)
        except ResponseError as error:
            raise await self._context.named(error, counter, expected="string") from None
        return last_id - messages + 1

    async def _move(self, batch: Requests) -> None:
        """Register and deliver ``batch``, and take the next one; parse the batch between while the server works."""
        await self._replies.refresh()
        claim = await self._poison.claim(batch.messages[0]) if batch.adopted else None
        self._parse(batch, is_poison=claim is not None and claim.is_poison)
        if claim:
            await self._poison.survive(claim)
        room = self._context.running and len(self._batches) <= 2
        wanted = self._context.settings.batch if room else 0
        queue, self._queue = self._queue, Queue.UNKNOWN  # until the reply is there
        held, spare = sum(len(each.messages) for each in self._batches), int(self._spare_id is not None)
        named = self._call(batch, held=held, wanted=wanted, spare=spare, claim=claim)
        try:
            reply = await self._context.run_unless_full(_dispatch, lambda: self._parse_next(batch), **named)
        except ResponseError as error:
            if not is_of_script(error) or not batch.messages or batch.reason:
                raise
            self._queue = queue
            await self._isolate(batch, error)
            return
        if reply is None:
            return
        self._queue = queue
        if reply is REFUSED:
            return
        if batch.messages:
            self._batches.popleft()
            self._isolation.passed(len(batch.messages))
        if claim:
            self._poison.release()
        first_id, taken = reply
        self._comes_in_batches = len(batch.messages) > 1 or bool(taken)
        if taken:
            self._sizes.note_all(taken)
            self._batches.append(Requests(taken, first_id))
        elif first_id:
            self._spare_id = first_id
        if wanted:
            self._queue = Queue.BACKLOG if 2 * len(taken) >= wanted else Queue.MORE if taken else Queue.EMPTY

    async def _isolate(self, batch: Requests, error: ResponseError) -> None:
        """Go on with one message at a time, each until it has failed ``attempts`` times."""
        await self._isolation.failed(error, batch.messages)
        self._batches.popleft()
        if len(batch.messages) > 1:
            alone = [Requests([message], id) for id, message in enumerate(batch.messages, start=batch.first_id)]
        else:  # parsed anew
            reason = describe(error) if self._isolation.is_poison else ""
            alone = [Requests(batch.messages, batch.first_id, batch.adopted, reason=reason)]
        self._batches.extendleft(reversed(alone))

    def _call(
        self, batch: Requests, *, held: int, wanted: int, spare: int, claim: Claim | None = None
    ) -> dict[str, Any]:
        """Return what to call the script with."""
        return {
            "held": held,
            "batch": wanted,
            "spare": spare,
            "letters": self._keys.dead if batch.rejects else None,
            "deaths": self._keys.deaths if claim else None,
            "survived": claim.digest if claim else "",
            "first": batch.first_id,
            "subjects": batch.subjects,
            "requests": batch.requests,
            **self._sizes.named,
            **self._named,
        }

    def _refusal(self, name: str) -> str | None:
        """Return why list ``name`` may not get answers; None if it may."""
        settings = self._context.settings
        if self._cluster and (moved := different_slots([settings.in_, name])):
            return f"slot {moved[name]} of the cluster is not that of {quoted(settings.in_)}: use the same hash tag"
        return self._replies.refusal(name)

    def _parse_next(self, batch: Requests) -> None:
        following = next((each for each in self._batches if each is not batch), None)
        if following and not following.adopted:
            self._parse(following)

    def _parse(self, batch: Requests, *, is_poison: bool = False) -> None:
        """Turn the messages into arguments of the script."""
        if batch.subjects.count or not batch.messages:
            return
        record, xid_key = encoded(self._keys.message("")), encoded(self._keys.xid(""))
        subjects: list[bytes] = []
        requests: list[str] = []
        for id, message in enumerate(batch.messages, start=batch.first_id):
            try:
                request = (
                    POISON if is_poison
                    else rejection("poison", f"a script failed: {batch.reason}") if batch.reason
                    else parse_request(message, self._refusal, obeys_attempts=self._obeys_attempts)
                )  # fmt: skip
            except BadRequest as error:
                request = rejection("badRequest", str(error))
            subjects += (b"%b%d" % (record, id), xid_key + request.xid)
            requests.append(request.spec)
            batch.rejects |= not request.xid
            if self._remember and request.xid:
                self._remember(request.xid, id, request.reply_to)
        batch.subjects = Packed(subjects)
        batch.requests = Packed(requests[:1] if len(set(requests)) == 1 else requests)
