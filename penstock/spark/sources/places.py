"""Positions in streams, and the ranges that tasks read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

ORDER: Final = ("entry_ms", "entry_sequence")
"""Columns that sort rows as their entries are sorted, which ids as text do not."""
MAX_LONG: Final = 2**63 - 1


@dataclass(frozen=True)
class Place:
    """The id of an entry, and the number of events or entries up to it; None if unknown.

    Events have numbers of their own; entries are counted by the server (``entries-added``).
    """

    id: str = "0-0"
    number: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        milliseconds, _, sequence = self.id.partition("-")
        return int(milliseconds), int(sequence or 0)


@dataclass(frozen=True)
class Range:
    """The entries of ``key`` after ``start`` up to and including ``end``."""

    key: str
    start: Place
    end: Place
    since: Place | None = None
    """Of a piece of a longer range: where that one begins."""
    is_last: bool = True
    """False for a piece that others follow."""

    @property
    def is_first(self) -> bool:
        return self.since in (None, self.start)


@dataclass(frozen=True)
class Task(InputPartition):
    """The ranges that one task reads, one after the other."""

    ranges: Sequence[Range]
    planned: frozenset[str] | None = None
    """The streams that tasks of a job have; the task that knows them reads all that have come since, too."""


def offset_of(places: Mapping[str, Place]) -> dict[str, Any]:
    """Return ``places`` as Spark keeps them in the checkpoint."""
    return {key: asdict(place) for key, place in sorted(places.items())}


def places_of(offset: Mapping[str, Any]) -> dict[str, Place]:
    return {key: Place(**place) for key, place in offset.items()}


def numbers_of(ids: pa.Array) -> list[pa.Array]:
    """Return the columns ``ORDER`` of ``ids``. One that is no long, as only a writer may set it, is the greatest."""
    different = ids.dictionary_encode()
    words = pc.split_pattern(different.dictionary, "-").flatten().cast(pa.uint64())
    numbers = pc.min_element_wise(words, pa.scalar(MAX_LONG, pa.uint64())).cast(pa.int64()).to_numpy()
    return [pa.array(numbers[half::2]).take(different.indices) for half in (0, 1)]
