"""Where a reader of streams stands, and the parts of a stream that its tasks read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True)
class Place:
    """An entry up to which a stream is read, and how many came up to it; None where nothing tells.

    What is counted are events, by their own numbers, or entries, as the server counts those that were added.
    """

    id: str = "0-0"
    number: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        milliseconds, _, sequence = self.id.partition("-")
        return int(milliseconds), int(sequence or 0)


@dataclass(frozen=True)
class Range:
    """The entries of ``key`` after ``start`` up to and with ``end``."""

    key: str
    start: Place
    end: Place


@dataclass(frozen=True)
class Task(InputPartition):
    """What one task reads, one after the other."""

    ranges: Sequence[Range]


def offset_of(places: Mapping[str, Place]) -> dict[str, Any]:
    """As Spark keeps it in the checkpoint."""
    return {key: asdict(place) for key, place in sorted(places.items())}


def places_of(offset: Mapping[str, Any]) -> dict[str, Place]:
    return {key: Place(**place) for key, place in offset.items()}
