"""The queues of a bus on one server, as an operator sees them: nothing is changed, no queue is kept alive."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from penstock.base.encoding import decoded, decoded_fields, parse_whole
from penstock.bus.keys import QUEUES, QueueKeys, available_channel, lease_key

if TYPE_CHECKING:
    from redis.asyncio import Redis

KINDS: Final = frozenset(each.encode() for each in (*QueueKeys._fields, "consumer"))
"""How the keys of a queue end."""
OWN_FIELDS: Final = ("ttl", "source", "discover", "maxsize", "moving", "last_consumer", "restored")
"""Fields of the metadata that are no user's."""
SCANNED: Final = 1_000
"""Keys that one SCAN looks at."""
HEADLESS: Final = "no metadata: clients do not find it"
READ_AT_ONCE: Final = 250
"""Queues that one pipeline reads."""


@dataclass(frozen=True)
class QueueState:
    """What a server has of one queue; a number is None if its key is of a wrong type."""

    name: str
    waiting: int | None
    unacknowledged: int | None
    ttl: int | None
    """Seconds that the queue lives without an attached client; None without metadata."""
    left: float | None
    """Seconds until it expires unless somebody keeps it alive; None if it does not expire."""
    maxsize: int
    last_id: int
    """The id that was given last; 0 if none was."""
    consumers: int
    """Connections that wait for its messages."""
    lease: str | None
    """Who consumes alone."""
    lease_left: float | None
    source: str | None
    discoverable: bool
    moving: str | None
    """The server that it is being moved to."""
    fields: dict[str, str] = field(default_factory=dict)
    """What users wrote into its metadata."""
    problems: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        """Return whether clients find the queue: without metadata, its messages belong to nobody."""
        return self.ttl is not None

    @property
    def has_keys(self) -> bool:
        """Return whether the server has anything of the queue."""
        return bool(self.exists or self.waiting or self.unacknowledged or self.last_id or self.problems != (HEADLESS,))


async def queue_names(redis: "Redis", pattern: str = "*", advance: Callable[[int], None] = lambda _: None) -> list[str]:
    """Return the names of all queues that match ``pattern``, sorted; call ``advance`` with the keys looked at."""
    found, cursor = set[str](), 0
    while True:
        cursor, keys = await redis.scan(cursor, match=QUEUES + b"*", count=SCANNED)
        found_here: list[Any] = keys
        names = (name for key in found_here if (name := queue_of(key)) is not None)
        found |= {name for name in names if fnmatchcase(name, pattern)}
        advance(SCANNED)
        if not cursor:
            return sorted(found)


def queue_of(key: bytes) -> str | None:
    """Return the name of the queue that has ``key``; None if none has."""
    name, _, kind = key.removeprefix(QUEUES).rpartition(b":")
    return decoded(name) if kind in KINDS and key.startswith(QUEUES) else None


async def read_queues(redis: "Redis", names: Iterable[str]) -> AsyncIterator[QueueState]:
    """Yield the state of each queue, some at one instant."""
    for some in _batched(names):
        async with redis.pipeline(transaction=False) as pipeline:
            for name in some:
                _ask(pipeline, name)
            pipeline.execute_command("PUBSUB NUMSUB", *map(available_channel, some))
            *replies, counts = await pipeline.execute(raise_on_error=False)
        _check([*replies, counts])
        each = len(replies) // len(some)
        subscribers = [number for _, number in counts] if isinstance(counts[0], tuple) else counts[1::2]
        for place, name in enumerate(some):
            yield _state(name, replies[place * each : (place + 1) * each], int(subscribers[place]))


async def ends(redis: "Redis", name: str) -> list[tuple[int, int] | None]:
    """Return the ids of the first and the last message that waits, and of those that are not acknowledged."""
    found = list[tuple[int, int] | None]()
    keys = QueueKeys.of(name)
    for key in (keys.messages, keys.toack):
        ids = [await redis.lindex(key, place) for place in (0, -2)]
        first, last = map(parse_whole, ids)
        found.append(None if first is None or last is None else (first, last))
    return found


def _batched(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while some := list(islice(rest, READ_AT_ONCE)):
        yield some


def _ask(pipeline: Any, name: str) -> None:
    keys, lease = QueueKeys.of(name), lease_key(name)
    pipeline.llen(keys.messages)
    pipeline.llen(keys.toack)
    pipeline.hgetall(keys.metadata)
    pipeline.pttl(keys.metadata)
    pipeline.get(keys.msgid)
    pipeline.get(lease)
    pipeline.pttl(lease)


def _check(replies: Iterable[Any]) -> None:
    """Raise errors but those of a wrong type."""
    for each in replies:
        if isinstance(each, NoPermissionError) or (
            isinstance(each, RedisError) and not isinstance(each, ResponseError)
        ):
            raise each


def _state(name: str, replies: Sequence[Any], consumers: int) -> QueueState:
    waiting, unacknowledged, metadata, left, last_id, lease, lease_left = replies
    kinds = ("messages", "toack", "metadata", "", "msgid", "consumer", "")
    wrong = [kind for kind, reply in zip(kinds, replies, strict=True) if isinstance(reply, Exception)]
    fields = decoded_fields({} if isinstance(metadata, Exception) else metadata)
    problems = [f"{kind} is of another type" for kind in wrong]
    ttl = parse_whole(fields.get("ttl"))
    if ttl is None and "metadata" not in wrong:
        problems.append(HEADLESS)
    return QueueState(
        name,
        None if isinstance(waiting, Exception) else waiting // 2,
        None if isinstance(unacknowledged, Exception) else unacknowledged // 2,
        ttl,
        left / 1000 if isinstance(left, int) and left >= 0 else None,
        parse_whole(fields.get("maxsize")) or 0,
        (None if isinstance(last_id, Exception) else parse_whole(last_id)) or 0,
        consumers,
        decoded(lease) if isinstance(lease, bytes) else None,
        lease_left / 1000 if isinstance(lease_left, int) and lease_left >= 0 else None,
        fields.get("source"),
        fields.get("discover") == "true",
        (fields.get("moving") or "").rpartition(" ")[2] or None,
        {key: value for key, value in fields.items() if key not in OWN_FIELDS},
        tuple(problems),
    )
