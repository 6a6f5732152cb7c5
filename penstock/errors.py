"""Everything that Penstock itself raises."""

from dataclasses import dataclass


class PenstockError(Exception):
    """The root of the tree."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the settings, and where the operator wrote it."""

    message: str
    file: str | None = None
    line: int | None = None
    property: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return ": ".join(part for part in (place, self.property, self.message) if part)


class SettingsError(PenstockError):
    """Settings that cannot be used; ``problems`` names all that is wrong with them, not the first thing only."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class WrongType(PenstockError):
    """A key holds another type than the pattern needs; nothing was moved. The operator can mend it at any time."""


class WrongCall(PenstockError):
    """A mistake in a service's code, e.g. a script called with other names than its header declares."""


class WrongOption(PenstockError):
    """An option of a source or sink of Spark that cannot be used; says what was expected."""


class Fenced(PenstockError):
    """Another instance holds the lease with a newer token; nothing was moved."""


class Stale(PenstockError):
    """A worker speaks of an attempt that is over, while a younger one is under way."""


class Refused(PenstockError):
    """The other server does not want what it was sent; an operator can mend that at any time."""


class TargetLost(PenstockError):
    """The other server has less than had arrived there."""


class DataLost(PenstockError):
    """What was to be read is not there any more; says what, and what the operator can decide."""


class NoArchive(PenstockError):
    """Where an archive of events was expected there is none; says where."""


class QueryFailed(PenstockError):
    """A query of Spark has ended by itself, for a reason that waiting does not mend."""


class Unsuitable(PenstockError):
    """The server cannot do what the settings ask for, e.g. it is too old."""


class TooMany(PenstockError):
    """More keys than can be read at one instant without holding the server for long."""
