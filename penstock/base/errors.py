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


class Disconnected(PenstockError):
    """A connection is lost, and the call may be repeated over another one."""


class Unavailable(PenstockError):
    """The server was away, full or read-only for longer than the caller was willing to wait."""


class Unconfirmed(PenstockError):
    """The connection was lost after a command was sent: the server may have executed it or not."""


class Gone(PenstockError):
    """The queue was closed, or has expired: its messages are gone."""


class Moving(PenstockError):
    """The queue is being moved to another server: its clients wait and follow."""


class Full(PenstockError):
    """The queue holds as many messages as its maxsize allows; ``ids`` are those of the messages before this one."""

    def __init__(self, message: str, ids: "list[int] | None" = None) -> None:
        super().__init__(message)
        self.ids = ids or []


class Occupied(PenstockError):
    """Another consumer has the queue for itself."""


class Unreadable(PenstockError):
    """What a key or a message holds is not what the caller declared; the message says what it is."""


class RequestTimeout(PenstockError):
    """No answer to a request came in time."""


class RequestFailed(PenstockError):
    """The provider of a service answered with an error: ``error``, as it came (of an exception, a dict)."""

    def __init__(self, error: object) -> None:
        text = error.get("message") if isinstance(error, dict) else error
        super().__init__(str(text))
        self.error = error


class Unauthorized(PenstockError):
    """A server refuses the login or a command, or the gateway of another site the secret or what was asked."""


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


class Forgotten(PenstockError):
    """The data keys of an owner were deleted for good: nothing of it can be opened, and nothing is sealed for it."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"the owner {owner!r} was forgotten: its data keys are deleted for good")
        self.owner = owner


class Unopenable(PenstockError):
    """A sealed message was changed, or was sealed for another owner, queue or task, or its data key is unknown."""


class WrongMasterKey(PenstockError):
    """The master key does not unwrap a data key; the message says which, and shows nothing of either."""
