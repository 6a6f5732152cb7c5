"""Staged lists, in which tasks keep rows until Spark commits the batch; each expires in a day."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from redis import Redis
from redis.exceptions import ResponseError

from penstock.base.encoding import decoded
from penstock.base.errors import PenstockError, WrongType
from penstock.core.raw_connection import Command, Packed
from penstock.spark.cluster import beside
from penstock.spark.options import exchange

PAGE_ROWS: Final = 10_000
"""Maximum number of messages that are read or pushed at a time."""
PAGE_BYTES: Final = 4 * 2**20
"""Their size together, about."""
MAX_KEYS: Final = 1_000
"""Maximum number of keys or script calls in one round trip."""
DAY: Final = 86_400
"""Seconds that staged rows live if no one publishes them, as after the death of a task."""
WRONG_TYPE: Final = ("WRONGTYPE", "Existing key has wrong Redis type")
"""Beginnings of errors of the server, and of its module RedisJSON."""

Part = tuple[bytes, int]
"""A staged list and its number of rows."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """Staged lists of one task, by target key."""

    query: str
    """The id of the query; empty for a job."""
    lists: dict[bytes, Part]


class Stage:
    """Staged lists that a task writes until the rows of all tasks are published."""

    def __init__(self, redis: "Redis") -> None:
        self.lists: dict[bytes, Part] = {}
        self._redis = redis
        self._commands: list[Command] = []
        self._size = 0

    def put(self, out: bytes, rows: list[bytes]) -> None:
        """Stage ``rows`` for ``out``; they are buffered until ``flush`` or until enough have come."""
        for piece in pieces(rows):
            name = b"%b:spark-staged:%b" % (beside(self._redis, out), uuid4().hex.encode())
            staged, before = self.lists.get(out) or (name, 0)
            packed = Packed.of(piece)
            # If this is sent twice, the second run removes what the first one has pushed.
            undo: Command = ("LTRIM", staged, -before, -1) if before else ("UNLINK", staged)
            self._commands += [undo, ("LPUSH", staged, packed), ("EXPIRE", staged, DAY)]
            self.lists[out] = staged, before + len(piece)
            self._size += len(packed.data)
            if self._size >= PAGE_BYTES or len(self._commands) >= MAX_KEYS:
                self.flush()

    def flush(self) -> None:
        commands, self._commands, self._size = self._commands, [], 0
        for reply in exchange(self._redis, commands) if commands else []:
            checked(self._redis, reply, b"staged rows")


@contextmanager
def staging(redis: "Redis") -> Iterator[Stage]:
    """Yield a stage, flushed at the end; on an error all that it has staged is deleted."""
    stage = Stage(redis)
    try:
        yield stage
        stage.flush()
    except BaseException:
        discard(redis, [staged for staged, _ in stage.lists.values()])
        raise


def by_out(messages: Sequence[WriterCommitMessage | None]) -> dict[bytes, list[Part]]:
    """Return the staged lists of all tasks, in the order of the tasks, by target key."""
    found: dict[bytes, list[Part]] = {}
    for message in messages:
        for out, part in message.lists.items() if isinstance(message, Staged) else ():
            found.setdefault(out, []).append(part)
    return found


def discard(redis: "Redis", keys: Sequence[bytes]) -> None:
    for some in chunks(keys, MAX_KEYS):
        exchange(redis, [("UNLINK", key) for key in some])


def pieces(rows: list[bytes]) -> Iterator[list[bytes]]:
    """Divide ``rows`` into pieces of at most ``PAGE_ROWS`` rows and about ``PAGE_BYTES``, unless one row is larger."""
    for some in chunks(rows, PAGE_ROWS):
        sizes = accumulate(map(len, some))
        for _, piece in groupby(zip(some, sizes, strict=True), key=lambda each: each[1] // PAGE_BYTES):
            yield [row for row, _ in piece]


def query_of_task() -> str:
    """Return the id of the query of this task, which Spark keeps in the checkpoint."""
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    if not query:
        raise PenstockError("this Spark does not tell a task the id of its query: a repeated batch cannot be known")
    return query


def chunks(several: Any, most: int) -> Iterator[Any]:
    return (several[first : first + most] for first in range(0, len(several), most))


def checked(redis: "Redis", reply: Any, key: bytes, kind: str = "list") -> Any:
    """Return ``reply``, or raise it if it is an error; ``WrongType`` names ``key`` and the type that it holds."""
    if isinstance(reply, ResponseError) and str(reply).startswith(WRONG_TYPE):
        found = decoded(redis.type(key))
        raise WrongType(f"{decoded(key)} holds a {found}, expected a {kind}")
    if isinstance(reply, Exception):
        raise reply
    return reply
