"""Wait for servers: tell what an error means, log an outage once, and try again.

``fate`` tells what an error means, ``Outage`` what is logged of it, ``again`` repeats a call with longer and longer
pauses, and ``Link`` keeps something open. No other module waits after an error to try anew.
"""

import asyncio
import builtins
import errno
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterError,
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from penstock.base.errors import Disconnected, NotDurable, PenstockError, Refused, Unavailable, WrongType
from penstock.base.log import traceback_of
from penstock.core.backoff import Backoff

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from penstock.base.log import Log

BACKOFF: Final = Backoff((), 0.04, 1.0)
STABLE_SECONDS: Final = 1.0
"""What is lost sooner is opened again ever later, since it will be lost again."""
SILENT_LOSSES: Final = 3
"""Connections of one link that a proxy may end one after the other, as they were idle, without a line in the log."""
OTHER_SERVER: Final = "the other server: "
"""Prefix of an error of the target server, not of the server of the service's own lists."""
T = TypeVar("T")


class Fate(Enum):
    """What an error means for a connection, and for the call that met it."""

    GONE = "the connection is lost: open another one, and call again"
    ELSEWHERE = "the server is no longer the one: close all connections to it, and find the address anew"
    WAITS = "the connection is well, and the call passes later: the memory is full, a key has the wrong type"
    REFUSED = "it will not pass by itself: a right is missing, or the call is wrong"
    BUG = "nobody expected it"


WAITING: Final = (
    ClusterError,
    AskError,
    OutOfMemoryError,
    TryAgainError,
    InvalidResponse,
    NotDurable,
    Refused,
    WrongType,
)
LASTING: Final = NoPermissionError, ClusterCrossSlotError
"""Of these redis-py cuts off the word."""
LOST: Final = ConnectionError, TimeoutError, OSError, EOFError, Disconnected
_PREFIX: Final = r"(?:^|caused error: \W*|@user_script: ?\d+: \W*)"
"""Of a pipeline of redis-py, or of a script of Redis 6.2."""
ELSEWHERE_WORDS: Final = re.compile(f"{_PREFIX}(?:UNBLOCKED|READONLY|MASTERDOWN|LOADING|MOVED)")
WAITING_WORDS: Final = re.compile(f"{_PREFIX}(?:BUSY|MISCONF|NOREPLICAS|OOM|WRONGTYPE)")
LASTING_WORDS: Final = re.compile(
    r"NOPERM|no permission|can't (?:run|access)|CROSSSLOT|same slot|cluster node|NOSCRIPT|NOPROTO"
    r"|unknown (?:sub)?command|wrong number of arg|syntax error|[Ee]rror (?:compiling|running) script|user_script"
    r"|not allowed|not an? |invalid|out of range|must be"
)
"""What a server says of a call that is wrong, or that it will never allow. Any other word may be a proxy's."""
IN_SCRIPT: Final = re.compile(r" *script: [0-9a-f]{40}, on @user_script:\d+\.?$")
"""What Redis 7 adds to an error within a script: it tells an operator nothing, and makes one reason several."""


def first_of(error: Exception) -> Exception:
    """Return the error that ended a group of tasks: those that share a server all raise the same."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def fate(error: Exception, *, was_open: bool = False) -> Fate:
    """Return what ``error`` means. A refused login passes if one ``was_open`` before: a password is being changed."""
    error = first_of(error)
    if isinstance(error, AuthenticationError):
        return Fate.ELSEWHERE if was_open else Fate.REFUSED
    if isinstance(error, ReadOnlyError | BusyLoadingError | MasterDownError | MovedError):
        return Fate.ELSEWHERE
    if isinstance(error, WAITING):
        return Fate.WAITS
    if isinstance(error, LASTING):
        return Fate.REFUSED
    if isinstance(error, LOST):
        return Fate.GONE
    if isinstance(error, ResponseError):
        return _fate_of(str(error))
    return Fate.REFUSED if isinstance(error, PenstockError) else Fate.BUG


def _fate_of(words: str) -> Fate:
    if ELSEWHERE_WORDS.search(words):
        return Fate.ELSEWHERE
    return Fate.REFUSED if not WAITING_WORDS.search(words) and LASTING_WORDS.search(words) else Fate.WAITS


def passes(error: Exception, *, was_connected: bool = False) -> bool:
    """Return True if waiting mends ``error`` of a server: it is away, full or failing over, or a key is mended.

    What a proxy answers while its server is away passes, too; an ``OSError`` does not, since it may be one of the disk.
    """
    error = first_of(error)
    found = fate(error, was_open=was_connected)
    return found in (Fate.GONE, Fate.ELSEWHERE, Fate.WAITS) and not isinstance(error, OSError | EOFError)


def lasts(error: Exception) -> bool:
    """Return True if waiting does not mend ``error``."""
    return fate(error) in (Fate.REFUSED, Fate.BUG)


def is_full(reply: object) -> bool:
    """Return True if the server refused something as its memory is full; of a script Redis 6.2 says so in words."""
    return isinstance(reply, OutOfMemoryError) or (isinstance(reply, ResponseError) and "OOM" in str(reply))


def is_of_script(error: Exception) -> bool:
    """Return True if a script failed by a fault of its own, perhaps with one message; not for a missing right."""
    text = str(error)
    of_server = not isinstance(error, ResponseError) or isinstance(error, NoPermissionError) or "permission" in text
    return not of_server and "user_script" in text and not passes(error, was_connected=True)


def describe(error: Exception) -> str:
    """Return one line that says what is wrong."""
    error = first_of(error)
    if isinstance(error, AskError):
        return f"slot {error.slot_id} of the cluster is at {error.host}:{error.port}"
    if isinstance(error, InvalidResponse):
        return f"what answers does not speak Redis's protocol, as a proxy that speaks HTTP: {error}"
    return IN_SCRIPT.sub("", str(error)) or type(error).__name__


def kind_of(error: Exception) -> str:
    """Return one word for all errors that are one reason: their texts differ from one attempt to the next."""
    error = first_of(error)
    prefix = OTHER_SERVER if str(error).startswith(OTHER_SERVER) else ""
    if isinstance(error, Refused | WrongType):
        return describe(error)
    found = fate(error, was_open=True)
    if found is Fate.GONE:
        return f"{prefix}{next(_causes(error), 'lost' if type(error) in (*LOST, LostReply) else type(error).__name__)}"
    is_replica = found is Fate.ELSEWHERE and not isinstance(error, AuthenticationError | BusyLoadingError | MovedError)
    return f"{prefix}{'replica' if is_replica else type(error).__name__}"


def _causes(error: BaseException | None) -> Iterator[str]:
    """Yield what the operating system or TLS says in the chain of ``error``."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ssl.SSLError):
            yield f"tls {getattr(error, 'reason', None)}"
        elif isinstance(error, socket.gaierror):
            yield "name"
        elif isinstance(error, TimeoutError | builtins.TimeoutError):
            yield "silent"
        elif isinstance(error, OSError) and error.errno is not None:
            yield "lost" if error.errno in (errno.ECONNRESET, errno.EPIPE) else errno.errorcode.get(error.errno, "lost")
        error = error.__cause__ or error.__context__


class LostReply(ConnectionError):
    """The connection was lost after a command was sent: the server may have executed it or not."""


class Outage:
    """What is logged of one outage at a time: each kind of reason once, and its length once it is over.

    A lost connection alone says nothing, since the reason is why no other one can be opened: a proxy that ends an idle
    one is no outage. ``facts`` are fields of each line.
    """

    def __init__(
        self,
        log: "Log | FilteringBoundLogger | None",
        away: str = "waiting",
        back: str = "resumed",
        **facts: Any,
    ) -> None:
        self._log, self._away, self._back, self._facts = log, away, back, facts
        self._since: float | None = None
        self._said = set[str]()
        self._unsaid = 1
        """How many lost connections say nothing."""
        self.reason: str | None = None
        """What is waited for; None while nothing is wrong."""
        self.failures = 0
        self.server_is_full = False

    def begins(self, error: Exception) -> bool:
        """Note ``error``; return True if that was said now, for its kind is new."""
        self.failures += 1
        self.reason = describe(error)
        if self._since is None:
            self._since = time.monotonic()
        kind = kind_of(error)
        if kind in self._said:
            return False
        if self._unsaid and kind.removeprefix(OTHER_SERVER) == "lost":
            self._unsaid -= 1
            return False
        self._said.add(kind)
        if self._log:
            more = {"exception": traceback_of(error)} if fate(error) is Fate.BUG else {}
            self._log.warning(self._away, **self._facts, reason=self.reason, **more)
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

    def over(self, unsaid: int = 1) -> None:
        """Note that nothing is waited for; say for how long it was, if anything was said.

        The next ``unsaid`` lost connections say nothing.
        """
        if self.server_is_full:
            return
        self._unsaid = unsaid
        if self._since is None:
            return
        if self._said and self._log:
            self._log.info(self._back, **self._facts, after=round(time.monotonic() - self._since, 3))
        self._since, self.reason, self.failures = None, None, 0
        self._said.clear()


class Pause(Exception):
    """A call failed by ``error``; the other end asks to wait ``seconds`` before the next one."""

    def __init__(self, error: Exception, seconds: float) -> None:
        super().__init__(str(error))
        self.error, self.seconds = error, seconds


async def rest(seconds: float, *until: asyncio.Event) -> None:
    """Sleep for ``seconds``, but not once one of the events is set."""
    if not until:
        await asyncio.sleep(seconds)
        return
    waits = [asyncio.ensure_future(event.wait()) for event in until]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


async def again(
    call: Callable[[], Awaitable[T]],
    outage: Outage,
    *,
    lasts: Callable[[Exception], bool] = lasts,
    mend: Callable[[Exception, bool], Awaitable[None]] | None = None,
    most: Callable[[], float] | float = inf,
    begun: float | None = None,
    until: asyncio.Event | None = None,
    backoff: Backoff = BACKOFF,
    ends_outage: bool = True,
    first: Exception | None = None,
) -> T:
    """Return what ``call`` does; call again, after longer and longer pauses, as long as it raises what passes.

    Raise what ``lasts``, and ``Unavailable`` after ``most`` seconds since ``begun`` (monotonic, now by default).
    ``mend`` is awaited after each failure, with whether it was said. ``until`` cuts a pause short: ``call`` looks at
    it. The pauses begin anew once the outage was over. ``first`` is the error of a call already made.
    """
    begun, failures = time.monotonic() if begun is None else begun, 0
    while True:
        error, first = first, None
        if error is None:
            try:
                result = await call()
            except Exception as failed:  # noqa: BLE001 - `lasts` decides which are raised
                error = failed
            else:
                if ends_outage:
                    outage.over()
                return result
        least = error.seconds if isinstance(error, Pause) else 0.0
        error = first_of(error.error if isinstance(error, Pause) else error)
        if lasts(error):
            raise error
        waited = time.monotonic() - begun
        if waited + least >= (most if isinstance(most, float | int) else most()):
            words = describe(error)
            raise Unavailable(f"waited {waited:.0f} s (patience): {words}" if failures else words) from error
        is_news = outage.begins(error)
        if mend:
            await mend(error, is_news)
        failures = failures + 1 if outage.failures > 1 else 1  # it may have been over meanwhile
        await rest(max(backoff.delay_after(failures), least), *([until] if until else []))


class Link:
    """Keeps something open from ``start`` to ``close``, by a task; who uses it says when it is ``lost``.

    ``opens`` opens what is not open; ``shut`` closes all of it, to find the address anew. ``look`` is awaited each
    ``every`` seconds while it is up, e.g. to ping and to cut what is silent. ``changed`` is called at once with None
    when it is up and with the error when it is not; what is logged comes later, and is ``outage``'s. An error that
    ``ends`` it is the last one.
    """

    def __init__(
        self,
        opens: Callable[[], Awaitable[object]],
        shut: Callable[[], Awaitable[object]],
        outage: Outage,
        *,
        within: float | None = None,
        look: Callable[[], Awaitable[object]] | None = None,
        every: float = inf,
        changed: Callable[[Exception | None], None] | None = None,
        ends: Callable[[Exception], bool] = lambda _: False,
        backoff: Backoff = BACKOFF,
        stable: float = STABLE_SECONDS,
    ) -> None:
        self._opens, self._shut, self.outage = opens, shut, outage
        self._within, self._look, self._every, self._changed = within, look, every, changed
        self._ends, self._backoff, self._stable_seconds = ends, backoff, stable
        self.is_up: bool | None = None
        """None until it was tried."""
        self.reason: Exception = ConnectionError("it was not reached yet")
        """Why it is not up."""
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open it, and open it again whenever it is lost."""
        self.is_up, self._up, self._down = None, asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._keep())

    async def close(self, why: Exception | None = None) -> None:
        """Shut it for good."""
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._shut()
        self._went(why or ConnectionError("it was closed"))

    def lost(self, error: Exception) -> None:
        """Note that it, or a part of it, was lost: to be called by who notices it, from any state."""
        self._down.set()
        self._went(error)

    async def wait_up(self, most: float) -> bool:
        """Wait until it is up, for ``most`` seconds at most; return whether it is."""
        with suppress(builtins.TimeoutError):
            async with asyncio.timeout(most):
                await self._up.wait()
        return self.is_up is True

    async def _keep(self) -> None:
        try:
            await again(
                self._live,
                self.outage,
                lasts=self._ends,
                mend=self._mend,
                backoff=self._backoff,
            )
        except Exception as error:  # noqa: BLE001 - one that ends it: who owns it hears so
            self._went(error)

    async def _live(self) -> None:
        """Open it, and wait until it is lost. Raise why."""
        self._down.clear()  # before: a part may be lost while another one is opened
        try:
            async with asyncio.timeout(self._within) as limit:
                await self._opens()
        except builtins.TimeoutError as error:
            raise TimeoutError("no reply while connecting") if limit.expired() else error from error
        if not self._down.is_set():
            self.is_up = True
            if self._changed:
                self._changed(None)
            self._up.set()
        begun, stable = time.monotonic(), False
        while not self._down.is_set():
            await rest(self._every if stable else min(self._every, self._stable_seconds), self._down)
            if not stable and not self._down.is_set() and time.monotonic() - begun >= self._stable_seconds:
                stable = True
                self.outage.over(SILENT_LOSSES)
            if self._look and not self._down.is_set():
                await self._look()
        raise self.reason

    async def _mend(self, error: Exception, is_news: bool) -> None:
        try:
            self._went(error)
            if fate(error, was_open=True) in (Fate.ELSEWHERE, Fate.BUG) or isinstance(error, TimeoutError):
                await self._shut()
        except Exception as slip:  # noqa: BLE001 - of who owns it: it is said, and opened again
            self.outage.begins(slip)

    def _went(self, error: Exception) -> None:
        self.reason = error
        self._up.clear()
        if self.is_up is not False:
            self.is_up = False
            if self._changed:
                self._changed(error)
