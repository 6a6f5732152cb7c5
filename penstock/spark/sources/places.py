"""Positions in streams, and the ranges that tasks read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition


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


@dataclass(frozen=True)
class Task(InputPartition):
    """The ranges that one task reads, one after the other."""

    ranges: Sequence[Range]


def offset_of(places: Mapping[str, Place]) -> dict[str, Any]:
    """Return ``places`` as Spark keeps them in the checkpoint."""
    return {key: asdict(place) for key, place in sorted(places.items())}


def places_of(offset: Mapping[str, Any]) -> dict[str, Place]:
    return {key: Place(**place) for key, place in offset.items()}
