"""Whether all instances of a namespace have counted what they take when they take it.

``metrics:start`` counts every start, as ``counting`` those of instances that count so, and as ``agreed`` how many of
the others were over when the counters were last made to agree.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Starts(NamedTuple):
    """How often instances of a namespace were started."""

    counting: int
    """Instances that count what they take."""
    older: int
    """Instances that count only what they settle."""
    agreed: int
    """Those of ``older`` after which the counters were made to agree."""

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> "Starts":
        """Read the hash; ignore fields that are no numbers."""
        count, counting, agreed = (_whole(fields.get(name, "0")) for name in ("count", "counting", "agreed"))
        return cls(counting, max(count - counting, 0), agreed)

    @property
    def agree(self) -> bool:
        """Whether the counters say of every message when it was taken."""
        return self.older == self.agreed


def _whole(word: str) -> int:
    return int(word) if word.isdigit() else 0
