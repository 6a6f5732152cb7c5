"""The steps of a plan, and the options and errors of ``penstock plan`` and ``penstock apply``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from penstock.base.errors import PenstockError
from penstock.base.shape import Place

if TYPE_CHECKING:
    from penstock.composition.rollout.current import CurrentState

Kind = Literal["reload", "move", "drain", "drop", "empty", "backfill", "start", "restart"]
MANUAL_KINDS: Final = ("start", "restart")
"""Steps that the operator must do: penstock starts no processes."""


class InvalidOption(PenstockError):
    """An option does not fit the changes; the message says what was expected."""


class StepFailed(PenstockError):
    """A step could not be done; the message says why, and what to do."""


@dataclass(frozen=True)
class Options:
    """What the operator wants that the files cannot say."""

    renames: Mapping[str, str] = field(default_factory=dict)
    """New name by old name, for one of several outputs."""
    backfills: Mapping[str, str] = field(default_factory=dict)
    """By a new subscriber's list, the list whose messages are copied to it."""
    drain: bool = False
    """Wait until the lists of removed subscribers are empty."""
    drop: bool = False
    """Delete the messages in them."""
    reload: bool = False
    """Have every service reload its settings."""


@dataclass(frozen=True)
class Step:
    """One change of the namespace ``by``; ``writers`` are the services that fill ``list``."""

    kind: Kind
    by: "CurrentState"
    description: str
    list: Place | None = None
    to: Place | None = None
    """The list that messages go to."""
    messages: int | None = None
    """How many messages ``list`` holds now."""
    writers: "tuple[CurrentState, ...]" = ()
    begins: tuple[str, ...] = ()
    """Outputs that all instances begin to fill at one instant."""
    refused: str = ""
    """Why it cannot be done, and what to do; empty if it can."""


@dataclass(frozen=True)
class Plan:
    """Steps in order; ``notes`` are written before the first, so that a killed run can be continued."""

    steps: tuple[Step, ...]
    notes: "tuple[tuple[CurrentState, Mapping[str, str]], ...]" = ()
    """By namespace, the note of each list that is renamed or removed."""
    stale: "tuple[tuple[CurrentState, str], ...]" = ()
    """Lists whose notes are obsolete."""

    @property
    def refused(self) -> list[Step]:
        return [step for step in self.steps if step.refused]

    @property
    def manual(self) -> list[Step]:
        return [step for step in self.steps if step.kind in MANUAL_KINDS]
