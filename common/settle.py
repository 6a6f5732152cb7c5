"""The stock moves of a service that reads its messages: take a batch, and settle it in one transaction."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from common.in_flight import counters, counting
from common.transaction import REFUSED
from penstock.encoding import encoded
from penstock.errors import WrongCall
from penstock.script import Script
from penstock.transfer.read_size import Sizes

if TYPE_CHECKING:
    from common.context import Context

_hold, _settle = (Script.read(Path(__file__).parent / "lua" / f"{name}.lua") for name in ("hold_batch", "settle_batch"))
METRICS: Final = ("settled", "delivered", "dead", "dropped")
MAX_BATCH: Final = 5_000
"""Messages that one call takes, and new ones that it makes; the stack of Lua ends at some 8,000 arguments."""
MAX_OUTS: Final = 3_000
"""Lists that one call pushes to."""


class Event(NamedTuple):
    """What happened to a message, for ``<ns>:events``: see docs/keys.md."""

    event: str
    id: str = ""
    xid: str = ""
    queue: str = ""


class Batch(tuple[bytes, ...]):
    """Messages that this instance has taken and not settled, oldest first. ``held`` were pending when it was read."""

    held: int


class Settling:
    """Batches of the one list with the role ``in``, through this instance's pending list."""

    def __init__(self, context: "Context[Any]") -> None:
        settings, keys = context.settings, context.keys
        sources = [field for field, role in settings.roles().items() if role.name == "in"]
        if len(sources) != 1 or not settings.pending_lists or not settings.message_wait:
            name = type(settings).__qualname__
            raise WrongCall(f"{name}: batches() needs one field of each of the types In, Pending and PopTimeout")
        self._context, self._sizes = context, Sizes()
        self._source: str = getattr(settings, sources[0])
        self._pending = context.pending(settings.pending_lists[0])
        ends = (end for end in settings.shape().ends if end.use == "writes" and end.url == settings.redis)
        self._outs = {end.key for end in ends if end.role != "dead"}
        counts = counters(keys)
        self._count = counting(self._pending, counts)
        self._held: dict[str, Any] = {
            "pending": self._pending,
            "lease": keys.lease if keys and settings.ordered else None,
            "token": context.token or 0,
            **counts,
        }
        self._settled: dict[str, Any] = {**self._held, "source": self._source}
        if keys:
            self._settled |= {name: keys.metric(name) for name in METRICS} | keys.event_keys
            self._settled["letters"] = keys.dead if settings.dead_letters else None
        self._in_hand: Batch | None = None

    async def batches(self, most: int, size: int) -> AsyncIterator[Batch]:
        """See ``Context.batches``."""
        context, wait = self._context, self._context.settings.message_wait
        if not 0 < most <= MAX_BATCH:
            raise WrongCall(f"batches of {most:,} messages: expected 1 to {MAX_BATCH:,}")
        self._in_hand = None
        while True:
            if batch := await self._take(most, size):
                self._in_hand = batch
                yield batch
                if self._in_hand is batch:
                    raise WrongCall("a batch was not settled: call settle before you ask for the next one")
            elif context.running:
                await context.take(self._source, self._pending, wait, count=self._count)
                continue
            if not context.running:
                return

    async def _take(self, most: int, size: int) -> Batch | None:
        running = self._context.running
        sought = {"source": self._source, "batch": most, "bytes": size, "takes": int(running), **self._sizes.named}
        reply = await self._context.begin(_hold, **self._held, **sought)
        if reply is REFUSED:
            return None
        messages, held, largest = reply
        if not messages:
            self._context.outage.has_room()
        self._sizes.note(len(messages), largest)
        batch = Batch(messages)
        batch.held = held
        return batch or None

    async def settle(
        self,
        batch: Batch,
        to: Mapping[str, Sequence[bytes]],
        dead: Iterable[tuple[bytes, str]],
        events: Iterable[Event],
        history: int,
    ) -> bool:
        """See ``Context.settle``."""
        if batch is not self._in_hand:
            raise WrongCall("settle takes the Batch itself that batches() gave last, once")
        dead, events = [*dead], [*events]
        self._check(to, dead, events, history)
        places, made = {message: place for place, message in enumerate(batch, start=1)}, list[bytes]()
        unsettled, pushed = Counter(batch), 0

        def place_of(message: bytes) -> int:
            nonlocal pushed
            pushed += 1
            unsettled[message] -= 1
            if message not in places:
                made.append(message)
                places[message] = -len(made)
            return places[message]

        plan = {
            "count": len(batch),
            "outs": [[*map(place_of, messages)] for messages in to.values()],
            "dead": [(place_of(message), reason) for message, reason in dead],
            "events": events,
        }
        if len(made) > MAX_BATCH:
            raise WrongCall(f"{len(made):,} new messages: expected at most {MAX_BATCH:,}; ask batches() for fewer")
        # Of messages made anew nobody knows what they were made of: then only the numbers are compared.
        plan["dropped"] = max(len(batch) - pushed, 0) if made else (+unsettled).total()
        named = {"held": batch.held, "digest": digest(batch), "plan": json.dumps(plan), "made": made}
        named["history"] = history
        done = await self._context.run_unless_full(_settle, **self._settled, **named, outs=[*map(encoded, to)])
        self._in_hand = None
        return bool(done == 1)

    def _check(self, to: Mapping[str, Any], dead: list[tuple[bytes, str]], events: list[Event], history: int) -> None:
        """Raise ``WrongCall`` for anything at which the script could stop halfway."""
        for name, messages in to.items():
            if not isinstance(messages, list | tuple) or not all(isinstance(message, bytes) for message in messages):
                raise WrongCall(f"to[{name!r}]: expected a list of messages, each of them bytes")
        for letter in dead:
            if [*map(type, letter)] != [bytes, str] or not _is_utf8(letter[1]):
                raise WrongCall("dead: expected pairs of a message, as bytes, and a reason, as text")
        for event in events:
            if [*map(type, event)] != [str] * len(Event._fields) or not all(map(_is_utf8, event)):
                raise WrongCall("events: expected name, id, xid and queue of each, as text")
        if type(history) is not int or history < 0:
            raise WrongCall(f"history={history!r}: expected a whole number from 0 on")
        if len(to) > MAX_OUTS:
            raise WrongCall(f"{len(to):,} lists: expected at most {MAX_OUTS:,}")
        unknown = [name for name in to if name not in self._outs]
        if unknown:
            raise WrongCall(f"{unknown[0]} is not a list that the settings name for output")
        if dead and not self._context.settings.dead_letters:
            raise WrongCall("dead letters need redisNamespace, and `buries = True` in the settings")


def digest(messages: Sequence[bytes]) -> str:
    """Return the SHA-1 of the lengths of ``messages`` and of these, as ``settle_batch.lua`` computes it."""
    sizes = ",".join(map(str, map(len, messages))).encode()
    return sha1(b"".join((sizes, b":", *messages)), usedforsecurity=False).hexdigest()


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
