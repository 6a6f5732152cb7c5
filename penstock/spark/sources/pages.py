"""Entries of a stream, a page at a time."""

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa
from redis.exceptions import RedisError, ResponseError

from penstock.errors import WrongType
from penstock.spark.decode import RawEntry
from penstock.spark.options import Connecting, Options
from penstock.spark.sources.places import Place, Range

PAGE: Final = 20_000
"""Events that are read at a time, about."""
ENTRIES: Final = 50
"""Entries of the first page, when nobody knows how much is in one."""
BYTES: Final = 16 * 2**20
"""Of the messages that a page may have in it, about."""
PATIENCE: Final = 6
"""How often a page is asked for again where the server is away: some 6 seconds."""


class Entries(Connecting):
    """What a reader wants to know of streams; ``Events`` and ``Raw`` say what they make of an entry."""

    def __init__(self, options: Options) -> None:
        super().__init__(options.url())
        self._fails = options.truth("failOnDataLoss", True)

    @abstractmethod
    def ends(self, keys: Sequence[str]) -> dict[str, Place]:
        """The newest entry of each stream that has one. Raises ``WrongType``."""

    def numbered(self, key: str, start: Place, place: Place) -> Place:
        """Return ``place`` with its number, if one can be found between ``start`` and it."""
        return place

    @abstractmethod
    def as_far_as(self, key: str, start: Place, end: Place, most: int) -> tuple[Place, int]:
        """The last place up to which there is about ``most`` to read, and how much that is."""

    @abstractmethod
    def ranges(self, key: str, start: Place, end: Place, parts: int) -> list[Range]:
        """At most so many parts, one after the other; fewer where it is not worth it."""

    @abstractmethod
    def rows(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Raises ``DataLost`` where some are gone and the user wants to know."""

    @abstractmethod
    def weight(self, entry: RawEntry) -> int:
        """How much there is to read in it."""

    def walk(self, key: str, start: Place, end: Place, most: int) -> tuple[RawEntry | None, int]:
        """The last entry up to which there is about ``most``, found by reading, and how much that is.

        None where nothing is there.
        """
        found, after = 0, start.id
        last: RawEntry | None = None
        while found < most and after != end.id:
            page = self.redis.execute_command("XRANGE", key, f"({after}", end.id, "COUNT", min(most - found, PAGE))
            if not page:
                break
            for entry in page:
                last, found = entry, found + self.weight(entry)
                if found >= most:
                    break
            after = page[-1][0].decode()
        return last, found

    def pages(self, part: Range) -> Iterator[list[RawEntry]]:
        """All entries of ``part``; the next ones are under way while those before them are used."""
        count, after, upto = ENTRIES, part.start.id, part.end.id
        connection, asked = None, False
        try:
            failures = 0
            while True:
                try:
                    if connection is None:
                        connection = self.redis.connection_pool.get_connection()
                    if not asked:
                        connection.send_command("XRANGE", part.key, f"({after}", upto, "COUNT", count)
                    entries = connection.read_response()
                    failures, asked = 0, False
                except ResponseError as error:
                    raise named(error, part.key) from None
                except RedisError:
                    failures += 1
                    if failures > PATIENCE:
                        raise
                    time.sleep(0.05 * 2**failures)
                    if connection:
                        connection.disconnect()
                    asked = False
                    continue
                if not entries:
                    return
                after = entries[-1][0].decode()
                if more := len(entries) == count and after != upto:
                    size = sum(len(words[-1]) for _, words in entries) // len(entries)
                    count = max(min(PAGE // self.weight(entries[-1]), BYTES // (size + 1)), 1)
                    with suppress(RedisError):  # asked for again, when its turn comes
                        connection.send_command("XRANGE", part.key, f"({after}", upto, "COUNT", count)
                        asked = True
                yield entries
                if not more:
                    return
        finally:
            if connection:
                connection.disconnect()
                self.redis.connection_pool.release(connection)


def named(error: ResponseError, key: str) -> Exception:
    """With the name of the key that holds another type."""
    wrong = str(error).startswith("WRONGTYPE")
    return WrongType(f"{key} holds something else, expected a stream") if wrong else error
