"""Limits that all consumers of a group share, in all processes."""

from dataclasses import dataclass
from math import inf

from penstock.base.errors import WrongCall


@dataclass(frozen=True)
class Limit:
    """At most ``rate`` jobs begin in ``per`` seconds, ``burst`` of them at once, and ``concurrency`` run at a time.

    With ``by_key`` these hold for each ``key`` of ``Producer.send``: jobs of one key wait in order, others go on. With
    ``concurrency=1`` those of one key are done one after the other. The server's clock counts. What a process holds
    that dies is free again after ``claim_after``.
    """

    rate: float | None = None
    per: float = 1.0
    burst: int = 1
    concurrency: int | None = None
    by_key: bool = False

    def __post_init__(self) -> None:
        if self.rate is None and self.concurrency is None:
            raise WrongCall("a limit needs a rate or a concurrency")
        if self.rate is not None and not (0 < self.rate < inf and 0 < self.per < inf):
            raise WrongCall(f"rate={self.rate}, per={self.per}: expected numbers above 0")
        if self.burst < 1 or (self.concurrency is not None and self.concurrency < 1):
            raise WrongCall(f"burst={self.burst}, concurrency={self.concurrency}: expected at least 1 of each")

    @property
    def interval(self) -> float:
        """Return the seconds between two jobs; 0 without a rate."""
        return 0.0 if self.rate is None else self.per / self.rate
