"""Comparison of sent and received messages by content: lists of equal length can still differ."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from redis.asyncio import Redis

K = TypeVar("K")


@dataclass(frozen=True)
class Comparison:
    """Result for one route through the composition; a payload that was sent twice must arrive twice."""

    name: str
    sent: int
    got: int
    lost: Counter[bytes]
    doubled: Counter[bytes]
    foreign: Counter[bytes]
    """Payloads that arrived but were never sent."""
    in_order: bool
    ordered: bool = True
    """True if another order is a difference."""

    @classmethod
    def compare(cls, name: str, sent: Sequence[bytes], got: Sequence[bytes], *, ordered: bool = True) -> Self:
        """Compare ``sent`` and ``got``, both oldest first."""
        owed, had = Counter(sent), Counter(got)
        surplus = had - owed
        doubled = Counter({payload: times for payload, times in surplus.items() if payload in owed})
        in_order = list(sent) == list(got)
        return cls(name, len(sent), len(got), owed - had, doubled, surplus - doubled, in_order, ordered)

    @classmethod
    async def read(
        cls, redis: "Redis", key: str, sent: Sequence[bytes], *, name: str = "", ordered: bool = True
    ) -> Self:
        """Compare ``sent``, oldest first, and what the list ``key`` has; without a ``name``, that is the list's."""
        newest_first: Any = await redis.lrange(key, 0, -1)
        return cls.compare(name or key, sent, newest_first[::-1], ordered=ordered)

    def differences(self) -> list[str]:
        """Return a line for each kind of fault; if there is none, a line if the order differs and must not."""
        faults = [
            f"{self.name}: {kind} {payloads.total()}, e.g. {next(iter(payloads))!r}"
            for kind, payloads in (("lost", self.lost), ("doubled", self.doubled), ("never sent", self.foreign))
            if payloads
        ]
        misplaced = self.ordered and not self.in_order
        return faults or ([f"{self.name}: all there, but in another order"] if misplaced else [])

    @property
    def amounts(self) -> dict[str, int]:
        """Return how many payloads of each kind of fault there are."""
        return {"lost": self.lost.total(), "doubled": self.doubled.total(), "never sent": self.foreign.total()}

    def counts(self) -> dict[str, int]:
        """Return the numbers as JSON, without the order."""
        return {
            "sent": self.sent,
            "got": self.got,
            "lost": self.lost.total(),
            "doubled": self.doubled.total(),
            "foreign": self.foreign.total(),
        }

    def figures(self) -> dict[str, object]:
        """Return the numbers as JSON, with the order."""
        return {**self.counts(), "inOrder": self.in_order}


def not_once(wanted: Iterable[K], counts: Mapping[K, int]) -> Iterator[tuple[K, int]]:
    """Yield what was not counted once, with its count: first of all that is wanted, then what came beside it."""
    for each in dict.fromkeys([*wanted, *counts]):
        if (many := counts.get(each, 0)) != 1:
            yield each, many
