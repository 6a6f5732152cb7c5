"""Settles attempts of a group on one server: many at a time, each once."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from penstock.bus.wire import Reply
from penstock.connection import MAX_SILENCE
from penstock.encoding import decoded, encoded
from penstock.errors import PenstockError
from penstock.jobs.attempt import Attempt
from penstock.jobs.job import WEEK
from penstock.jobs.keys import CAPACITY, KEPT, OURS
from penstock.log import Log
from penstock.payload import as_json
from penstock.script import Fixed, Script

if TYPE_CHECKING:
    from penstock.bus.instance import Instance
    from penstock.jobs.ledger import Ledger
    from penstock.jobs.server import Jobs

CANCELLED: Final = "-"
"""What stands for the group of completions of jobs that were cancelled, where another server publishes them."""
MAX_SETTLED: Final = 400
MAX_BYTES: Final = 1 << 24
"""Maximum number of bytes settled at once, unless one attempt has more: meanwhile the server answers nobody."""
TRIM_AFTER: Final = 1_000
"""Settled jobs after which a stream is trimmed at once."""
SILENT_MS: Final = 3_600_000
"""Milliseconds after which a consumer that has nothing in hand is dead."""
RESULT_MS: Final = int(WEEK * 1000)
MAX_RESULT: Final = 512
"""Maximum number of bytes of a result that is published with its completion."""
MAX_DEAD_BYTES: Final = 1 << 20
"""Maximum number of bytes of values that a dead job keeps."""
_lua: Final = Path(__file__).parent / "lua"
_settle, _trim, _complete, _keep = (
    Script.read(_lua / f"{verb}.lua") for verb in ("settle", "trim", "complete", "keep")
)
_log: Final = Log("penstock.jobs")


class Outcomes:
    """Outcomes of attempts that are settled together."""

    __slots__ = ("due", "many", "results", "size", "words")

    def __init__(self) -> None:
        self.many = self.size = 0
        self.words: list[Any] = []
        """What ``lua/settle.lua`` needs of each."""
        self.results: list[str] = []
        """The keys of their results."""
        self.due: float | None = None
        """In how many seconds the first one is to be tried again, if any is."""

    def takes(self, size: int) -> bool:
        """Return whether one of ``size`` bytes more can go together with these."""
        return not self.many or (self.many < MAX_SETTLED and self.size + size <= MAX_BYTES)

    def add(self, words: Sequence[Any], size: int, result: str | None, wait: float | None) -> None:
        """Add one, with the key of its result if it has one; ``wait`` (s) if it is to be tried again."""
        self.many += 1
        self.size += size
        self.words += words
        if result is not None:
            self.results.append(result)
        if wait is not None:
            self.due = wait if self.due is None else min(wait, self.due)


class Settler:
    """Settles attempts of ``consumer`` of ``group``; ``due`` hears in how many seconds one is to be tried again."""

    def __init__(
        self, jobs: "Jobs", node: "Instance", group: str, consumer: str, due: Callable[[float], None],
        ledger: "Ledger | None",
    ) -> None:  # fmt: skip
        self._jobs, self._node, self._keys = jobs, node, jobs.keys
        self._group, self._consumer, self._due = group, consumer, due
        self._ledger: dict[str, Any] = ledger.settling if ledger else {"service": "", "history": 0}
        self._outcomes = dict[str, deque[Outcomes]]()
        """What is to be settled, by stream; the last ones may become more."""
        self._calls = dict[str, Fixed]()
        """What settles attempts, by stream."""
        self._under_way = set[str]()
        """Streams whose outcomes are being settled, or will be."""
        self._soon = set[str]()
        """Those whose outcomes wait for the end of this turn of the loop."""
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._burying = set[asyncio.Task[None]]()
        self._forwarding = dict[str, asyncio.Task[None]]()
        self._to_forward = set[str]()
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
        err = b"" if error is None else as_json(error)
        key, value = (self._keys.payload(attempt.id, result[0]), result[1]) if result else (None, b"")
        message = message_of(attempt, err, result)
        found = self._outcomes.get(attempt.stream)
        if found is None:
            found = self._outcomes[attempt.stream] = deque()
        size = len(message) + len(err) + len(values) + len(value)
        if not found or not found[-1].takes(size):
            found.append(Outcomes())
        words = (
            attempt.entry, attempt.number, outcome, attempt.id, attempt.producer,
            self._keys.channel(attempt.stream, attempt.producer), message, err, f"{wait:.3f}" if wait else 0, values,
            f"{time.monotonic() - attempt._begun:.6f}", RESULT_MS if result else "", value,
        )  # fmt: skip
        found[-1].add(words, size, key, wait if outcome in ("again", "back") else None)
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
        task = asyncio.create_task(self._bury(attempt, error))
        self._burying.add(task)
        task.add_done_callback(self._burying.discard)

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
        outcomes = self._outcomes[stream].popleft()
        call = self._calls.get(stream)
        if call is None:
            call = self._calls[stream] = _settle.fixed(**self._named(stream))
        replied = partial(self._replied, stream, outcomes)
        if self._node.send(call.pack(outcomes.results, outcomes.words, outcomes.size), replied) is None:
            replied(None)

    def _named(self, stream: str) -> dict[str, Any]:
        """Return what all calls for a stream have in common."""
        here = self._jobs.node(stream) is self._node
        return {
            **self._keys.of_group(stream, self._group),
            **({"done": self._keys.done(stream)} if here else {}),
            "dead": self._keys.dead(stream),
            "group": self._keys.group(self._group),
            "consumer": self._consumer,
            "capacity": CAPACITY,
            "name": stream,
            "control": self._keys.control(stream),
            **self._ledger,
        }

    def _replied(self, stream: str, outcomes: "Outcomes", reply: Reply | None) -> None:
        if reply is None or reply.error:
            task = self._loop.create_task(self._again(stream, outcomes))
            self._burying.add(task)
            task.add_done_callback(self._burying.discard)
        else:
            self._note(stream, reply.value(), outcomes.due)

    async def _again(self, stream: str, outcomes: "Outcomes") -> None:
        """Settle again: what was settled already does not change."""
        named = {**self._named(stream), "results": outcomes.results, "words": outcomes.words}
        try:
            ended = await self._node.run(_settle, **named)
        except (RedisError, OSError, PenstockError) as error:
            what = {"stream": stream, "many": outcomes.many, "reason": str(error)}
            _log.error("jobs that were done are not settled, and will be done again", **what)
            ended = []
        self._note(stream, ended, outcomes.due, again=True)

    def _note(self, stream: str, ended: Sequence[int], due: float | None, *, again: bool = False) -> None:
        """Note what was settled; the first of it is to be tried again in ``due`` seconds, if any is."""
        if due is not None:
            self._due(due)
        self.settled[stream] = self.settled.get(stream, 0) + len(ended)
        if self.settled[stream] >= TRIM_AFTER:
            self._due(0)
        if (lost := ended.count(0)) and not again:
            _log.warning("jobs were not settled: others have them, or they were cancelled", stream=stream, many=lost)
        self.forward(stream)
        self._flush(stream)

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

    def forward(self, stream: str) -> None:
        """Publish completions on the server of a stream, if that is another one, while others are settled."""
        if self._jobs.node(stream) is not self._node:
            self._to_forward.add(stream)
            if stream not in self._forwarding:
                self._forwarding[stream] = asyncio.create_task(self._forward(stream))

    async def _forward(self, stream: str) -> None:
        try:
            while stream in self._to_forward:
                self._to_forward.discard(stream)
                for group in (self._group, CANCELLED):
                    await forward_completions(self._jobs, self._node, stream, group)
        except (RedisError, OSError, PenstockError) as error:
            _log.warning("completions wait for the server of their stream", stream=stream, reason=str(error))
        finally:
            self._forwarding.pop(stream, None)

    async def finish(self) -> None:
        """Return once all outcomes are settled, or cannot be."""
        while self._under_way or (waiting := [*self._burying, *self._forwarding_now()]):
            if self._under_way:
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(MAX_SILENCE):
                        await self._changed.wait()
            else:
                await asyncio.wait(waiting, timeout=MAX_SILENCE)
            if self._node.is_away:
                break

    def _forwarding_now(self) -> list[asyncio.Task[None]]:
        return [task for stream, task in self._forwarding.items() if not self._jobs.node(stream).is_away]

    async def close(self) -> None:
        """Settle nothing more."""
        tasks = [*self._burying, *self._forwarding.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def forward_completions(jobs: "Jobs", node: "Instance", stream: str, group: str) -> None:
    """Publish completions that ``node`` has for the server of a stream, if that is another one."""
    target = jobs.node(stream)
    if target is node:
        return
    key = encoded(jobs.keys.of_group(stream, group)["forward"])
    while found := await node.command("XRANGE", key, "-", "+", "COUNT", 100):
        words = list[bytes]()
        for entry, fields in found:
            named = dict(zip(fields[::2], fields[1::2], strict=True))
            words += [entry, named[b"job"], named[b"channel"], named[b"msg"]]
        await target.run(
            _complete,
            done=jobs.keys.done(stream),
            forwarded=jobs.keys.forwarded(stream),
            capacity=CAPACITY,
            source=f"{jobs.nodes.index(node)} {group}",
            words=words,
        )
        await node.command("XDEL", key, *[entry for entry, _ in found])


def message_of(attempt: Attempt, err: bytes, result: tuple[str, bytes] | None) -> bytes:
    """Return what is published; an id with quotes comes from a stranger, and is the only name that is escaped."""
    id = attempt.id
    plain = id.isascii() and id.isprintable() and '"' not in id and "\\" not in id
    text = id if plain else decoded(as_json(id)[1:-1])
    head = encoded(f'{{"str":"{attempt.stream}","grp":"{attempt.group}","job":"{text}"')
    if result and len(result[1]) <= MAX_RESULT:
        head += b',"val":{"%b":%b}' % (encoded(result[0]), as_json(decoded(result[1])))
    return head + (b',"err":' + err if err else b"") + KEPT
