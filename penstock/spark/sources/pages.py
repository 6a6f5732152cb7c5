"""Reading of stream entries, page by page."""

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa
from redis.exceptions import RedisError, ResponseError

from penstock.errors import WrongType
from penstock.spark.decode import RawEntry
from penstock.spark.options import LazyConnection, Options
from penstock.spark.sources.places import Place, Range

PAGE_EVENTS: Final = 20_000
"""Events of a page, about."""
FIRST_ENTRIES: Final = 50
"""Entries of the first page, before their size is known."""
PAGE_BYTES: Final = 16 * 2**20
"""Size of the messages in a page, about."""
RETRIES: Final = 6
"""Retries of a page while the server is away: about 6 s."""


class Entries(LazyConnection):
    """Base of ``Events`` and ``Raw``: plans and reads ranges of entries."""

    def __init__(self, options: Options) -> None:
        super().__init__(options.url())
        self._fails = options.truth("failOnDataLoss", True)

    @abstractmethod
    def ends(self, keys: Sequence[str]) -> dict[str, Place]:
        """Return the place of the newest entry of each stream that has one. Raise ``WrongType``."""

    def numbered(self, key: str, start: Place, place: Place) -> Place:
        """Return ``place`` with its number, if that can be found between ``start`` and it."""
        return place

    @abstractmethod
    def as_far_as(self, key: str, start: Place, end: Place, most: int) -> tuple[Place, int]:
        """Return the place up to which the range has a weight of about ``most``, and that weight."""

    @abstractmethod
    def ranges(self, key: str, start: Place, end: Place, parts: int) -> list[Range]:
        """Divide the range into at most ``parts`` consecutive ranges, fewer if it is short."""

    @abstractmethod
    def rows(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``part``. Raise ``DataLost`` if some are gone and ``failOnDataLoss`` is true."""

    @abstractmethod
    def weight(self, entry: RawEntry) -> int:
        """Return how many rows ``entry`` has."""

    def walk(self, key: str, start: Place, end: Place, most: int) -> tuple[RawEntry | None, int]:
        """Read up to a weight of about ``most``. Return the last entry, None if the range is empty, and the weight."""
        found, after = 0, start.id
        last: RawEntry | None = None
        while found < most and after != end.id:
            page = self.redis.execute_command(
                "XRANGE", key, f"({after}", end.id, "COUNT", min(most - found, PAGE_EVENTS)
            )
            if not page:
                break
            for entry in page:
                last, found = entry, found + self.weight(entry)
                if found >= most:
                    break
            after = page[-1][0].decode()
        return last, found

    def pages(self, part: Range) -> Iterator[list[RawEntry]]:
        """Yield all entries of ``part`` by pages; the next page is requested before the current one is used."""
        count, after, upto = FIRST_ENTRIES, part.start.id, part.end.id
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
                    raise with_key(error, part.key) from None
                except RedisError:
                    failures += 1
                    if failures > RETRIES:
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
                    count = max(min(PAGE_EVENTS // self.weight(entries[-1]), PAGE_BYTES // (size + 1)), 1)
                    with suppress(RedisError):  # requested again when its turn comes
                        connection.send_command("XRANGE", part.key, f"({after}", upto, "COUNT", count)
                        asked = True
                yield entries
                if not more:
                    return
        finally:
            if connection:
                connection.disconnect()
                self.redis.connection_pool.release(connection)


def with_key(error: ResponseError, key: str) -> Exception:
    """Return ``error``, or ``WrongType`` with the name of ``key`` if it holds another type."""
    wrong = str(error).startswith("WRONGTYPE")
    return WrongType(f"{key} holds something else, expected a stream") if wrong else error
