"""Outages that pass by themselves: logged once when they begin, and once, with their length, when they are over."""

import re
import time
from typing import Final

from redis.exceptions import AskError, InvalidResponse, ReadOnlyError
from structlog.typing import FilteringBoundLogger

from penstock.base.errors import Refused, WrongType
from penstock.core.connection import OTHER_SERVER

IN_SCRIPT: Final = re.compile(r" *script: [0-9a-f]{40}, on @user_script:\d+\.?$")
"""What Redis 7 adds to an error within a script: it tells an operator nothing, and makes one reason several."""


def describe(error: Exception) -> str:
    """Return one line that says what is wrong."""
    if isinstance(error, AskError):
        return f"slot {error.slot_id} of the cluster is at {error.host}:{error.port}"
    if isinstance(error, InvalidResponse):
        return f"what answers does not speak Redis's protocol, as a proxy that speaks HTTP: {error}"
    return IN_SCRIPT.sub("", str(error)) or type(error).__name__


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
    if str(error).startswith("UNBLOCKED"):  # the server has become a replica, and says so from the next command on
        return ReadOnlyError.__name__
    return f"{OTHER_SERVER if str(error).startswith(OTHER_SERVER) else ''}{type(error).__name__}"
