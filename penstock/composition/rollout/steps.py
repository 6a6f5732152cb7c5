"""What would change between a running composition and its files, as steps; and the steps, done without loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from penstock.composition.model import Place
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.composition.rollout.current import Present

Kind = Literal["reload", "move", "drain", "drop", "empty", "backfill", "start", "restart"]
BY_HAND: Final = ("start", "restart")
"""Steps that are told and not done: no process is ours to start."""


class Unclear(PenstockError):
    """A wish does not fit what would change; the words say what was expected."""


class Stopped(PenstockError):
    """A step could not be done; the words say why, and what to do."""


@dataclass(frozen=True)
class Wishes:
    """What the files cannot say."""

    renames: Mapping[str, str] = field(default_factory=dict)
    """The new name of a list by its old one, where an output was renamed among several."""
    backfills: Mapping[str, str] = field(default_factory=dict)
    """By new subscriber's list, that of another one, whose messages it gets, too."""
    drain: bool = False
    """Wait until the lists of removed subscribers are empty."""
    drop: bool = False
    """Delete what is in them."""
    reload: bool = False
    """Have every service read its settings anew."""


@dataclass(frozen=True)
class Step:
    """One change. ``by`` is the namespace that it belongs to, ``writers`` are those who fill ``list``."""

    kind: Kind
    by: "Present"
    words: str
    list: Place | None = None
    to: Place | None = None
    """Where messages go."""
    messages: int | None = None
    """How many there are now."""
    writers: "tuple[Present, ...]" = ()
    refused: str = ""
    """Why it cannot be done, and what to do."""


@dataclass(frozen=True)
class Plan:
    """Steps in order; ``notes`` are written before the first, so that whoever is killed can be followed by another."""

    steps: tuple[Step, ...]
    notes: "tuple[tuple[Present, Mapping[str, str]], ...]" = ()
    """By namespace, the note of each list that is to be called otherwise, or is to be no output any more."""
    stale: "tuple[tuple[Present, str], ...]" = ()
    """Lists whose notes mean nothing any more."""

    @property
    def refused(self) -> list[Step]:
        return [step for step in self.steps if step.refused]

    @property
    def by_hand(self) -> list[Step]:
        return [step for step in self.steps if step.kind in BY_HAND]
