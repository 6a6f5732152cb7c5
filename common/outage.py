"""Outages that pass by themselves: logged once when they begin, and once, with their length, when they are over."""

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
    if isinstance(error, PASSING) or not isinstance(error, ResponseError) or isinstance(error, NoPermissionError):
        return isinstance(error, PASSING)
    return bool(PASSING_WORDS.search(str(error))) or not LASTING_WORDS.search(str(error))


def is_full(reply: object) -> bool:
    """Return True if the server refused something as its memory is full; of a script Redis 6.2 says so in words."""
    return isinstance(reply, OutOfMemoryError) or (isinstance(reply, ResponseError) and "OOM" in str(reply))


def describe(error: Exception) -> str:
    """Return one line that says what is wrong."""
    if isinstance(error, AskError):
        return f"slot {error.slot_id} of the cluster is at {error.host}:{error.port}"
    if isinstance(error, InvalidResponse):
        return f"what answers does not speak Redis's protocol, as a proxy that speaks HTTP: {error}"
    return str(error) or type(error).__name__


class Outage:
    """One outage at a time; each reason is logged once. All lost connections to a server are one reason."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._since: float | None = None
        self._logged: set[str] = set()
        self.reason: str | None = None
        """What the service waits for; None while nothing is wrong."""
        self.failures = 0
        self.server_is_full = False

    def begins(self, error: Exception) -> bool:
        """Note ``error``; return True if its reason was not logged yet."""
        self.failures += 1
        self.reason = describe(error)
        if self._since is None:
            self._since = time.monotonic()
        reason = _kind(error)
        if reason in self._logged:
            return False
        self._logged.add(reason)
        self._log.warning("waiting", reason=describe(error))
        return True

    def full_server(self, error: Exception) -> None:
        """Note ``error``. The outage lasts until ``has_room``, though scripts that take no memory run."""
        self.server_is_full = True
        self.begins(error)

    def has_room(self) -> None:
        """Note that the server accepts again what it refused while its memory was full."""
        if self.server_is_full:
            self.server_is_full = False
            self.over()

    def over(self) -> None:
        if self._since is not None and not self.server_is_full:
            self._log.info("resumed", after=round(time.monotonic() - self._since, 3))
            self._since, self.reason, self.failures = None, None, 0
            self._logged.clear()


def _kind(error: Exception) -> str:
    """Return one word for all errors with one reason: lost connections differ from one attempt to the next."""
    if isinstance(error, Refused | WrongType):
        return describe(error)
    return f"{OTHER_SERVER if str(error).startswith(OTHER_SERVER) else ''}{type(error).__name__}"
