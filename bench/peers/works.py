"""The works that are compared, and who does them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bench.peers.install import Origin
from bench.peers.scene import Scene, Take

LIMIT: Final = "limit"
OURS: Final = "Penstock"


Opened = Callable[[Scene], AbstractContextManager[Take]]
"""Starts all that the work needs; ends it afterwards."""


class Work(StrEnum):
    FAN_OUT = "fan-out"
    JOBS = "jobs"
    REPLIES = "replies"

    @property
    def unit(self) -> str:
        return "ms" if self is Work.REPLIES else "/s"


@dataclass(frozen=True)
class Entry:
    """A peer at a work."""

    opened: Opened
    messages: int
    """In a run, so that it takes about a second."""
    how: str
    """What runs, for a reader."""


@dataclass(frozen=True)
class Peer:
    """Whoever is compared; ``origin`` is nothing where there is nothing to install."""

    name: str
    works: dict[Work, Entry]
    origin: Origin | None = None
    more: str = ""
    """What it does that we do not."""
