"""All exceptions that Penstock raises."""

from dataclasses import dataclass


class PenstockError(Exception):
    """Base class of all exceptions of Penstock."""


@dataclass(frozen=True)
class Problem:
    """A problem of the settings, and where the operator wrote it."""

    message: str
    file: str | None = None
    line: int | None = None
    property: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return ": ".join(part for part in (place, self.property, self.message) if part)


class SettingsError(PenstockError):
    """Invalid settings; ``problems`` lists all of their problems, not only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class WrongType(PenstockError):
    """A key has the wrong type; nothing was moved. An operator can repair it at any time."""


class WrongCall(PenstockError):
    """A bug in a service, e.g. a script called with names that its header does not declare."""


class WrongOption(PenstockError):
    """An invalid option of a Spark source or sink; the message says what was expected."""


class Fenced(PenstockError):
    """Another instance holds the lease with a newer token; nothing was moved."""


class Stale(PenstockError):
    """A worker reports on an attempt that has ended; a later one is under way."""


class Refused(PenstockError):
    """The target server refuses what it was sent; an operator can repair that at any time."""


class NotDurable(PenstockError):
    """The batch was settled, but the server did not confirm in time that disk or replicas have it."""


class Unavailable(PenstockError):
    """The server was away, full or read-only for longer than the caller was willing to wait."""


class Unconfirmed(PenstockError):
    """The connection was lost after a command was sent: the server may have executed it or not."""


class TargetLost(PenstockError):
    """The target server has lost messages that had arrived there."""


class DataLost(PenstockError):
    """Data disappeared before it was read; the message says which, and what the operator can do."""


class NoArchive(PenstockError):
    """There is no archive of events at the path; the message names it."""


class QueryFailed(PenstockError):
    """A Spark query has ended by itself, and waiting does not help."""


class Unsuitable(PenstockError):
    """The server does not support what the settings require, e.g. it is too old."""


class TooMany(PenstockError):
    """More keys than one atomic read may have without blocking the server for long."""
