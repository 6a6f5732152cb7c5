"""Source for event streams: one row for each event; gaps in the numbers show what was trimmed before it was read."""

import json
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from redis.exceptions import ResponseError

from penstock.base.errors import DataLost
from penstock.base.keys import Keys
from penstock.core.raw_connection import Command
from penstock.spark.decode import SCHEMA, RawEntry, decode_entries
from penstock.spark.options import exchange
from penstock.spark.sources.pages import FIRST_ENTRIES, GROWTH, Entries, with_key
from penstock.spark.sources.places import Place, Range
from penstock.tracking.events import MAX_EVENTS

SUFFIX: Final = ":events"
MARKS: Final = ":marks"
SPLIT: Final = 50_000
"""Minimum number of events that are split among several tasks."""
BEGINNING: Final = Place().id
MAX_SEARCHED: Final = 10_000
"""Maximum number of entries of other programs that are read backwards in search of an event."""


def place_of(entry: RawEntry) -> Place:
    numbers = numbers_of(entry)
    return Place(entry[0].decode(), numbers[1] if numbers else None)


def numbers_of(entry: RawEntry) -> tuple[int, int] | None:
    """Return the numbers of the first and last event of ``entry``, None if it is no entry of events."""
    words = dict(zip(entry[1][::2], entry[1][1::2], strict=False))
    try:
        first, count = int(words[b"first"]), int(words[b"count"])
    except (KeyError, ValueError):
        return None
    return (first, first + count - 1) if 1 <= count <= MAX_EVENTS else None


class Events(Entries):
    """Reads entries of events: docs/keys.md."""

    def place_of(self, entry: RawEntry) -> Place:
        return place_of(entry)

    def ends(self, keys: Sequence[str]) -> dict[str, Place]:
        replies = exchange(self.redis, [("XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys]) if keys else []
        found = {}
        for key, reply in zip(keys, replies, strict=True):
            if isinstance(reply, ResponseError):
                raise with_key(reply, key)
            if reply:
                found[key] = place_of(reply[0])
        return found

    def foreign(self, keys: Sequence[str]) -> list[str]:
        """Return the ``keys`` that hold no events: by their names, and by their oldest and newest entries."""
        named = [key for key in keys if not key.endswith(SUFFIX)]
        commands: list[Command] = []
        for key in named:
            commands += [("XRANGE", key, "-", "+", "COUNT", 1), ("XREVRANGE", key, "+", "-", "COUNT", 1)]
        replies = exchange(self.redis, commands) if commands else []
        return [
            key
            for key, *ends in zip(named, replies[::2], replies[1::2], strict=True)
            if all(isinstance(end, list) and end and b"event" not in end[0][1][::2] for end in ends)
        ]

    def numbered(self, key: str, start: Place, place: Place) -> Place:
        """Return ``place`` with the number of the last event up to it, even if its own entry is no event.

        Search backwards to ``start``, whose number is taken if no event is between.
        """
        after, searched, count = place.id, 0, FIRST_ENTRIES
        while place.number is None and searched < MAX_SEARCHED:
            page = self.redis.execute_command("XREVRANGE", key, f"({after}", f"({start.id}", "COUNT", count)
            for numbers in filter(None, map(numbers_of, page)):
                return Place(place.id, numbers[1])
            if len(page) < count:
                known = [number for number in (start.number, self._counted(key, place)) if number is not None]
                return Place(place.id, max(known, default=None))
            after, searched, count = page[-1][0].decode(), searched + len(page), GROWTH * FIRST_ENTRIES
        return place

    def as_far_as(self, key: str, start: Place, end: Place, most: int) -> tuple[Place, int]:
        end = self.numbered(key, start, end)
        number = start.number if start.number is not None else self._number_before(key)
        if number is not None and end.number is not None and end.number >= number:
            if end.number - number <= most:
                return end, end.number - number
            cut = self._mark(key, number + most, after=start)
            if cut and cut.number is not None and cut.order < end.order:
                return cut, max(cut.number - number, 0)
        last, events = self.walk(key, start, end, most)
        return self.numbered(key, start, place_of(last)) if last and events >= most else end, events

    def ranges(self, key: str, start: Place, end: Place, parts: int) -> list[Range]:
        """Divide the range at marks into parts with about the same number of events."""
        cuts = [start]
        if end.number is not None:
            number = start.number if start.number is not None else self._number_before(key)
            if number is not None and end.number - number >= SPLIT:
                for part in range(1, parts):
                    wanted = number + (end.number - number) * part // parts
                    cut = self._mark(key, wanted, after=cuts[-1])
                    cuts += [cut] if cut and cut.order < end.order else []
        return [
            Range(key, after, upto, since=start, is_last=upto is end)
            for after, upto in zip(cuts, [*cuts[1:], end], strict=True)
        ]

    def weight(self, entry: RawEntry) -> int:
        numbers = numbers_of(entry)
        return numbers[1] - numbers[0] + 1 if numbers else 1

    def rows(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Yield the events of ``part``, with the ``messageTimeout`` of their namespace (s)."""
        timeout = pa.scalar(self._timeout(part.key.removesuffix(SUFFIX)), pa.float64())
        for batch in self._events(part):
            yield batch.append_column("timeout", pa.repeat(timeout, batch.num_rows))

    def _number_before(self, key: str) -> int | None:
        """Return the number before that of the oldest event in the stream."""
        oldest = self.redis.execute_command("XRANGE", key, "-", "+", "COUNT", 1)
        numbers = numbers_of(oldest[0]) if oldest else None
        return numbers[0] - 1 if numbers else None

    def _counted(self, key: str, end: Place) -> int | None:
        """Return how many events were ever written, if ``end`` is still the newest entry; else None.

        The counter is read before and after the entry, since a server out of memory refuses MULTI.
        """
        counter = Keys(key.removesuffix(SUFFIX)).metric("events")
        try:
            before = self.redis.hget(counter, "count")
            newest = self.redis.execute_command("XREVRANGE", key, "+", "-", "COUNT", 1)
            same = newest and newest[0][0].decode() == end.id and before == self.redis.hget(counter, "count")
            return int(before) if same and before else None
        except (ValueError, ResponseError):  # written by another program
            return None

    def _mark(self, key: str, number: int, after: Place) -> Place | None:
        """Return the last marked entry that begins with event ``number`` or less, None if it is not after ``after``."""
        found = self.redis.zrevrangebyscore(key + MARKS, number, "-inf", start=0, num=1)
        if not found or Place(found[0].decode()).order <= after.order:
            return None
        entries = self.redis.execute_command("XRANGE", key, found[0], found[0])
        return place_of(entries[0]) if entries else None

    def _timeout(self, namespace: str) -> float | None:
        try:
            return float(self.redis.hget(Keys(namespace).policy, "messageTimeout") or "none")
        except (ValueError, ResponseError):  # written by another program
            return None

    def _events(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Yield the events of ``part``. For trimmed events raise ``DataLost``, or yield a row that describes them."""
        namespace = part.key.removesuffix(SUFFIX)
        # A checkpoint of an older version may have a place without a number.
        place = part.start if part.start.id == BEGINNING else self.numbered(part.key, Place(), part.start)
        for entries in self.pages(part):
            if place.number is None and self._is_trimmed_past(part.key, place):
                yield from self._lost(part.key, place, None)
            for batch in decode_entries(namespace, entries):
                yield from self._unbroken(part.key, place, batch)
                place = _last_of(batch, place)
        if place.order < part.end.order:
            yield from self._lost(part.key, place, None if part.end.number is None else part.end.number + 1)
        elif None not in (place.number, part.end.number) and place.number < part.end.number:  # type: ignore[operator]
            yield from self._lost(part.key, place, part.end.number + 1)  # type: ignore[operator]

    def _is_trimmed_past(self, key: str, place: Place) -> bool:
        """Return True if all entries left are after ``place``. Call it after reading the next page, to miss nothing."""
        oldest = self.redis.execute_command("XRANGE", key, "-", "+", "COUNT", 1)
        return place.id != BEGINNING and bool(oldest) and Place(oldest[0][0].decode()).order > place.order

    def _unbroken(self, key: str, before: Place, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield ``batch`` with a row for each gap before and in it."""
        numbers = batch.column("number")
        if numbers.null_count:
            claimed = _malformed_numbers(batch)
            if claimed and before.number is not None and claimed[0] > before.number + 1:
                yield from self._lost(key, before, claimed[0])
            yield batch
            return
        known = numbers.to_numpy()
        first = before.number + 1 if before.number is not None else known[0]
        gaps = np.flatnonzero(np.diff(known, prepend=first - 1) > 1)
        begin = 0
        for gap in gaps.tolist():
            yield batch.slice(begin, gap - begin)
            last = Place(batch.column("entry")[gap - 1].as_py(), int(known[gap - 1])) if gap else before
            yield from self._lost(key, last, int(known[gap]))
            begin = gap
        yield batch.slice(begin)

    def _lost(self, key: str, before: Place, next_number: int | None) -> Iterator[pa.RecordBatch]:
        known = before.number is not None and next_number is not None
        which = f"events {before.number + 1} to {next_number - 1}" if known else "entries"  # type: ignore[operator]
        problem = f"{key}: {which} after {before.id} are gone: they were trimmed before they were read"
        if self._fails:
            raise DataLost(
                f"{problem}. Keep more of them (eventCapacity), and go on without these: failOnDataLoss=false"
            )
        row = {"namespace": key.removesuffix(SUFFIX), "entry": before.id, "place": -1}
        yield pa.RecordBatch.from_pylist([{**row, "malformed": json.dumps({"lost": problem})}], schema=SCHEMA)


def _last_of(batch: pa.RecordBatch, before: Place) -> Place:
    """Return the end of ``batch``. A malformed entry may claim any number, but never sets the number back."""
    entry, number = (batch.column(name)[batch.num_rows - 1].as_py() for name in ("entry", "number"))
    if number is None:
        known = [
            known for known in (before.number, (_malformed_numbers(batch) or (None, None))[1]) if known is not None
        ]
        number = max(known, default=None)
    return Place(entry, number)


def _malformed_numbers(batch: pa.RecordBatch) -> tuple[int, int] | None:
    """Return the numbers of the first and last event that the malformed last entry claims, None if it has none."""
    words = json.loads(batch.column("malformed")[batch.num_rows - 1].as_py() or "{}")
    return numbers_of((b"", [word.encode() for pair in words.items() for word in pair]))
