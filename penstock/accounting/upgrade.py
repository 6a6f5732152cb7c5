"""Whether all instances of a namespace have counted what they take when they take it.

``metrics:start`` counts every start, as ``counting`` those of instances that count so, and as ``agreed`` how many of
the others were over when the counters were last made to agree.
"""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.encoding import parse_whole


class Starts(NamedTuple):
    """How often instances of a namespace were started."""

    counting: int
    """Instances that count what they take."""
    older: int
    """Instances that count only what they settle."""
    agreed: int
    """Those of ``older`` after which the counters were made to agree."""

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> "Starts":
        """Parse the hash; a field that is not a number counts as 0."""
        count, counting, agreed = (parse_whole(fields.get(name)) or 0 for name in ("count", "counting", "agreed"))
        return cls(counting, max(count - counting, 0), agreed)

    @property
    def agree(self) -> bool:
        """Whether the counters say of every message when it was taken."""
        return self.older == self.agreed
