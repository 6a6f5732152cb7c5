"""Settles attempts of a group on one server: many at a time, each once."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import PenstockError, Unavailable
from penstock.base.log import Log
from penstock.base.payload import as_json
from penstock.core.connection import MAX_SILENCE
from penstock.core.link import LostReply
from penstock.core.script import Fixed, Script
from penstock.core.tasks import Tasks
from penstock.core.wire import Reply
from penstock.jobs.attempt import Attempt
from penstock.jobs.forwarding import Forwarding
from penstock.jobs.job import WEEK
from penstock.jobs.keys import CAPACITY, KEPT, OURS, SILENT_MS
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.jobs.ledger import Ledger

MAX_SETTLED: Final = 400
MAX_BYTES: Final = 1 << 24
"""Maximum number of bytes settled at once, unless one attempt has more: meanwhile the server answers nobody."""
TRIM_AFTER: Final = 1_000
"""Settled jobs after which a stream is trimmed at once."""
RESULT_MS: Final = int(WEEK * 1000)
MAX_RESULT: Final = 512
"""Maximum number of bytes of a result that is published with its completion."""
MAX_DEAD_BYTES: Final = 1 << 20
"""Maximum number of bytes of values that a dead job keeps."""
WORDS: Final = 13
"""What ``lua/settle.lua`` needs of an attempt."""
FEWER: Final = 4
"""What it needs of a first one that is done without a result."""
GONE: Final = {"name": "Gone", "message": "the entry of the job was removed from its stream before it was done"}
FEW_BYTES: Final = 64
"""Of these."""
AGAIN_SECONDS: Final = 1.0
"""How long outcomes wait that the server has not taken for as long as patience says."""
_lua: Final = Path(__file__).parent / "lua"
_settle, _trim, _keep = (Script.read(_lua / f"{verb}.lua") for verb in ("settle", "trim", "keep"))
_log: Final = Log("penstock.jobs")


class Outcomes:
    """Outcomes of attempts that are settled together."""

    __slots__ = ("attempts", "due", "many", "results", "size", "words")

    def __init__(self) -> None:
        self.many = self.size = 0
        self.attempts: list[Attempt] = []
        self.words: list[Any] = []
        """What ``lua/settle.lua`` needs of each."""
        self.results: list[str] = []
        """The keys of their results."""
        self.due: float | None = None
        """In how many seconds the first one is to be tried again, if any is."""

    def takes(self, size: int) -> bool:
        """Return whether one of ``size`` bytes more can go together with these."""
        return not self.many or (self.many < MAX_SETTLED and self.size + size <= MAX_BYTES)

    def add(self, attempt: Attempt, words: Sequence[Any], size: int, result: str | None, wait: float | None) -> None:
        """Add one, with the key of its result if it has one; ``wait`` (s) if it is to be tried again."""
        self.many += 1
        self.attempts.append(attempt)
        self.size += size
        self.words += words
        if result is not None:
            self.results.append(result)
        if wait is not None:
            self.due = wait if self.due is None else min(wait, self.due)

    def drop_hand_backs(self, has_again: Callable[[Attempt], bool]) -> None:
        """Forget that attempts go back of which the consumer has another one by now: they have gone back."""
        at = 0
        for attempt in tuple(self.attempts):
            width = WORDS if self.words[at + 1] else FEWER
            if width == WORDS and self.words[at + 2] in ("back", "unread") and has_again(attempt):
                self.attempts.remove(attempt)
                del self.words[at : at + width]
                self.many -= 1
            else:
                at += width


class Settlement:
    """Settles attempts of ``consumer`` of ``group``; ``due`` hears in how many seconds one is to be tried again.

    While the server is away or full, outcomes wait; ``resumed`` is called when it takes them again.
    """

    def __init__(
        self, servers: Servers, node: "Instance", group: str, consumer: str, due: Callable[[float], None],
        resumed: Callable[[], None], has_again: Callable[[Attempt], bool], ledger: "Ledger | None",
    ) -> None:  # fmt: skip
        self._servers, self._node, self._keys = servers, node, servers.keys
        self._group, self._consumer, self._due, self._resumed = group, consumer, due, resumed
        self._has_again = has_again
        self._notes = ledger is not None
        """Whether attempts are noted in a history, with how long they took."""
        self._ledger: dict[str, Any] = ledger.settling if ledger else {"service": "", "history": 0}
        self._outcomes = dict[str, deque[Outcomes]]()
        """What is to be settled, by stream; the last ones may become more."""
        self._sent = dict[str, Outcomes]()
        """What is being settled, by stream."""
        self._refused = set[str]()
        """Streams whose outcomes the server does not take now."""
        self._ends = False
        self._calls = dict[str, Fixed]()
        """What settles attempts, by stream."""
        self._under_way = set[str]()
        """Streams whose outcomes are being settled, or will be."""
        self._soon = set[str]()
        """Those whose outcomes wait for the end of this turn of the loop."""
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tasks, self.forwarding = Tasks(_log), Forwarding(servers, node, group)
        self._buried = set[Attempt]()
        """What is settled once the values of its job were read."""
        self.settled = dict[str, int]()
        """How many were settled since the last trim, by stream."""

    def settle(
        self, attempt: Attempt, outcome: str, error: Any = None, wait: float = 0.0, values: bytes = b"",
        result: tuple[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        """Settle an attempt soon, with those that end at the same time. See ``lua/settle.lua``.

        ``result`` is the key of a value and the value; a small one is published with the completion, too.
        """
        attempt._is_settled = True
        self._buried.discard(attempt)
        if outcome == "done" and not result and attempt.number == 1 and not self._notes and is_plain(attempt.id):
            self._add(attempt, (attempt.entry, "", attempt.id, attempt.producer), FEW_BYTES, None, None)
            return
        self._add_all(attempt, outcome, error, wait, values, result)

    def _add_all(
        self, attempt: Attempt, outcome: str, error: Any = None, wait: float = 0.0, values: bytes = b"",
        result: tuple[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        err = b"" if error is None else as_json(error)
        key, value = (self._keys.payload(attempt.id, result[0]), result[1]) if result else (None, b"")
        message = message_of(attempt, err, result)
        size = len(message) + len(err) + len(values) + len(value)
        words = (
            attempt.entry, attempt.number, outcome, attempt.id, attempt.producer,
            self._keys.channel(attempt.stream, attempt.producer), message, err, f"{wait:.3f}" if wait else 0, values,
            f"{time.monotonic() - attempt._begun:.6f}", RESULT_MS if result else "", value,
        )  # fmt: skip
        self._add(attempt, words, size, key, wait if outcome in ("again", "back", "unread") else None)

    def _add(self, attempt: Attempt, words: Sequence[Any], size: int, key: str | None, wait: float | None) -> None:
        found = self._outcomes.get(attempt.stream)
        if found is None:
            found = self._outcomes[attempt.stream] = deque()
        if not found or not found[-1].takes(size):
            found.append(Outcomes())
        found[-1].add(attempt, words, size, key, wait)
        if attempt.stream not in self._under_way:
            self._under_way.add(attempt.stream)
            self._soon.add(attempt.stream)
            if len(self._soon) == 1:
                self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Settle now what would be settled at the end of this turn of the loop."""
        while self._soon:
            self._flush(self._soon.pop())

    def bury(self, attempt: Attempt, error: Any) -> None:
        """Settle an attempt as the last one, with the values of its job."""
        attempt._is_settled = True
        self._buried.add(attempt)
        self._tasks.begin(self._bury(attempt, error))

    @property
    def is_held_up(self) -> bool:
        """Return whether the server does not take outcomes now."""
        return bool(self._refused)

    def waiting(self) -> list[Attempt]:
        """Return the attempts that have ended and are not settled yet."""
        outcomes = [*self._sent.values(), *chain.from_iterable(map(tuple, [*self._outcomes.values()]))]
        return [*self._buried, *chain.from_iterable(each.attempts for each in outcomes)]

    async def _bury(self, attempt: Attempt, error: Any) -> None:
        values, keys = dict[str, str](), attempt._known_keys
        with suppress(RedisError, OSError, PenstockError, ValueError):
            payload = [self._keys.payload(attempt.id, key) for key in keys]
            found = await attempt._node.run(_keep, keys=payload, most=MAX_DEAD_BYTES) if keys else ()
            values = {key: decoded(value) for key, value in zip(keys, found, strict=True) if value is not None}
        self.settle(attempt, "dead", error, values=as_json(values))

    def _flush(self, stream: str) -> None:
        """Settle outcomes of a stream; those that come until the reply wait for it, and are settled together."""
        if not self._outcomes.get(stream):
            self._under_way.discard(stream)
            self._changed.set()
            return
        outcomes = self._sent[stream] = self._outcomes[stream].popleft()
        call = self._calls.get(stream)
        if call is None:
            call = self._calls[stream] = _settle.fixed(**self._named(stream))
        replied = partial(self._replied, stream, outcomes)
        if self._node.send(call.pack(outcomes.results, outcomes.words, outcomes.size), replied) is None:
            replied(None)

    def _named(self, stream: str) -> dict[str, Any]:
        """Return what all calls for a stream have in common."""
        here = self._servers.node(stream) is self._node
        return {
            **self._keys.of_group(stream, self._group),
            **({"done": self._keys.done(stream)} if here else {}),
            "dead": self._keys.dead(stream),
            "group": self._keys.group(self._group),
            "consumer": self._consumer,
            "capacity": CAPACITY,
            "name": stream,
            "control": self._keys.control(stream),
            "channels": self._keys.channel(stream, ""),
            "head": head_of(stream, self._group),
            "gone": as_json(GONE),
            **self._ledger,
        }

    def _replied(self, stream: str, outcomes: "Outcomes", reply: Reply | None) -> None:
        if reply is None or reply.error:
            self._tasks.begin(
                self._again(stream, outcomes, was_lost=reply is not None and isinstance(reply.error, LostReply))
            )
        else:
            self._note(stream, outcomes, reply.value())

    async def _again(self, stream: str, outcomes: "Outcomes", *, was_lost: bool) -> None:
        """Settle as soon as the server takes it: what was settled already does not change."""
        named = {**self._named(stream), "results": outcomes.results}
        self._refused.add(stream)
        ended = None
        while ended is None:
            try:
                if was_lost:
                    outcomes.drop_hand_backs(self._has_again)
                ended = await self._node.run(_settle, **named, words=outcomes.words)
            except (RedisError, OSError, PenstockError) as error:
                what = {"stream": stream, "many": outcomes.many, "reason": str(error)}
                if isinstance(error, Unavailable) and not self._ends:
                    _log.warning("jobs that have ended wait for the server", **what)
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                _log.error("jobs that were done are not settled, and will be done again", **what)
                ended = []
        self._refused.discard(stream)
        self._note(stream, outcomes, ended, was_lost=was_lost)
        self._resumed()

    def _note(self, stream: str, outcomes: "Outcomes", ended: Sequence[int], *, was_lost: bool = False) -> None:
        """Note what was settled; if a reply ``was_lost``, what was not may have been settled before."""
        del self._sent[stream]
        if outcomes.due is not None:
            self._due(outcomes.due)
        self.settled[stream] = self.settled.get(stream, 0) + len(ended)
        if self.settled[stream] >= TRIM_AFTER:
            self._due(0)
        if 0 in ended and (lost := ended.count(0) - self._settle_claimed(outcomes, ended)) and not was_lost:
            _log.warning("jobs were not settled: others have them, or they were cancelled", stream=stream, many=lost)
        self.forwarding.forward(stream)
        self._flush(stream)

    def _settle_claimed(self, outcomes: "Outcomes", ended: Sequence[int]) -> int:
        """Settle under their new numbers what this consumer has claimed itself meanwhile; return how many."""
        count, results, at = 0, iter(outcomes.results), 0
        for attempt, has_ended in zip(outcomes.attempts, ended, strict=True):
            words = outcomes.words[at : at + (WORDS if outcomes.words[at + 1] else FEWER)]
            at += len(words)
            result = next(results) if len(words) == WORDS and words[11] != "" else None
            if not has_ended and (words[1] or 1) != attempt.number:
                count += 1
                if len(words) == FEWER:
                    self._add_all(attempt, "done")
                    continue
                words[1] = attempt.number
                self._add(attempt, words, outcomes.size // outcomes.many, result, outcomes.due)
        return count

    async def trim(self, stream: str) -> None:
        """Remove from a stream what all of its groups have done, and the names of consumers of ours that have died."""
        if self.settled.pop(stream, 0):
            await self._node.run(
                _trim,
                stream=self._keys.stream(stream),
                group=self._keys.group(self._group),
                prefix=OURS,
                consumer=self._consumer,
                silent=SILENT_MS,
            )

    @property
    def is_idle(self) -> bool:
        """Return whether all outcomes are settled."""
        return not (self._under_way or self._buried)

    async def idle(self) -> None:
        """Return once all outcomes are settled, however long that takes."""
        while not self.is_idle:
            self._changed.clear()
            await self._changed.wait()

    async def finish(self) -> None:
        """Return once all outcomes are settled, or cannot be."""
        self._ends = True
        while self._under_way or (waiting := [*self._tasks, *self.forwarding.under_way()]):
            if self._under_way:
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(MAX_SILENCE):
                        await self._changed.wait()
            else:
                await asyncio.wait(waiting, timeout=MAX_SILENCE)
            if self._node.is_away:
                break

    async def close(self) -> None:
        """Settle nothing more."""
        await self._tasks.cancel()
        await self.forwarding.close()


def is_plain(id: str) -> bool:
    """Return whether ``id`` is the same in JSON. One with quotes comes from a stranger: no other name has any."""
    return id.isascii() and id.isprintable() and '"' not in id and "\\" not in id


def head_of(stream: str, group: str) -> str:
    """Return what a completion begins with; the job follows."""
    return f'{{"str":"{stream}","grp":"{group}","job":"'


def message_of(attempt: Attempt, err: bytes, result: tuple[str, bytes] | None) -> bytes:
    """Return what is published."""
    text = attempt.id if is_plain(attempt.id) else decoded(as_json(attempt.id)[1:-1])
    head = encoded(head_of(attempt.stream, attempt.group) + text + '"')
    if result and len(result[1]) <= MAX_RESULT:
        head += b',"val":{"%b":%b}' % (encoded(result[0]), as_json(decoded(result[1])))
    return head + (b',"err":' + err if err else b"") + KEPT
