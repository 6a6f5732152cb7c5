"""The stock moves of a service that reads its messages: take a batch, and settle it in one transaction."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import sha1
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from common.in_flight import ArrivalCounter, counters, counting
from common.isolation import Isolation
from common.transaction import REFUSED
from common.wired import FULL_POLL_SECONDS, Wired
from penstock.base.encoding import encoded
from penstock.base.errors import WrongCall
from penstock.base.urls import same_server
from penstock.core.link import is_of_script
from penstock.core.read_size import Sizes
from penstock.core.script import Script

Take = Callable[..., Awaitable[object]]
"""``Context.take``."""
HOLD, SETTLE = (Script.read(Path(__file__).parent / "lua" / f"{name}.lua") for name in ("hold_batch", "settle_batch"))
METRICS: Final = ("settled", "delivered", "dead", "dropped", "broken")
MAX_BATCH: Final = 5_000
"""Messages that one call takes, and new ones that it makes; the stack of Lua ends at some 8,000 arguments."""
MAX_OUTS: Final = 3_000
"""Lists that one call pushes to."""
HASHED_AT_ONCE: Final = 16
"""Messages that one hash is of; also in ``in_hand.lua``."""


class Event(NamedTuple):
    """What happened to a message, for ``<ns>:events``: see docs/keys.md."""

    event: str
    id: str = ""
    xid: str = ""
    queue: str = ""


class Batch(tuple[bytes, ...]):
    """Messages that this instance has taken and not settled, oldest first. ``held`` were pending when it was read."""

    held: int
    at: float
    """When it was read, in seconds since the epoch by the server's clock."""


class Places:
    """The places of the messages of a batch, from 1 on, and below 0 those of messages that the caller has ``made``."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._used = batch, list[int]()
        self._places = dict(zip(batch, count(1)))
        self.made: list[bytes] = []

    def of(self, messages: Sequence[bytes]) -> list[int]:
        """Return the places of ``messages``, which are used then."""
        places = self._places
        if not places.keys() >= {*messages}:
            for message in messages:
                if message not in places:
                    self.made.append(message)
                    places[message] = -len(self.made)
        found = [*map(places.__getitem__, messages)]
        self._used += found
        return found

    @property
    def unused(self) -> int:
        """Return how many messages of the batch were not used.

        Of messages made anew nobody knows what they were made of: then only the numbers are compared.
        """
        if self.made:
            return max(len(self._batch) - len(self._used), 0)
        if len(self._used) == len(self._places) == len(self._batch) == len(set(self._used)):
            return 0
        return (Counter(map(self._places.__getitem__, self._batch)) - Counter(self._used)).total()


class Settling:
    """Batches of the one list with the role ``in``, through this instance's pending list."""

    def __init__(self, run: Wired[Any], take: Take, count: Callable[[ArrivalCounter | None], Awaitable[None]]) -> None:
        settings, keys = run.settings, run.keys
        sources = [field for field, role in settings.roles().items() if role.name == "in"]
        if len(sources) != 1 or not settings.pending_lists or not settings.message_wait:
            name = type(settings).__qualname__
            raise WrongCall(f"{name}: batches() needs one field of each of the types In, Pending and PopTimeout")
        self._run, self._take_one, self._count_waited, self._sizes = run, take, count, Sizes()
        self._source: str = getattr(settings, sources[0])
        self._pending = run.pending(settings.pending_lists[0])
        ends = (end for end in settings.shape().ends if end.use == "writes" and same_server(end.url, settings.redis))
        self._outs = {end.key for end in ends if end.role != "dead"}
        counts = counters(keys)
        self._count = counting(self._pending, counts)
        self._held: dict[str, Any] = {
            "pending": self._pending,
            "lease": keys.lease if keys and settings.ordered else None,
            "token": run.token or 0,
            **counts,
        }
        self._settled: dict[str, Any] = {**self._held, "source": self._source}
        if keys:
            self._settled |= {name: keys.metric(name) for name in METRICS} | keys.event_keys
            self._settled["letters"] = keys.dead if settings.dead_letters else None
        self._in_hand: Batch | None = None
        self._isolation = Isolation(run)

    async def batches(self, most: int, size: int) -> AsyncIterator[Batch]:
        """See ``Context.batches``."""
        run = self._run
        self._check_bound(most)
        self._in_hand = None
        while True:
            batch = await self._take(most, size)
            while batch is not None and not batch and run.running:
                batch = await self._wait(most, size)
            if batch:
                self._in_hand = batch
                yield batch
                if self._in_hand is batch:
                    raise WrongCall("a batch was not settled: call settle before you ask for the next one")
            if not run.running:
                return

    def _check_bound(self, most: int) -> None:
        if not 0 < most <= MAX_BATCH:
            raise WrongCall(f"batches of {most:,} messages: expected 1 to {MAX_BATCH:,}")

    async def _wait(self, most: int, size: int, before: Callable[[], Awaitable[bool]] | None = None) -> Batch | None:
        """Wait for a message; return it and those behind it, read as soon as the wait is over; None if that is refused.

        ``before`` receives what was sent before.
        """
        run = self._run
        hold = run.prepared(HOLD, **self._sought(most, size, skip=0))
        await self._take_one(self._source, self._pending, run.settings.message_wait, then=hold, before=before)
        reply = await run.outcome(HOLD, recovers=False)
        if reply is REFUSED:
            await self._count_waited(self._count)
            return None
        batch = self._read(reply)
        if not batch and run.outage.server_is_full:  # a full server does not wait
            await run.pause(FULL_POLL_SECONDS)
        return batch

    async def _take(self, most: int, size: int) -> Batch | None:
        """Return the oldest messages, or no messages; None if the server refuses to read them."""
        reply = await self._run.begin(HOLD, **self._sought(most, size, skip=0))
        if reply is REFUSED:
            return None
        batch = self._read(reply)
        if not batch:
            self._run.outage.has_room()
        return batch

    def _sought(self, most: int, size: int, skip: int) -> dict[str, Any]:
        """Return what to call ``hold_batch.lua`` with."""
        most = 1 if self._isolation.alone else most
        bounds = {"skip": skip, "batch": most, "bytes": size, "takes": int(self._run.running)}
        return {**self._held, "source": self._source, **bounds, **self._sizes.named}

    def _read(self, reply: Any) -> Batch:
        messages, held, largest, at = reply
        self._sizes.note(len(messages), largest)
        batch = Batch(messages)
        batch.held, batch.at = held, float(at)
        return batch

    async def settle(
        self,
        batch: Batch,
        to: Mapping[str, Sequence[bytes]],
        dead: Iterable[tuple[bytes, str]],
        events: Iterable[Event],
        history: int,
        answers: Mapping[str, Sequence[bytes]],
        life: int,
        broken: Mapping[str, int],
    ) -> bool:
        """See ``Context.settle``."""
        self._require(batch)
        dead, events = [*dead], [*events]
        self._check(to, dead, events, history)
        self._check_answers(to, answers)
        places = Places(batch)
        plan = {
            "count": len(batch),
            "outs": [places.of(messages) for messages in (*to.values(), *answers.values())],
            "answers": len(answers),
            "broken": broken,
            "dead": [*zip(places.of([message for message, _ in dead]), (reason for _, reason in dead), strict=True)],
            "events": events,
        }
        made = places.made
        if len(made) > MAX_BATCH:
            raise WrongCall(f"{len(made):,} new messages: expected at most {MAX_BATCH:,}; ask batches() for fewer")
        plan["dropped"] = places.unused
        named = {**as_read(batch), "plan": json.dumps(plan), "made": made, "history": history, "life": life}
        return await self._settle(batch, {**self._settled, **named, "outs": [*map(encoded, (*to, *answers))]})

    async def _settle(self, batch: Batch, named: dict[str, Any]) -> bool:
        """Call ``settle_batch.lua``; return whether the batch was settled."""
        done = await self._unless_it_fails(batch, self._run.run_unless_full(SETTLE, **named))
        self._in_hand = None
        return bool(done == 1)

    async def settle_by(self, script: Script, batch: Batch, named: Mapping[str, Any], *, isolates: bool) -> Any:
        """See ``Context.settle_by``."""
        self._require(batch)
        running = self._run.run_unless_full(script, **self._held, **as_read(batch), **named)
        result = await (self._unless_it_fails(batch, running) if isolates else running)
        self._in_hand = None
        return result

    async def _unless_it_fails(self, batch: Batch, running: Awaitable[Any]) -> Any:
        """Return the result of a script that settles ``batch``; ``REFUSED`` if it failed and the batch is isolated."""
        try:
            result = await running
        except ResponseError as error:
            self._require_isolation(error)
            await self._isolate(batch, error)
            return REFUSED
        if result is not REFUSED and result != 0:
            self._isolation.passed(len(batch))
        return result

    def _require_isolation(self, error: ResponseError) -> None:
        """Raise ``error`` unless a script failed by a fault of its own, and a message can become a dead letter."""
        if not is_of_script(error) or not self._run.settings.dead_letters:
            raise error

    async def _isolate(self, batch: Batch, error: ResponseError) -> None:
        """Go on with one message at a time; make a dead letter of one that is poison. Raise if even that fails."""
        await self._isolation.failed(error, batch)
        if not self._isolation.is_poison:
            return
        plan = {"count": 1, "outs": [], "answers": 0, "broken": {}, "dead": [(1, "poison")], "events": [], "dropped": 0}
        named = {**self._settled, **as_read(batch), "plan": json.dumps(plan), "made": [], "history": 0, "life": 0}
        if await self._run.run_unless_full(SETTLE, **named, outs=[]) == 1:
            self._isolation.passed(1)

    def _require(self, batch: Batch) -> None:
        if batch is not self._in_hand:
            raise WrongCall("settle takes the Batch itself that batches() gave last, once")

    def _check(self, to: Mapping[str, Any], dead: list[tuple[bytes, str]], events: list[Event], history: int) -> None:
        """Raise ``WrongCall`` for anything at which the script could stop halfway."""
        _check_messages("to", to)
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
        if dead and not self._run.settings.dead_letters:
            raise WrongCall("dead letters need redisNamespace, and `buries = True` in the settings")

    def _check_answers(self, to: Mapping[str, Any], answers: Mapping[str, Any]) -> None:
        _check_messages("answers", answers)
        if len(to) + len(answers) > MAX_OUTS:
            raise WrongCall(f"{len(to) + len(answers):,} lists: expected at most {MAX_OUTS:,}")
        if both := to.keys() & answers.keys():
            raise WrongCall(f"{min(both)} gets messages and answers: expected a list of its own for answers")
        if answers and not self._run.settings.dead_letters:
            raise WrongCall("answers that are refused are dead letters: see `dead`")


def _check_messages(parameter: str, lists: Mapping[str, Any]) -> None:
    for name, messages in lists.items():
        if not isinstance(messages, list | tuple) or not {*map(type, messages)} <= {bytes}:
            raise WrongCall(f"{parameter}[{name!r}]: expected a list of messages, each of them bytes")


def as_read(batch: Batch) -> dict[str, Any]:
    """Return the arguments of ``in_hand.lua``."""
    return {"held": batch.held, "digest": digest(batch)}


def digest(messages: Sequence[bytes]) -> str:
    """Return the SHA-1 by which ``in_hand.lua`` recognizes ``messages``."""
    places = range(0, len(messages), HASHED_AT_ONCE)
    hashes = [_sha1(b"".join(messages[first : first + HASHED_AT_ONCE])) for first in places]
    sizes = str([*map(len, messages)])[1:-1]
    return _sha1((sizes + "".join(hashes)).encode())


def _sha1(text: bytes) -> str:
    return sha1(text, usedforsecurity=False).hexdigest()


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
