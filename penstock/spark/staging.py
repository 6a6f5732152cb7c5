"""Where tasks put rows until Spark commits the batch: in staged lists, each of which expires in a day."""

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

from penstock.encoding import decoded
from penstock.errors import PenstockError, WrongType
from penstock.raw_connection import Command, Packed
from penstock.spark.options import exchange

PAGE: Final = 10_000
"""Most messages that are asked for, or pushed, at a time."""
BYTES: Final = 4 * 2**20
"""About as many bytes are."""
KEYS: Final = 1_000
"""Keys, or scripts, that one round trip may name."""
DAY: Final = 86_400
"""Seconds that staged rows live which nobody publishes: those of a task that was killed."""

Part = tuple[bytes, int]
"""A staged list, and how many rows are in it."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task has staged, by the key that it is for."""

    query: str
    """The id of the query; empty for a job."""
    lists: dict[bytes, Part]


class Stage:
    """Where a task puts its rows until those of all tasks are published; whatever it leaves expires in a day."""

    def __init__(self, redis: "Redis") -> None:
        self.lists: dict[bytes, Part] = {}
        self._redis = redis
        self._commands: list[Command] = []
        self._size = 0

    def put(self, out: bytes, rows: list[bytes]) -> None:
        """Add ``rows`` to those for ``out``, later or now."""
        for piece in pieces(rows):
            staged, before = self.lists.get(out) or (b"%b:spark-staged:%b" % (out, uuid4().hex.encode()), 0)
            packed = Packed.of(piece)
            # Where this is sent twice, what the first one did is taken away.
            undo: Command = ("LTRIM", staged, -before, -1) if before else ("UNLINK", staged)
            self._commands += [undo, ("LPUSH", staged, packed), ("EXPIRE", staged, DAY)]
            self.lists[out] = staged, before + len(piece)
            self._size += len(packed.data)
            if self._size >= BYTES or len(self._commands) >= KEYS:
                self.flush()

    def flush(self) -> None:
        commands, self._commands, self._size = self._commands, [], 0
        for reply in exchange(self._redis, commands) if commands else []:
            checked(self._redis, reply, b"staged rows")


@contextmanager
def staging(redis: "Redis") -> Iterator[Stage]:
    """A stage on which all is there at the end, or nothing where something went wrong."""
    stage = Stage(redis)
    try:
        yield stage
        stage.flush()
    except BaseException:
        discard(redis, [staged for staged, _ in stage.lists.values()])
        raise


def by_out(messages: Sequence[WriterCommitMessage | None]) -> dict[bytes, list[Part]]:
    """What the tasks have staged, in their order, by the key that it is for."""
    found: dict[bytes, list[Part]] = {}
    for message in messages:
        for out, part in message.lists.items() if isinstance(message, Staged) else ():
            found.setdefault(out, []).append(part)
    return found


def discard(redis: "Redis", keys: Sequence[bytes]) -> None:
    for some in chunks(keys, KEYS):
        redis.unlink(*some)


def pieces(rows: list[bytes]) -> Iterator[list[bytes]]:
    """In order; each has at most ``PAGE`` rows and, but for a single one, some ``BYTES``."""
    for some in chunks(rows, PAGE):
        sizes = accumulate(map(len, some))
        for _, piece in groupby(zip(some, sizes, strict=True), key=lambda each: each[1] // BYTES):
            yield [row for row, _ in piece]


def query_of_task() -> str:
    """The id of the query that this task belongs to; Spark keeps it in the checkpoint."""
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    if not query:
        raise PenstockError("this Spark does not tell a task the id of its query: a repeated batch cannot be known")
    return query


def chunks(several: Any, most: int) -> Iterator[Any]:
    return (several[first : first + most] for first in range(0, len(several), most))


def checked(redis: "Redis", reply: Any, key: bytes, kind: str = "list") -> Any:
    """Raises it where it is an error, with the key's name where that holds another type."""
    if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
        found = decoded(redis.type(key))
        raise WrongType(f"{decoded(key)} holds a {found}, expected a {kind}")
    if isinstance(reply, Exception):
        raise reply
    return reply
