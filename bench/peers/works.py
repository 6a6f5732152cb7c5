"""Definitions of the works that are compared, and of the peers that do them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bench.peers.install import Origin
from bench.peers.peer_run import Measure, PeerRun

LIMIT: Final = "limit"
OURS: Final = "Penstock"


StartWork = Callable[[PeerRun], AbstractContextManager[Measure]]
"""A context manager that runs all that the work needs."""


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

    start: StartWork
    messages: int
    """Messages per run, chosen so that it takes about a second."""
    how: str
    """Description of what runs, for the reader."""


@dataclass(frozen=True)
class Peer:
    """A system to compare; ``origin`` is None if nothing has to be installed."""

    name: str
    works: dict[Work, Entry]
    origin: Origin | None = None
    more: str = ""
    """What it does that Penstock does not."""
