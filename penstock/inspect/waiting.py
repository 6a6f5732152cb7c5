"""What waits on a server for programs and services that take it, and who does: nothing is changed.

That is what lies in lists of ``penstock.lists``, in streams of ``penstock.jobs``, in queues of ``penstock.bus`` and of
hqueue, in the datadir of an outbox, and what a pipeline has not archived. The lists of services are in ``namespace``.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.client import CaseInsensitiveDict
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from penstock.base.encoding import decoded, decoded_fields, decoded_scores, encoded, parse_number, parse_whole
from penstock.base.keys import Keys
from penstock.base.shape import parse_shape
from penstock.bus.keys import QUEUES
from penstock.core.tasks import begin
from penstock.core.wire import Reply
from penstock.inspect.jobs import StreamState, read_streams, stream_of
from penstock.inspect.queues import queue_of, read_queues
from penstock.jobs.keys import PREFIX, JobKeys

MAX_READ: Final = 1_000
"""Lists, streams and queues that are read, of each kind, by name."""
READ_AT_ONCE: Final = 250
REST: Final = 4
"""How many times as long as a SCAN took a patient search rests after it: so it uses less than a fifth of the server."""
STREAMS: Final = f"{PREFIX}:".encode()
BEGINS: Final = (STREAMS, QUEUES)
TASKS: Final = b":order"
ENDS: Final = (b":consumers", b":dead", TASKS)
"""How keys begin or end that tell of something."""
REPLIES: Final = ":replyTo:"
"""Part of the names of queues of the bus that live for one caller: they are not shown."""


@dataclass(frozen=True)
class Waiting:
    """One list, stream or queue; None for a number that is not known."""

    kind: str
    """``lists``, ``jobs``, ``bus``, ``hqueue``, ``outbox`` or ``pipeline``."""
    queue: str
    group: str = ""
    """Of jobs: which takes them."""
    waiting: int | None = None
    in_hand: int | None = None
    """Taken and not settled, also by a worker that has died."""
    oldest: float | None = None
    """Seconds that the oldest one has waited."""
    dead: int | None = None
    """Dead letters, or dead jobs of all groups."""
    workers: int | None = None
    """Consumers that are alive; of hqueue, workers that have a task."""
    unread: int = 0
    """It stands for so many more of its kind, of which nothing is known: too many to read."""

    @property
    def is_used(self) -> bool:
        """Return whether it is not empty, or has workers."""
        return bool(self.waiting or self.in_hand or self.dead or self.workers or self.unread)

    @property
    def is_left(self) -> bool:
        """Return whether something waits, or is in hand, and no worker is alive."""
        return bool(self.waiting or self.in_hand) and self.workers == 0


@dataclass
class Names:
    """What a server has, by kind; tasks are the queues of hqueue by namespace, dead the lists of dead letters."""

    lists: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    tasks: dict[str, list[str]] = field(default_factory=dict)


class Node:
    """A client of the server as ``penstock.inspect.jobs`` uses it: replies come as they are.

    Commands of the same turn of the event loop go together.
    """

    def __init__(self, redis: "Redis") -> None:
        self._raw = copy(redis)
        self._raw.response_callbacks = CaseInsensitiveDict({})
        self._queued: list[tuple[Sequence[Any], Reply]] = []
        self._sending: asyncio.Task[None] | None = None

    async def command(self, *words: Any) -> Any:
        """Return the reply to a command."""
        reply = Reply()
        self._queued.append((words, reply))
        if len(self._queued) == 1:
            self._sending = begin(self._send())
        return await reply

    ask = command

    async def _send(self) -> None:
        queued, self._queued = self._queued, []
        replies: Sequence[Any]
        try:
            replies = await _replies(self._raw, [words for words, _ in queued], raises=False)
        except (RedisError, OSError) as error:
            replies = [error] * len(queued)
        for (_, waiting), reply in zip(queued, replies, strict=True):
            if isinstance(reply, Exception):
                waiting.set_exception(reply)
            else:
                waiting.set_result(reply)


async def waiting_at(redis: "Redis", alive: Mapping[str, int]) -> dict[str, list[Waiting]]:
    """Search the server of ``redis``, and return what ``read_waiting`` does."""
    return await read_waiting(redis, await find(redis, [*alive]), alive)


async def find(redis: "Redis", namespaces: Sequence[str], *, patient: bool = False) -> Names:
    """Search all keys of the server for lists, streams and queues; a ``patient`` search rests after each SCAN.

    ``namespaces`` may have queues of hqueue, and monitors that have seen lists whose consumers are gone.
    """
    seen = await _replies(redis, [("ZRANGE", Keys(name).seen, 0, -1) for name in namespaces])
    begins = {name: encoded(Keys(name).queue("", "order")).removesuffix(TASKS) for name in namespaces}
    lists = {decoded(name) for each in seen for name in each or ()}
    dead, streams, queues = set[str](), set[str](), set[str]()
    tasks = dict[str, set[str]]()
    async for key in _interesting(redis, patient):
        if key.endswith(b":consumers"):
            lists.add(decoded(key.removesuffix(b":consumers")))
        elif key.startswith(STREAMS):
            streams |= {*filter(None, [stream_of(key, PREFIX)])}
        elif key.startswith(QUEUES):
            queues |= {*filter(None, [queue_of(key)])}
        elif key.endswith(b":dead"):
            dead.add(decoded(key))
        elif key.endswith(TASKS):
            for name in (each for each, begin in begins.items() if key.startswith(begin)):
                tasks.setdefault(name, set()).add(decoded(key.removesuffix(TASKS).removeprefix(begins[name])))
    shown = (name for name in queues if REPLIES not in name)
    by_name = {name: sorted(found) for name, found in tasks.items()}
    return Names(sorted(lists), sorted(dead), sorted(streams), sorted(shown), by_name)


async def _interesting(redis: "Redis", patient: bool) -> AsyncIterator[bytes]:
    """Yield keys that may tell of something. No pattern is sent: all of them would cost the server far more."""
    cursor = 0
    while True:
        begun = time.monotonic()
        cursor, found = await redis.scan(cursor, count=1_000)
        keys: list[Any] = found
        for key in keys:
            if key.endswith(ENDS) or key.startswith(BEGINS):
                yield key
        if not cursor:
            return
        if patient:
            await asyncio.sleep(REST * (time.monotonic() - begun))


async def read_waiting(
    redis: "Redis",
    names: Names,
    alive: Mapping[str, int],
    elsewhere: str = "",
    most: int = MAX_READ,
) -> dict[str, list[Waiting]]:
    """Return by namespace what waits for its service, of which as many instances are ``alive``, and below its name.

    Lists, streams and queues below none of these namespaces are those of ``elsewhere``. Of each kind ``most`` are read.
    """
    node = Node(redis)
    own = await _own(node, redis, alive, names.tasks)
    has = {(row.kind, row.queue, row.group) for rows in own.values() for row in rows}
    has |= {("lists", Keys(name).dead, "") for name in alive}
    for row in await _found(node, redis, names, most):
        if (row.kind, row.queue, row.group) not in has:
            below = [name for name in alive if row.queue.startswith(f"{name}:")]
            own.setdefault(max(below, key=len, default=elsewhere), []).append(row)
    return own


async def _found(node: Node, redis: "Redis", names: Names, most: int) -> list[Waiting]:
    found = await read_lists(redis, names.lists[:most])
    lengths = await _replies(redis, [("LLEN", name) for name in names.dead[:most]])
    found += [Waiting("lists", name, dead=many) for name, many in zip(names.dead, lengths, strict=False) if many]
    with suppress(NoPermissionError):
        found += await _jobs(node, PREFIX, names.streams[:most])
    with suppress(NoPermissionError):
        found += [
            Waiting("bus", each.name, "", each.waiting, each.unacknowledged, workers=each.consumers)
            async for each in read_queues(redis, names.queues[:most])
        ]
    for kind, known in {"lists": names.lists, "jobs": names.streams, "bus": names.queues}.items():
        if left := len(known[most:]):
            found.append(Waiting(kind, f"{left:,} more, not read", unread=left))
    return found


async def read_lists(redis: "Redis", names: Sequence[str]) -> list[Waiting]:
    """Return what waits in lists of ``penstock.lists``, without those whose leases cannot be read: they are others'."""
    (time_, *replies) = await _replies(
        redis, [("TIME",), *(call for name in names for call in (("LLEN", name), _leases(name)))]
    )
    now = (time_[0] + time_[1] / 1e6) * 1e6
    read = [
        (name, waiting, decoded_scores(each))
        for name, waiting, each in zip(names, replies[::2], replies[1::2], strict=True)
        if each is not None
    ]
    consumers = [(name, id) for name, _, ends in read for id in ends]
    held = iter(await _replies(redis, [("LLEN", f"{name}:consumer:{id}") for name, id in consumers]))
    states = iter(await _replies(redis, [("HGET", f"{name}:consumers:steps", id) for name, id in consumers]))
    found = []
    for name, waiting, ends in read:
        in_hand = sum(next(held) or 0 for _ in ends)
        are_gone = [decoded(next(states) or b"").startswith("gone:") for _ in ends]  # others remember them meanwhile
        workers = sum(end > now and not is_gone for end, is_gone in zip(ends.values(), are_gone, strict=True))
        found.append(Waiting("lists", name, "", waiting, in_hand, workers=workers))
    return found


def _leases(name: str) -> tuple[Any, ...]:
    return ("ZRANGE", f"{name}:consumers", 0, -1, "WITHSCORES")


async def _jobs(node: Any, prefix: str, streams: Iterable[str], group: str | None = None) -> list[Waiting]:
    """Return what waits in each group of ``streams``, or in one; for a stream without groups one of no name."""
    states = [each async for each in read_streams(node, JobKeys(prefix), streams) if each.exists]
    return [each for state in states for each in _groups(state) if group is None or each.group in (group, "")]


def _groups(state: StreamState) -> Iterable[Waiting]:
    if not state.groups:
        yield Waiting("jobs", state.name, "", state.length, 0, None, state.dead, state.workers)
    for each in state.groups:
        in_hand = each.running + each.retrying
        yield Waiting("jobs", state.name, each.name, each.waiting, in_hand, each.oldest, state.dead, each.alive)


async def _own(
    node: Node, redis: "Redis", alive: Mapping[str, int], tasks: Mapping[str, list[str]]
) -> dict[str, list[Waiting]]:
    names = [*alive]
    calls = [call for keys in map(Keys, names) for call in _of_namespace(keys)]
    (seconds, micros), *replies = await _replies(redis, [("TIME",), *calls])
    now = seconds + micros / 1e6
    each, found = len(calls) // len(names) if names else 1, dict[str, list[Waiting]]()
    for place, name in enumerate(names):
        policy, shape, outbox, pipeline, dead_role, dead = replies[place * each : (place + 1) * each]
        keys, rows = Keys(name), list[Waiting]()
        keeper, jobs = policy or (None, None)
        if not (keeper or dead_role) and dead is not None:
            rows.append(Waiting("lists", keys.dead, dead=dead))
        if jobs and (said := _parsed(jobs)):
            with suppress(NoPermissionError):
                rows += await _jobs(node, said["prefix"], said["streams"], said["group"])
        if keeper == b"hqueue":
            rows += await _tasks(redis, keys, tasks.get(name, [])[:MAX_READ], now)
        if counted := _numbers(outbox):
            rows += _outbox(counted, alive[name])
        service = parse_shape(shape or b"", "")
        if service and service[0] == "pipeline":
            streams = _streams([end.key for end in service[1].ends], names)
            at = parse_number(_field(pipeline, "at"))
            rows += await _lag(redis, streams, at, now, alive[name])
        found[name] = rows
    return found


def _of_namespace(keys: Keys) -> list[tuple[Any, ...]]:
    return [
        ("HMGET", keys.policy, "keeper", "jobs"),
        ("GET", keys.shape),
        ("HGETALL", keys.metric("outbox")),
        ("HGETALL", keys.metric("pipeline")),
        ("HGET", keys.lists, keys.dead),
        ("LLEN", keys.dead),
    ]


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Return what a worker says of its jobs; None if it cannot be read."""
    try:
        said = json.loads(text)
        return {"prefix": str(said["prefix"]), "group": str(said["group"]), "streams": [*map(str, said["streams"])]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _field(fields: Any, name: str) -> str | None:
    return decoded_fields(fields or {}).get(name)


def _numbers(fields: Any) -> dict[str, int]:
    return {name: parse_whole(value) or 0 for name, value in decoded_fields(fields or {}).items()}


def _outbox(counted: Mapping[str, int], alive: int) -> list[Waiting]:
    """Return what the datadir of an outbox has for others, and of others."""
    outgoing, incoming, dead = (counted.get(name, 0) for name in ("outgoing", "incoming", "dead"))
    return [
        Waiting("outbox", "outgoing", waiting=outgoing, dead=dead, workers=alive),
        Waiting("outbox", "incoming", waiting=incoming, workers=alive),
    ]


async def _tasks(redis: "Redis", keys: Keys, queues: Sequence[str], now: float) -> list[Waiting]:
    parts = (("ZCARD", "ready"), ("ZCARD", "held"), ("HLEN", "workers"))
    calls = [(verb, keys.queue(queue, part)) for queue in queues for verb, part in parts]
    replies = await _replies(redis, calls)
    firsts = await _replies(redis, [("ZRANGE", keys.queue(queue, "ready"), 0, 0) for queue in queues])
    ids = [decoded(first[0]) if first else "" for first in firsts]
    records = await _replies(redis, [("HGET", keys.queue(q, "tasks"), id) for q, id in zip(queues, ids, strict=True)])
    found = []
    for place, queue in enumerate(queues):
        ready, held, workers = replies[3 * place : 3 * place + 3]
        found.append(Waiting("hqueue", queue, "", ready, held, _age(records[place], now), workers=workers))
    return found


def _age(record: Any, now: float) -> float | None:
    """Return how long ago the task of a JSON ``record`` was added."""
    try:
        return max(0.0, now - float(json.loads(record)["added"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _streams(ends: Iterable[str], namespaces: Sequence[str]) -> list[str]:
    """Return the streams of events that ``ends``, names or patterns, name of ``namespaces``."""
    known = [Keys(name).events for name in namespaces]
    return sorted({name for end in ends for name in (end, *known) if fnmatchcase(name, end) and "*" not in name})


async def _lag(redis: "Redis", streams: Sequence[str], at: float | None, now: float, alive: int) -> list[Waiting]:
    """Return the events that are newer than the last micro-batch, which was written ``at``."""
    begin = "-" if at is None else f"{int(at + 1) * 1000}"
    calls = [
        call
        for name in streams
        for call in (
            ("XRANGE", name, begin, "+", "COUNT", 1),
            ("HGET", Keys(name.removesuffix(":events")).metric("events"), "count"),
        )
    ]
    replies = await _replies(redis, calls)
    found = []
    for name, entries, written in zip(streams, replies[::2], replies[1::2], strict=True):
        if entries is None:
            continue
        waiting, oldest = 0, None
        if entries:
            id, fields = entries[0]
            first = parse_whole(decoded_fields(fields).get("first"))
            waiting = max(1, (parse_whole(written) or 0) - first + 1) if first else 1
            oldest = max(0.0, now - int(id.partition(b"-")[0]) / 1000)
        found.append(Waiting("pipeline", name, waiting=waiting, oldest=oldest, workers=alive))
    return found


async def _replies(redis: "Redis", calls: Sequence[Sequence[Any]], *, raises: bool = True) -> list[Any]:
    """Return the replies; None for a key of another type, or that this user may not read. Raise other errors.

    Unless it ``raises``, errors are among the replies.
    """
    replies, rest = list[Any](), iter(calls)
    while some := list(islice(rest, READ_AT_ONCE)):
        async with redis.pipeline(transaction=False) as pipeline:
            for verb, *words in some:
                _queue(pipeline, verb, words)
            replies += await pipeline.execute(raise_on_error=False)
    if not raises:
        return replies
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
            raise reply
    return [None if isinstance(reply, Exception) else reply for reply in replies]


def _queue(pipeline: "Pipeline", verb: str, words: Sequence[Any]) -> None:
    pipeline.execute_command(verb, *(encoded(word) if isinstance(word, str) else word for word in words))
