"""Trouble that passes by itself: told once when it begins and once, with its length, when it is over."""

import re
import time
from typing import Final

from redis.exceptions import (
    AskError,
    AuthenticationError,
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
from structlog.typing import FilteringBoundLogger

from common.durability import NotDurable
from penstock.connection import OTHER_SERVER
from penstock.errors import Refused, WrongType

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
PASSING_WORDS: Final = re.compile(
    r"(?:^|caused error: \W*|@user_script: ?\d+: \W*)(?:BUSY|MISCONF|NOREPLICAS|UNBLOCKED|OOM|READONLY|WRONGTYPE)"
)
"""How errors begin that waiting mends, behind what the client says of a pipeline, and Redis 6.2 of a script."""
LASTING_WORDS: Final = re.compile(
    r"NOPERM|no permission|can't (?:run|access)|CROSSSLOT|NOSCRIPT|NOPROTO|unknown (?:sub)?command|wrong number of arg"
    r"|syntax error|[Ee]rror (?:compiling|running) script|user_script|not allowed|not an? |invalid|out of range|must be"
)
"""What a server says of a call that is wrong, or that it will never allow. Any other word may be a proxy's."""


def first_of(error: Exception) -> Exception:
    """The error that ended a group of tasks; of tasks that share a server they all say the same."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def passes(error: Exception, *, was_in: bool = False) -> bool:
    """Whether waiting mends it: the server is away, full, failing over, or an operator has to mend a key.

    So does what a proxy says while the server behind it is away. A login that is refused ends a service that never
    ``was_in``; one that was has had the right password, or has it again soon.
    """
    error = first_of(error)
    if isinstance(error, AuthenticationError):
        return was_in
    if isinstance(error, PASSING) or not isinstance(error, ResponseError) or isinstance(error, NoPermissionError):
        return isinstance(error, PASSING)
    return bool(PASSING_WORDS.search(str(error))) or not LASTING_WORDS.search(str(error))


def is_full(reply: object) -> bool:
    """Whether the server has refused something since its memory is full; Redis 6.2 says so of a script in words."""
    return isinstance(reply, OutOfMemoryError) or (isinstance(reply, ResponseError) and "OOM" in str(reply))


def told(error: Exception) -> str:
    """One line of what is wrong."""
    if isinstance(error, AskError):
        return f"slot {error.slot_id} of the cluster is at {error.host}:{error.port}"
    if isinstance(error, InvalidResponse):
        return f"what answers does not speak Redis's protocol, as a proxy that speaks HTTP: {error}"
    return str(error) or type(error).__name__


class Trouble:
    """At most one at a time; each reason is told once. Of lost connections those to one server are one reason."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._since: float | None = None
        self._told: set[str] = set()
        self.reason: str | None = None
        """What is waited for; None while nothing is wrong."""
        self.failures = 0
        self.server_is_full = False

    def begins(self, error: Exception) -> bool:
        """Note it; True where it had not been told yet."""
        self.failures += 1
        self.reason = told(error)
        if self._since is None:
            self._since = time.monotonic()
        reason = _kind(error)
        if reason in self._told:
            return False
        self._told.add(reason)
        self._log.warning("waiting", reason=told(error))
        return True

    def full_server(self, error: Exception) -> None:
        """Note it. It is not over until ``has_room``, though scripts that take no memory run."""
        self.server_is_full = True
        self.begins(error)

    def has_room(self) -> None:
        """Note that the server takes again what it has refused since its memory was full."""
        if self.server_is_full:
            self.server_is_full = False
            self.over()

    def over(self) -> None:
        if self._since is not None and not self.server_is_full:
            self._log.info("resumed", after=round(time.monotonic() - self._since, 3))
            self._since, self.reason, self.failures = None, None, 0
            self._told.clear()


def _kind(error: Exception) -> str:
    """The same for what is one reason: the words of a lost connection differ from one attempt to the next."""
    if isinstance(error, Refused | WrongType):
        return told(error)
    return f"{OTHER_SERVER if str(error).startswith(OTHER_SERVER) else ''}{type(error).__name__}"
