"""An object of the bus that a peer uses through a channel of its websocket: its calls, and the events that it gets."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, Protocol

import structlog
from redis.exceptions import RedisError

from penstock.base.errors import PenstockError, Refused, Unauthorized, WrongCall
from penstock.bus import Bus
from penstock.bus.events import Emitter
from penstock.bus.federation.frames import VERSION, Call, event_line, parsed_call
from penstock.bus.federation.site import MAX_FRAME
from penstock.bus.federation.websocket import HEAD_BYTES
from penstock.core.objects import Row
from penstock.core.tasks import begin
from services.gateway.access import Access
from services.gateway.settings import Settings
from services.gateway.window import Window

MAX_LISTENERS: Final = 100
"""Maximum number of listeners of one object."""
MAX_LINE: Final = MAX_FRAME - HEAD_BYTES
"""Bytes of the longest answer."""
ANSWERED: Final = object()
"""What a method returns that answers its call itself."""
_log: Final = structlog.get_logger("penstock.gateway")


class NoSuchMethod(PenstockError):
    """A peer calls a method that its object does not have."""


class Gateway(Protocol):
    """The gateway, as its peers and their objects see it."""

    settings: Settings
    bus: Bus
    counters: Counter[str]

    @property
    def access(self) -> Access:
        """Return what peers may do."""

    def told(self, error: BaseException, **where: object) -> str:
        """Return what a peer hears of ``error``."""

    async def take_over(self, session: str, served: Any) -> None:
        """Let ``served`` go on with what a peer used on a former websocket."""

    def forget(self, session: str, served: Any) -> None:
        """Note that ``served`` has ended, which a peer might have gone on with."""


class Peer(Protocol):
    """The other end of a websocket, as its objects see it."""

    @property
    def gateway(self) -> Gateway:
        """Return the gateway."""

    def count(self, what: str, many: int = 1) -> None:
        """Add to a counter of the gateway."""

    def begins(self, calls: int, size: int) -> None:
        """Count calls, and their bytes, as under way."""

    def ends(self, calls: int, size: int) -> None:
        """Count them as ended."""

    def send(self, channel: bytes, line: bytes) -> None:
        """Send a line."""

    def confirm_by_ping(self, window: Window) -> None:
        """Have what was sent until now confirmed by the answer to a ping."""

    @property
    def has_room(self) -> bool:
        """Return whether the peer reads what is sent."""

    async def room(self) -> None:
        """Return once it does."""

    async def leave(self, served: Any) -> None:
        """End an object of it."""


class Served:
    """One object; a class for each type lists in ``methods`` what peers may call, and nothing else can be called.

    Calls are carried out in order, one after the other, but for those that ``immediate`` names: these begin in order,
    and do not wait for each other.
    """

    TYPE: ClassVar[str]
    ROWS: ClassVar[Mapping[str, Row]]
    """Its methods by their names on the wire."""
    immediate: ClassVar[frozenset[str]] = frozenset({"on", "once"})

    def __init__(self, peer: Peer, channel: bytes, name: str, names: list[str]) -> None:
        self.peer, self.channel, self.name, self.names = peer, channel, name, names
        self.is_closed = False
        self.session: str | None = None
        """By which the peer goes on with this object on another websocket."""
        self.methods: dict[str, Callable[..., Any]] = {"promisify": _nothing}
        self._listeners: dict[str, list[tuple[int, bool]]] = {}
        self._calls: deque[Call] = deque()
        self._worker: asyncio.Task[None] | None = None

    def take(self, rows: list[dict[str, Any]]) -> None:
        """Carry out the calls of some lines. Raise ``ValueError`` for what is no call."""
        for row in rows:
            call = parsed_call(row, self.names)
            if call is None:
                continue
            self.peer.count("calls")
            if call.method in self.immediate and not self._calls and self._worker is None:
                self._begin(call)
            else:
                self._calls.append(call)
                self.peer.begins(1, 0)
        if self._calls and self._worker is None:
            self._worker = begin(self._work(), _log)

    async def close(self) -> None:
        """End: nothing is sent any more, calls that wait are dropped, and the object is left."""
        self.is_closed = True
        if self.session:
            self.peer.gateway.forget(self.session, self)
        if self._worker:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self.peer.ends(len(self._calls), 0)
        self._calls.clear()
        try:
            await self.leave()
        except (PenstockError, RedisError, OSError) as error:
            _log.warning("not left in order", object=self.name, reason=str(error))

    async def leave(self) -> None:
        """Detach the object; give back what was not confirmed."""

    def relay(self, emitter: Emitter, events: dict[str, Callable[..., list[Any]]]) -> None:
        """Have the peer's listeners called with what each of ``events`` makes of the values, and with errors."""

        def relayed(event: str, values: Callable[..., list[Any]]) -> None:
            emitter.on(event, lambda *found: self.emit(event, values(*found)))

        for event, values in events.items():
            relayed(event, values)
        emitter.on("error", lambda error: self.emit("error", [self.told(error)]))

    def emit(self, event: str, values: list[Any]) -> None:
        """Call the peer's listeners of ``event``."""
        for callback in self.due(event):
            self.send(event_line(callback, values))

    def due(self, event: str) -> list[int]:
        """Return the callbacks of the listeners of ``event``; those of ``once`` are listeners no more."""
        found = self._listeners.get(event)
        if not found:
            return []
        callbacks = [callback for callback, _ in found]
        found[:] = [each for each in found if not each[1]]
        return callbacks

    def listens(self, event: str) -> bool:
        """Return whether the peer listens to ``event``."""
        return bool(self._listeners.get(event))

    def on(self, call: Call, *, once: bool = False) -> None:
        """Call the peer's callback at each event of that name, or at the next one only."""
        event = call.values[0] if call.values else None
        if not isinstance(event, str) or call.callback is None:
            raise WrongCall("on: expected the name of an event and a function")
        if sum(map(len, self._listeners.values())) >= MAX_LISTENERS:
            raise WrongCall(f"on: an object has at most {MAX_LISTENERS} listeners")
        self._listeners.setdefault(event, []).append((call.callback, once))

    def send(self, line: bytes) -> None:
        """Send a line, unless the channel is closed."""
        if not self.is_closed:
            self.peer.send(self.channel, line)

    def answer(self, call: Call, *values: Any) -> None:
        """Call the callback of ``call``, if it has one."""
        if call.callback is None:
            return
        line = event_line(call.callback, list(values))
        if len(line) > MAX_LINE:  # a client would end the websocket
            self.fail(
                call, Refused(f"{call.method}: the answer has {len(line):,} bytes, at most {MAX_LINE:,} are sent")
            )
        else:
            self.send(line)

    def fail(self, call: Call, error: BaseException) -> None:
        """Give the error to the callback, or to the listeners of ``error``."""
        self.peer.count("errors")
        text = self.told(error, call.method)
        if call.callback is not None:
            self.answer(call, text)
        else:
            self.emit("error", [text])

    def told(self, error: BaseException, method: str = "") -> str:
        """Return what a peer hears of ``error``: nothing that names a server behind the gateway, which is logged."""
        return self.peer.gateway.told(error, object=self.name, method=method)

    def name_of(self, call: Call) -> str:
        """Return what the method of a call is named in Python; one name on the wire may stand for several."""
        return self.ROWS[call.method].name if call.method in self.ROWS else call.method

    def check_allowed(self, call: Call) -> None:
        """Raise ``Unauthorized`` if peers may not call that."""
        if not self.peer.gateway.access.allows_method(self.TYPE, call.method, self.name_of(call)):
            raise Unauthorized(f"{self.TYPE}.{call.method} is not allowed here")

    def serve(self, thing: Any, work: Callable[[Callable[[], Any]], Any]) -> None:
        """Have peers call the plain methods of ``thing``; ``work`` runs each of them."""

        async def called(row: Row, call: Call) -> Any:
            values = row.taken(call.values)
            return row.gives.sent(await work(partial(getattr(thing, row.name), *values)))

        for wire, row in self.ROWS.items():
            if row.facts.plain:
                self.methods[wire] = partial(called, row)

    def _begin(self, call: Call) -> Awaitable[Any] | None:
        """Begin a call; return what is to be awaited for its result, None if that is taken care of."""
        try:
            if call.method in ("on", "once"):
                self.on(call, once=call.method == "once")
                return None
            if call.method not in self.methods:
                raise NoSuchMethod(f"there is no method {call.method[:100]!r}: this is version {VERSION} of a gateway")
            self.check_allowed(call)
            waits: Awaitable[Any] | None = self.methods[call.method](call)
        except Exception as error:  # noqa: BLE001  # of what the peer sent: the peer gets it
            self._failed(call, error)
            return None
        return waits

    async def _work(self) -> None:
        try:
            while self._calls:
                if not self.peer.has_room:
                    await self.peer.room()
                call = self._calls.popleft()
                try:
                    if (waits := self._begin(call)) is not None and (value := await waits) is not ANSWERED:
                        self.answer(call, None, value)
                except Exception as error:  # noqa: BLE001  # of what the peer sent: the peer gets it
                    self._failed(call, error)
                finally:
                    self.peer.ends(1, 0)
        finally:
            self._worker = None

    def _failed(self, call: Call, error: Exception) -> None:
        if not isinstance(error, PenstockError | RedisError | TypeError | ValueError | LookupError):
            _log.error("call failed", object=self.name, method=call.method, exc_info=error)
        self.fail(call, error)


def _nothing(_: Call) -> None:
    return None


def options_of(call: Call, place: int, known: dict[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """Return the options at ``place`` of a call that ``known`` names. Raise ``WrongCall`` if one is of another type."""
    given = call.values[place] if len(call.values) > place else None
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise WrongCall(f"{call.method}: expected an object with options")
    found = {name: value for name, value in given.items() if name in known and value is not None}
    for name, value in found.items():
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
            raise WrongCall(f"{call.method}: {name}: expected {known[name]}")
    return found


def text_at(call: Call, place: int, what: str) -> str:
    """Return a text among the arguments of a call. Raise ``WrongCall`` if there is none."""
    value = call.values[place] if len(call.values) > place else None
    if not isinstance(value, str):
        raise WrongCall(f"{call.method}: expected {what}")
    return value
