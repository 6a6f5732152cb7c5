"""Determine whether all instances of a namespace count messages when they take them; older versions do not.

The hash ``metrics:start`` counts all starts (``count``), starts of instances that do (``counting``), and older starts
that had ended when the counters were last reconciled (``agreed``).
"""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.encoding import parse_whole


class Starts(NamedTuple):
    """Number of starts of a namespace's instances."""

    counting: int
    """Starts of instances that count messages when they take them."""
    older: int
    """Starts of instances that count messages only when they settle them."""
    agreed: int
    """Starts in ``older`` that had ended when the counters were last reconciled."""

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> "Starts":
        """Parse the hash; a field that is not a number counts as 0."""
        count, counting, agreed = (parse_whole(fields.get(name)) or 0 for name in ("count", "counting", "agreed"))
        return cls(counting, max(count - counting, 0), agreed)

    @property
    def agree(self) -> bool:
        """Whether the counters include every message since it was taken."""
        return self.older == self.agreed
