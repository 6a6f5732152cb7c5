"""Streams of jobs on one server, as an operator sees them: nothing is changed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from penstock.base.encoding import decoded, encoded
from penstock.base.errors import WrongType
from penstock.base.keys import glob_escaped
from penstock.jobs.cancelling import PAGE, delayed, named, pages
from penstock.jobs.completion import Completion, parsed_entries

if TYPE_CHECKING:
    from penstock.core.instance import Instance
    from penstock.jobs.cancelling import Delayed
    from penstock.jobs.keys import JobKeys

SCANNED: Final = 1_000
"""Keys that one SCAN looks at."""
READ_AT_ONCE: Final = 50
"""Streams that are read together."""
MAX_COUNTED: Final = 10_000
"""Maximum number of jobs that are counted one by one, where the server does not know how many wait."""
ALIVE_SECONDS: Final = 60.0
"""A consumer that the server has seen since is alive."""
KINDS: Final = ("str", "later", "dead", "repeats")
"""Keys that tell of a stream."""
Entry = tuple[str, list[str]]
"""An entry, and its fields."""


@dataclass(frozen=True)
class GroupState:
    """What a server has of one group of a stream."""

    name: str
    waiting: int
    """Jobs that no consumer has read yet."""
    counted: bool
    """Whether ``waiting`` is all of them; else there are more."""
    oldest: float | None
    """How long (s) the first of them waits."""
    running: int
    """Jobs that consumers have, or that dead ones have left."""
    retrying: int
    """Jobs that wait for another attempt, or for their limit."""
    consumers: int
    alive: int
    """Consumers that the server has seen within a minute."""


@dataclass(frozen=True)
class StreamState:
    """What a server has of one stream."""

    name: str
    length: int
    delayed: int
    repeated: int
    dead: int
    paused: bool
    workers: int
    """Processes of ours that listen for its jobs."""
    groups: tuple[GroupState, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        """Return whether the server has anything of it."""
        counts = self.length + self.delayed + self.repeated + self.dead + self.workers
        return bool(counts or self.groups or self.problems or self.paused)


@dataclass(frozen=True)
class Stage:
    """Where a job is in one group."""

    group: str
    state: str
    """``waiting``, ``running``, ``retrying``, or ``ended``: done, dead or cancelled."""
    consumer: str | None = None
    attempts: int = 0
    idle: float | None = None
    """Seconds since its consumer got it, or renewed it."""
    due: float | None = None
    """When it is tried again (s since the epoch; infinite if it waits for another job)."""


@dataclass(frozen=True)
class EntryState:
    """A job in a stream."""

    entry: str
    fields: list[str]
    stages: list[Stage] = field(default_factory=list)

    @property
    def job(self) -> str:
        """Return its id; empty without one."""
        return named(self.fields).get("job", "")

    @property
    def added(self) -> float:
        """Return when it was sent (s since the epoch)."""
        return int(self.entry.partition("-")[0]) / 1000


async def stream_names(node: "Instance", keys: "JobKeys", advance: Callable[[int], None] = lambda _: None) -> list[str]:
    """Return the names of all streams, sorted; call ``advance`` with the keys looked at."""
    found, cursor = set[str](), b"0"
    pattern = f"{glob_escaped(keys.prefix)}:[^j]*"  # without the values, job:..., of which there are most
    while True:
        cursor, some = await node.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED)
        found |= {name for key in some if (name := stream_of(key, keys.prefix)) is not None}
        advance(SCANNED)
        if cursor == b"0":
            return sorted(found)


def stream_of(key: bytes, prefix: str) -> str | None:
    """Return the name of the stream that has ``key``; None if none has."""
    kind, _, name = decoded(key).removeprefix(f"{prefix}:").partition(":")
    return name if kind in KINDS else None


async def read_streams(node: "Instance", keys: "JobKeys", names: Iterable[str]) -> AsyncIterator[StreamState]:
    """Yield the state of each stream."""
    rest = iter(names)
    while some := list(islice(rest, READ_AT_ONCE)):
        for state in await asyncio.gather(*(_stream(node, keys, name) for name in some)):
            yield state


async def _stream(node: "Instance", keys: "JobKeys", name: str) -> StreamState:
    asked = _Asked(node)
    stream = keys.stream(name)
    length, later, repeated, dead, paused, heard, time = await asyncio.gather(
        asked(0, "XLEN", stream),
        asked(0, "ZCARD", keys.later(name)),
        asked(0, "ZCARD", keys.repeats(name)),
        asked(0, "XLEN", keys.dead(name)),
        asked(0, "EXISTS", keys.paused(name)),
        node.command("PUBSUB", b"NUMSUB", encoded(keys.control(name))),
        node.ask("TIME"),
    )
    groups = await _groups(node, stream)
    now = int(time[0]) + int(time[1]) / 1e6
    states = await asyncio.gather(*(_group(node, asked, keys, name, each, now) for each in groups))
    return StreamState(
        name, length, later, repeated, dead, bool(paused), int(heard[1]), tuple(states), tuple(asked.problems)
    )


class _Asked:
    """Calls commands; a key that is missing or of another type gives a default, and the latter a problem."""

    def __init__(self, node: "Instance") -> None:
        self._node = node
        self.problems = list[str]()

    async def __call__(
        self, otherwise: Any, command: str, key: str, *words: bytes | str | int, before: str = ""
    ) -> Any:
        name = encoded(key)
        try:
            if before:
                return await self._node.command(command, encoded(before), name, *words)
            return await self._node.command(command, name, *words)
        except (WrongType, ResponseError) as error:
            if isinstance(error, WrongType) or str(error).startswith("WRONGTYPE"):
                self.problems.append(f"{key} is of another type")
            else:
                raise
            return otherwise


def _by_name(flat: Sequence[Any] | dict[bytes, Any]) -> dict[str, Any]:
    """Return fields by name: in RESP3 they come as such."""
    if isinstance(flat, dict):
        return {decoded(name): value for name, value in flat.items()}
    return {decoded(name): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


async def _group(
    node: "Instance", asked: _Asked, keys: "JobKeys", stream: str, found: dict[str, Any], now: float
) -> GroupState:
    group = decoded(found["name"])
    short, key = group.removeprefix(keys.group("")), keys.stream(stream)
    last = decoded(found["last-delivered-id"])
    first, consumers, retrying = await asyncio.gather(
        asked([], "XRANGE", key, f"({last}", "+", "COUNT", 1),
        asked([], "XINFO", key, group, before="CONSUMERS"),
        asked(0, "ZCARD", keys.of_group(stream, short)["wait"]),
    )
    waiting, counted = found.get("lag"), True
    if waiting is None:  # before Redis 7, or some were removed
        waiting, counted = await _count(node, key, last) if first else (0, True)
    idle = [int(_by_name(each)["idle"]) / 1000 for each in consumers]
    return GroupState(
        short,
        waiting,
        counted,
        max(0.0, now - int(decoded(first[0][0]).partition("-")[0]) / 1000) if first else None,
        max(0, int(found["pending"]) - retrying),
        min(int(found["pending"]), retrying),
        len(idle),
        sum(each < ALIVE_SECONDS for each in idle),
    )


async def _count(node: "Instance", key: str, after: str) -> tuple[int, bool]:
    """Return how many entries are behind ``after``, and whether these are all."""
    count = 0
    async for page in pages(node, key, after):
        count += len(page)
        if count >= MAX_COUNTED:
            return count, False
    return count, True


# Jobs of a stream


async def entries_at(
    node: "Instance", keys: "JobKeys", stream: str, entries: Sequence[Entry], group: str | None = None
) -> list[EntryState]:
    """Return where jobs, which are in order, are in each group, or in one."""
    states = [EntryState(entry, fields) for entry, fields in entries]
    if entries:
        for name, last in await groups_of(node, keys, stream):
            if group in (None, name):
                await _add_stages(node, keys, stream, name, last, states)
    return states


async def groups_of(node: "Instance", keys: "JobKeys", stream: str) -> list[tuple[str, str]]:
    """Return the groups of a stream, and the last entry that each has read."""
    found, prefix = await _groups(node, keys.stream(stream)), keys.group("")
    return [(decoded(each["name"]).removeprefix(prefix), decoded(each["last-delivered-id"])) for each in found]


async def _groups(node: "Instance", key: str) -> list[dict[str, Any]]:
    """Return what the server says of the groups of a stream; nothing if it has none, or is of another type."""
    if await node.command("TYPE", encoded(key)) != b"stream":
        return []
    return [_by_name(each) for each in await node.command("XINFO", b"GROUPS", encoded(key))]


async def _add_stages(
    node: "Instance", keys: "JobKeys", stream: str, group: str, last: str, states: Sequence[EntryState]
) -> None:
    pending = dict[str, Stage]()
    async for stage in _pending(node, keys, stream, group, states[0].entry, states[-1].entry):
        pending |= dict(stage)
    for each in states:
        is_after = place_of(each.entry) > place_of(last)
        otherwise = Stage(group, "waiting" if is_after else "ended")
        each.stages.append(pending.get(each.entry, otherwise))


def place_of(entry: str) -> tuple[int, int]:
    """Return what entries are ordered by."""
    ms, _, sequence = entry.partition("-")
    return int(ms), int(sequence or 0)


async def _pending(
    node: "Instance", keys: "JobKeys", stream: str, group: str, first: str, last: str = "+"
) -> AsyncIterator[list[tuple[str, Stage]]]:
    """Yield entries that a group has read and not ended, some at once."""
    key, name = encoded(keys.stream(stream)), encoded(keys.group(group))
    wait = encoded(keys.of_group(stream, group)["wait"])
    while found := await node.command("XPENDING", key, name, first, last, PAGE):
        due = await node.command("ZMSCORE", wait, *(entry for entry, *_ in found))
        yield [
            (
                decoded(entry),
                Stage(
                    group,
                    "running" if at is None else "retrying",
                    decoded(consumer),
                    int(attempts),
                    int(idle) / 1000,
                    None if at is None else float(at),
                ),
            )
            for (entry, consumer, idle, attempts), at in zip(found, due, strict=True)
        ]
        first = f"({decoded(found[-1][0])}"
        if len(found) < PAGE:
            return


async def jobs_in(
    node: "Instance", keys: "JobKeys", stream: str, group: str, state: str, after: str, most: int
) -> list[EntryState]:
    """Return up to ``most`` jobs that are ``waiting``, ``running`` or ``retrying`` in a group, behind ``after``."""
    if state == "waiting":
        last = next((last for name, last in await groups_of(node, keys, stream) if name == group), "0-0")
        begin = max(last, after or "0-0", key=place_of)
        found: list[Entry] = await anext(pages(node, keys.stream(stream), begin, most), [])
        return [EntryState(entry, fields, [Stage(group, state)]) for entry, fields in found]
    chosen = list[tuple[str, Stage]]()
    async for some in _pending(node, keys, stream, group, f"({after}" if after else "-"):
        chosen += [(entry, stage) for entry, stage in some if stage.state == state]
        if len(chosen) >= most:
            break
    fields = await asyncio.gather(*(entry_at(node, keys, stream, entry) for entry, _ in chosen[:most]))
    return [EntryState(entry, fields or [], [stage]) for (entry, stage), fields in zip(chosen, fields, strict=False)]


async def entry_at(node: "Instance", keys: "JobKeys", stream: str, entry: str) -> list[str] | None:
    """Return the fields of an entry; None if it is not in its stream."""
    found = await node.command("XRANGE", encoded(keys.stream(stream)), entry, entry)
    return [*map(decoded, found[0][1])] if found else None


async def delayed_in(node: "Instance", keys: "JobKeys", stream: str, after: float | None, most: int) -> "list[Delayed]":
    """Return up to ``most`` jobs that wait for their time, behind the time ``after`` (s since the epoch)."""
    begin = "-inf" if after is None else f"({after!r}"
    words = (begin, "+inf", "WITHSCORES", "LIMIT", 0, most)
    found = await node.command("ZRANGEBYSCORE", encoded(keys.later(stream)), *words)
    return [delayed(member, float(due)) for member, due in zip(found[::2], found[1::2], strict=True)]


async def completions_of(node: "Instance", keys: "JobKeys", stream: str, job: str) -> list[Completion]:
    """Return the completions of a job that are kept, the oldest first."""
    found, begin = list[Completion](), "-"
    while page := await node.command("XRANGE", encoded(keys.done(stream)), begin, "+", "COUNT", PAGE):
        found += [each for each in parsed_entries(page) if each.job == job]
        begin = f"({decoded(page[-1][0])}"
    return found


async def errors_of(node: "Instance", keys: "JobKeys", stream: str, group: str, entry: str) -> bytes | None:
    """Return the errors of the attempts at a job that has not ended, as JSON."""
    found: bytes | None = await node.command("HGET", encoded(keys.of_group(stream, group)["tries"]), entry)
    return found


async def value_keys(
    node: "Instance", keys: "JobKeys", job: str, advance: Callable[[int], None] = lambda _: None
) -> list[str]:
    """Return the keys of all values of a job: all keys of its server are looked at."""
    found, cursor, begin = set[str](), b"0", keys.payload(job, "")
    while True:
        cursor, some = await node.command("SCAN", cursor, "MATCH", f"{glob_escaped(begin)}*", "COUNT", SCANNED)
        found |= {decoded(key).removeprefix(begin) for key in some}
        advance(SCANNED)
        if cursor == b"0":
            return sorted(found)
