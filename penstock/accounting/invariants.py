"""Counters of a metric, and sums of counters that must hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.base.encoding import decoded_fields

SECONDS: Final = ("sum", "max")
"""Fields of a metric that are seconds, not counts."""


@dataclass(frozen=True)
class Invariant:
    """``count`` of the whole must be the sum of its parts."""

    whole: str
    count: int
    parts: dict[str, int]

    @property
    def difference(self) -> int:
        """How many messages are missing; below 0 if there are too many."""
        return self.count - sum(self.parts.values())

    @property
    def problem(self) -> str:
        """The imbalance in words; empty if the sum holds."""
        if not (missing := self.difference):
            return ""
        amount = f"{missing:,} missing" if missing > 0 else f"{-missing:,} too many"
        parts = " + ".join(f"{name} {count:,}" for name, count in self.parts.items())
        return f"{self.whole} {self.count:,} is not {parts}: {amount}"


def parse_counters(
    metric: str, fields: Mapping[bytes, bytes], problems: list[str], ignored: tuple[str, ...] = ()
) -> dict[str, int]:
    """Return the fields of ``metric``, without ``ignored``. Append a problem for each that is not a whole number."""
    numbers = {}
    for name, value in decoded_fields(fields).items():
        if name in ignored:
            continue
        try:
            numbers[name] = int(value)
        except ValueError:
            problems.append(f"{metric}: {name} is {value!r}, expected a whole number")
    return numbers
