"""Tell errors that pass by themselves, such as a server that is away, from those that last."""

import re
from typing import Final

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterError,
    ConnectionError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from penstock.base.errors import NotDurable, Refused, WrongType

PASSING: Final = (
    ConnectionError,
    TimeoutError,
    ClusterError,
    AskError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
    InvalidResponse,
    NotDurable,
    Refused,
    WrongType,
)
LASTING: Final = NoPermissionError, ClusterCrossSlotError
"""Of these redis-py cuts off the word."""
PASSING_WORDS: Final = re.compile(
    r"(?:^|caused error: \W*|@user_script: ?\d+: \W*)(?:BUSY|MISCONF|NOREPLICAS|UNBLOCKED|OOM|READONLY|WRONGTYPE)"
)
"""Matches errors that pass by themselves, behind the prefix of a pipeline of redis-py, or of a script of Redis 6.2."""
LASTING_WORDS: Final = re.compile(
    r"NOPERM|no permission|can't (?:run|access)|CROSSSLOT|same slot|cluster node|NOSCRIPT|NOPROTO"
    r"|unknown (?:sub)?command|wrong number of arg|syntax error|[Ee]rror (?:compiling|running) script|user_script"
    r"|not allowed|not an? |invalid|out of range|must be"
)
"""What a server says of a call that is wrong, or that it will never allow. Any other word may be a proxy's."""


def first_of(error: Exception) -> Exception:
    """Return the error that ended a group of tasks: those that share a server all raise the same."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def passes(error: Exception, *, was_connected: bool = False) -> bool:
    """Return True if waiting mends ``error``: the server is away, full or failing over, or an operator mends a key.

    What a proxy answers while its server is away passes, too. A refused login ends a service, unless it
    ``was_connected`` with a login before: then its password is being changed.
    """
    error = first_of(error)
    if isinstance(error, AuthenticationError):
        return was_connected
    if isinstance(error, PASSING) or not isinstance(error, ResponseError) or isinstance(error, LASTING):
        return isinstance(error, PASSING)
    return bool(PASSING_WORDS.search(str(error))) or not LASTING_WORDS.search(str(error))


def is_full(reply: object) -> bool:
    """Return True if the server refused something as its memory is full; of a script Redis 6.2 says so in words."""
    return isinstance(reply, OutOfMemoryError) or (isinstance(reply, ResponseError) and "OOM" in str(reply))


def is_of_script(error: Exception) -> bool:
    """Return True if a script failed by a fault of its own, perhaps with one message; not for a missing right."""
    text = str(error)
    of_server = not isinstance(error, ResponseError) or isinstance(error, NoPermissionError) or "permission" in text
    return not of_server and "user_script" in text and not passes(error, was_connected=True)
