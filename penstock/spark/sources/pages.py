"""Reading of stream entries, page by page."""

import gc
import sys
import time
from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from redis.exceptions import RedisError, ResponseError

from penstock.base.errors import WrongType
from penstock.core.raw_connection import Command, pack
from penstock.spark.cluster import ELSEWHERE, node_of
from penstock.spark.decode import RawEntry
from penstock.spark.options import LazyConnection, Options
from penstock.spark.sources.places import Place, Range

PAGE_EVENTS: Final = 20_000
"""Events of a page, about."""
FIRST_ENTRIES: Final = 4
"""Entries of the first page, before their size is known."""
GROWTH: Final = 16
"""Maximum number of entries in a page as a multiple of those before: those may have been smaller."""
PAGE_BYTES: Final = 16 * 2**20
"""Size of a page, about."""
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

    def existing(self, key: str, start: Place) -> Place:
        """Return ``start``, or the beginning if the stream has nothing up to it: then nothing before it is missing."""
        oldest = self.redis.execute_command("XRANGE", key, "-", "+", "COUNT", 1)
        return start if oldest and Place(oldest[0][0].decode()).order <= start.order else Place()

    def last_until(self, key: str, place: Place) -> Place | None:
        """Return the place of the last entry up to ``place``; None if there is none."""
        found = self.redis.execute_command("XREVRANGE", key, place.id, "-", "COUNT", 1)
        return self.place_of(found[0]) if found else None

    def place_of(self, entry: RawEntry) -> Place:
        """Return the place of an entry, with its number if that is known."""
        return Place(entry[0].decode())

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
        found = 0
        last: RawEntry | None = None
        with closing(self.pages(Range(key, start, end), most)) as pages:
            for last in chain.from_iterable(pages):
                found += self.weight(last)
                if found >= most:
                    break
        return last, found

    def pages(self, part: Range, most: int = sys.maxsize) -> Generator[list[RawEntry]]:
        """Yield entries of ``part``, at most ``most``; the next page is requested before the current one is used."""
        return (entries for entries, _ in self.pages_with(part, [], most))

    def pages_with(
        self, part: Range, others: Sequence[Command], most: int = sys.maxsize
    ) -> Iterator[tuple[list[RawEntry], list[Any]]]:
        """Yield pages with the replies to ``others``, commands for the same key: the server runs them after each page.

        They go with the page, since a second connection would wait while the server writes the next one.
        """
        count, after, upto = min(FIRST_ENTRIES, most), part.start.id, part.end.id
        connection: Any = None
        asked, pool = False, None

        def request(count: int) -> None:
            page: Command = ("XRANGE", part.key, f"({after}", upto, "COUNT", count)
            connection.send_packed_command([pack([page, *others])])

        try:
            failures = 0
            while True:
                try:
                    if connection is None or pool is None:
                        pool = node_of(self.redis, part.key).connection_pool
                        connection = pool.get_connection()
                    if not asked:
                        asked = True
                        request(count)
                    with _uncollected():
                        entries = connection.read_response()
                    replies = [_reply(connection) for _ in others]
                    failures, asked = 0, False
                except RedisError as error:
                    moved = isinstance(error, ELSEWHERE)
                    if isinstance(error, ResponseError) and not moved:
                        raise with_key(error, part.key) from None
                    failures += 1
                    if failures > RETRIES:
                        raise
                    time.sleep(0.05 * 2**failures)
                    if connection and pool:
                        connection.disconnect()
                        pool.release(connection)
                        connection = None
                    if moved:
                        self.redis.refresh()
                    asked = False
                    continue
                if not entries:
                    return
                after = entries[-1][0].decode()
                most -= len(entries)
                if more := len(entries) == count and after != upto and most > 0:
                    size = sum(map(len, chain.from_iterable(words for _, words in entries))) // len(entries)
                    few = min(PAGE_EVENTS // self.weight(entries[-1]), PAGE_BYTES // (size + 1), GROWTH * count)
                    count = min(max(few, 1), most)
                    with suppress(RedisError):  # requested again when its turn comes
                        request(count)
                        asked = True
                yield entries, replies
                if not more:
                    return
        finally:
            if connection and pool:
                if asked:  # a reply may be under way
                    connection.disconnect()
                pool.release(connection)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector: the lists of a page are all in use, and searching them took half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _reply(connection: Any) -> Any:
    """Return the next reply; an error of the server is returned, too."""
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def with_key(error: ResponseError, key: str) -> Exception:
    """Return ``error``, or ``WrongType`` with the name of ``key`` if it holds another type."""
    wrong = str(error).startswith("WRONGTYPE")
    return WrongType(f"{key} holds something else, expected a stream") if wrong else error
