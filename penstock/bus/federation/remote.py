"""An object of another site: its channel, the calls to it, and what is done again once the channel is open again."""

import asyncio
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from penstock.base import errors
from penstock.base.errors import PenstockError, Refused, Unauthorized, Unavailable, Unconfirmed, Unsuitable, WrongCall
from penstock.base.log import Log
from penstock.bus.events import Emitter
from penstock.bus.federation.frames import (
    AGAIN,
    METHODS,
    MORE,
    READY,
    Lines,
    call_line,
    dumped,
    loaded,
    methods_line,
    parsed_event,
)
from penstock.bus.federation.site import MAX_FRAME, Site, Socket
from penstock.bus.federation.websocket import HEAD_BYTES
from penstock.bus.host import Host
from penstock.core.link import Outage, again

_FROM_TEXT: Final = frozenset(
    {errors.Full, errors.Gone, errors.Occupied, errors.Fenced, Unavailable, Unauthorized, Unconfirmed, WrongCall}
)
"""Classes whose only argument is their text."""
FIRST_CALL: Final = 1_000
"""Callbacks below are those of events."""
Answer = asyncio.Future[list[Any]]
REOPEN_SECONDS: Final = 1.0
"""Seconds after which a channel that the other end has closed is opened again."""
_log: Final = Log("penstock.bus")


class Lost(PenstockError):
    """The channel ended before the answer to a call."""


class Silent(Unavailable):
    """The other site did not answer a call within the bus's patience."""


def error_of(found: Any) -> PenstockError:
    """Return the exception that the other end names: of its class, if that is one of ours."""
    if isinstance(found, PenstockError):
        return found
    name, _, text = str(found).partition(": ")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, PenstockError) and kind in _FROM_TEXT:
        return kind(text)
    return Refused(str(found))


class _Call(NamedTuple):
    answer: Answer
    begun: float
    expiry: asyncio.TimerHandle | None


class Calls:
    """``send(method, values, callback)`` sends a call; one that is not answered for ``seconds`` fails (``Silent``)."""

    def __init__(
        self, name: str, seconds: float | None, send: Callable[[str, tuple[Any, ...], int | None], None]
    ) -> None:
        self._name, self._seconds, self._send = name, seconds, send
        self._calls: dict[int, _Call] = {}
        self._waits: list[tuple[str, Answer]] = []
        self._number = FIRST_CALL
        self.is_open = False
        """Whether an answer can come."""

    @property
    def overdue(self) -> float:
        """Return for how long (s) the oldest call was not answered; 0 if all were."""
        oldest = next(iter(self._calls.values()), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.begun

    def begin(self, method: str, *values: Any) -> Answer:
        """Send a call; the future has the arguments of its callback, or raises ``Lost`` or ``Silent``."""
        answer: Answer = asyncio.get_running_loop().create_future()
        if not self.is_open:
            answer.set_exception(Lost("not connected"))
            return answer
        self._number += 1
        try:
            self._send(method, values, self._number)
        except WrongCall as error:  # it is too large
            answer.set_exception(error)
        else:
            self._calls[self._number] = _Call(answer, time.monotonic(), self._expiry(answer, method, self._number))
        return answer

    async def request(self, method: str, *values: Any) -> Any:
        """Call a method; return what it gives its callback. Raise as ``begin`` does, and what the other end says."""
        error, *found = [*await self.begin(method, *values), None]
        if error is not None:
            raise error_of(error)
        return found[0] if found else None

    async def until(self, event: str, method: str, *values: Any) -> Any:
        """Call a method that has no callback, and return what ``event`` brings; ``error`` is raised."""
        answer: Answer = asyncio.get_running_loop().create_future()
        expiry, entry = self._expiry(answer, method), (event, answer)
        self._waits.append(entry)
        try:
            self._send(method, values, None)
            found = await answer
        finally:
            if expiry:
                expiry.cancel()
            if entry in self._waits:
                self._waits.remove(entry)
        return found[0] if found else None

    def answered(self, number: int, values: list[Any]) -> None:
        """Take the answer to the call of a ``number``."""
        if (call := self._calls.pop(number, None)) is None:
            return
        if call.expiry:
            call.expiry.cancel()
        if not call.answer.done():
            call.answer.set_result(values)

    def happened(self, event: str, values: list[Any]) -> None:
        """Take an event that some may wait for; all get ``error``."""
        for entry in [each for each in self._waits if event in (each[0], "error")]:
            self._waits.remove(entry)
            if entry[1].done():
                continue
            if event == "error":
                entry[1].set_exception(error_of(values[0] if values else ""))
            else:
                entry[1].set_result(values)

    def drop(self, reason: str) -> None:
        """Fail all of them, since no answer can come any more."""
        self.is_open = False
        calls, waits = [*self._calls.values()], [*self._waits]
        self._calls.clear()
        self._waits.clear()
        for call in calls:
            if call.expiry:
                call.expiry.cancel()
        for answer in (*(call.answer for call in calls), *(answer for _, answer in waits)):
            if not answer.done():
                answer.set_exception(Lost(reason))

    def _expiry(self, answer: Answer, method: str, number: int | None = None) -> asyncio.TimerHandle | None:
        if self._seconds is None:
            return None
        return asyncio.get_running_loop().call_later(self._seconds, partial(self._expire, answer, method, number))

    def _expire(self, answer: Answer, method: str, number: int | None) -> None:
        if number is not None:
            self._calls.pop(number, None)
        if not answer.done():
            answer.set_exception(Silent(f"{self._name}: no answer to {method} for {self._seconds:g} s (patience)"))


class Readiness:
    """That of one object at the site ``url``."""

    def __init__(self, bus: Host, url: str, refused: PenstockError | None) -> None:
        self._bus, self._url = bus, url
        self.refused = refused
        """Why the other site refuses the secret or the object; None if it does not."""
        self._event = asyncio.Event()
        self._waiting = 0

    @property
    def is_there(self) -> bool:
        """Return whether calls need not wait."""
        return self._event.is_set()

    def begin(self) -> None:
        """Let calls go on."""
        self.refused = None
        self._event.set()

    def end(self) -> None:
        """Have calls wait from now on."""
        self._event.clear()

    def refuse(self, error: PenstockError) -> None:
        """Raise ``error`` in the calls that wait, and in those to come."""
        self.refused = error
        self._event.set()
        self._event.clear()

    async def wait(self) -> None:
        """Wait for the other site. Raise why it refuses, or ``Unavailable`` if it stays away or too many calls wait."""
        if self.refused is not None:
            raise self.refused
        if self._waiting >= self._bus.buffer:
            raise Unavailable(f"{self._waiting:,} calls wait for {self._url} already (buffer)")
        self._waiting += 1
        try:
            async with self._bus.bounded(lambda: f"{self._url} is away"):
                while not self.is_there:
                    if self.refused is not None:
                        raise self.refused
                    await self._event.wait()
        finally:
            self._waiting -= 1


class Remote(Emitter):
    """One object of another site. ``EVENTS`` of each are those of the local object and of ``FEDERATION``."""

    FEDERATION: ClassVar = frozenset({"ready", "unauthorized", "reconnecting", "reconnected", "close", "error"})
    TYPE: ClassVar[str]
    HEARD: ClassVar[tuple[str, ...]]
    """The events of the other end's object that are listened to; ``error`` is the first."""

    def __init__(self, bus: Host, site: Site, args: list[Any]) -> None:
        super().__init__()
        self._bus, self._args = bus, args
        self.site = site
        self.channel = b""
        self.has_more = False
        """Whether the other end is a gateway of Penstock."""
        self._session = secrets.token_hex(16)
        self._lines = Lines(MAX_FRAME)
        self._link: Socket = site.link
        self.calls = Calls(str(self), bus.patience, self._send_call)
        self._readiness = Readiness(bus, site.url, site.refused)
        self._was_ready = self._left = False
        self._replaying: asyncio.Task[None] | None = None
        self._link.open_channel(self)
        bus.ends_with(self)
        if site.refused is not None:
            asyncio.get_running_loop().call_soon(self.note_refused, site.refused)

    def __str__(self) -> str:
        return f"{self.TYPE} {self._args[0]}"

    @property
    def bus(self) -> Host:
        """Return the bus that federates the object."""
        return self._bus

    @property
    def max_frame(self) -> int:
        """Return the most bytes of a call that the other end takes."""
        return self._link.max_frame

    @property
    def is_ready(self) -> bool:
        """Return whether the other site is there, and has the object as it should be."""
        return self._readiness.is_there

    @property
    def is_refused(self) -> bool:
        """Return whether the other site refuses the secret, or this object."""
        return self._readiness.refused is not None

    async def wait_ready(self) -> None:
        """Wait for the other site. Raise ``Unavailable`` if it stays away, ``Unauthorized`` if it refuses."""
        if self._readiness.is_there:
            return
        if self._left and not self.is_refused:
            raise WrongCall(f"{self}: it was left")
        await self._readiness.wait()

    async def call(self, method: str, *values: Any) -> Any:
        """Call a method of the other end's object, and return what it gives its callback.

        If the websocket is lost before the answer, call it again if it is in ``AGAIN``, else raise ``Unconfirmed``.
        """
        while True:
            await self.wait_ready()
            try:
                return await self.calls.request(method, *values)
            except (Lost, Silent) as error:
                if not self._may_repeat(method):
                    raise _unconfirmed(method, error) from None
                if isinstance(error, Silent):
                    raise

    async def cause(self, event: str, method: str, *values: Any) -> Any:
        """Call a method that opens something, and has no callback in Node; return what ``event`` brings.

        Call it again if the websocket is lost.
        """
        while True:
            await self.wait_ready()
            try:
                return await self.until(event, method, *values)
            except Lost:
                continue

    async def end_with(self, event: str, method: str, forget: Callable[[], Callable[[], None]]) -> None:
        """Call a method that ends what ``replay`` would open again, once; ``event`` says that it has ended.

        ``forget`` has the replay open it no more, and returns what undoes that, if the call has failed at the other
        end. With the websocket the other end has left it, too. So if that is lost before the answer, raise
        ``Unconfirmed`` only if the method does more than leave.
        """
        await self.wait_ready()
        restore = forget()
        try:
            await self.until(event, method)
        except Lost as error:
            if not self._may_repeat(method):
                raise _unconfirmed(method, error) from None
        except Silent as error:
            restore()
            raise error if self._may_repeat(method) else _unconfirmed(method, error) from None
        except PenstockError:
            restore()
            raise

    async def until(self, event: str, method: str, *values: Any) -> Any:
        """As ``cause``, once, now that the other site is there: raise ``Lost`` if the websocket is lost."""
        if self.has_more:
            return await self.calls.request(method, *values)
        return await self.calls.until(event, method, *values)

    def send_call(self, method: str, *values: Any) -> None:
        """Call a method whose answer nobody waits for."""
        self._send_call(method, values, None)

    async def leave(self) -> None:
        """Use it no more: the other end detaches, and gives back what was not handled."""
        if self._left:
            return
        self._left = True
        self._bus.ended(self)
        self._link.close_channel(self)
        self._drop("it was left")
        self.emit("close")

    def note_open(self, has_more: bool) -> None:
        """Create the object at the other end of a websocket that has just been opened."""
        self.calls.is_open, self.has_more = False, has_more
        self._lines = Lines(MAX_FRAME)
        names = [*METHODS[self.TYPE], *MORE.get(self.TYPE, ())]
        message = {"type": self.TYPE, "methods": names, "args": self._args, "session": self._session}
        self._link.send_alone(self.channel, dumped(message))

    def received(self, data: bytes) -> None:
        """Take what came on the channel."""
        if not self.calls.is_open:
            if data == READY:
                self.calls.is_open = True
                self._link.send(self.channel, methods_line([]))
                for place, event in enumerate(self.heard):
                    self._send_call("on", (event,), place)
                self._replaying = self._bus.spawn(self._replay_all())
            else:
                self._refuse(data)
            return
        try:
            for row in self._lines.feed(data):
                if (found := parsed_event(row)) is not None:
                    self._called(*found)
        except (ValueError, TypeError, LookupError) as error:
            _log.warning("unreadable answer", object=str(self), reason=str(error))

    def note_lost(self, reason: str) -> None:
        """Note that the websocket has ended: it will be opened again."""
        was_ready = self.is_ready
        self._drop(reason)
        if was_ready and not self._left:
            self.emit("reconnecting", reason)

    def note_closed_channel(self) -> None:
        """Note that the other end has closed the channel: open another one a little later."""
        self.note_lost("the other end closed the channel")

        def reopen() -> None:
            if not self._left:
                self._link.open_channel(self)

        asyncio.get_running_loop().call_later(REOPEN_SECONDS, reopen)

    def note_refused(self, error: Unauthorized) -> None:
        """Note that the other end refuses the secret: nothing will come of it."""
        self._readiness.refuse(error)
        self.emit("unauthorized")

    @property
    def is_left(self) -> bool:
        """Return whether the object was let go."""
        return self._left

    @property
    def heard(self) -> tuple[str, ...]:
        """Return the events to listen to, of which the first is ``error``: without it Node's server may end."""
        return self.HEARD

    async def replay(self) -> None:
        """Bring the other end's object into the state that the user wants; do nothing about what is so already."""

    def happened(self, event: str, values: list[Any]) -> None:
        """Take an event of the other end's object."""
        if event == "error":
            self.emit("error", error_of(values[0] if values else ""))
        elif event in self.EVENTS:
            self.emit(event, *values)

    def dropped(self) -> None:
        """Forget what came over the websocket that was lost."""

    def _may_repeat(self, method: str) -> bool:
        return method in AGAIN[self.TYPE]

    def _send_call(self, method: str, values: tuple[Any, ...], callback: int | None = None) -> None:
        line = call_line(method, values, callback)
        if len(line) > (most := self.max_frame - HEAD_BYTES):  # the other end would end the websocket
            size = f"{method} of {len(line):,} bytes, where {self.site.url} takes {most:,}"
            raise WrongCall(f"{self}: {size}: send less, or raise the gateway's maxFrame")
        self._link.send(self.channel, line)

    def _called(self, number: int, values: list[Any]) -> None:
        if number >= FIRST_CALL:
            self.calls.answered(number, values)
        elif 0 <= number < len(self.heard):
            event = self.heard[number]
            self.calls.happened(event, values)
            self.happened(event, values)

    async def _replay_all(self) -> None:
        """Bring it into the state that is wanted, until it is; let calls go on after the first attempt."""
        outage = Outage(_log, "not as before after a reconnect", "as before after a reconnect", object=str(self))
        try:
            await again(self.replay, outage, lasts=_is_final, mend=self._note_failure)
        except Lost:
            return
        except PenstockError as error:
            outage.begins(error)
            await self._note_failure(error, True)
        self._begin()

    async def _note_failure(self, error: Exception, is_news: bool) -> None:
        if is_news:
            self.emit("error", error)
        self._begin()

    def _begin(self) -> None:
        if not self._readiness.is_there:
            was_ready, self._was_ready = self._was_ready, True
            self._readiness.begin()
            self.emit("reconnected" if was_ready else "ready")

    def _refuse(self, data: bytes) -> None:
        """Note why the other end does not create the object; it closes the channel, and is asked again."""
        known = self.is_refused
        try:
            refused = error_of(loaded(data)["error"])
        except (ValueError, TypeError, LookupError):
            refused = Refused(f"{self.site.url} does not create {self}")
        self._readiness.refuse(refused)
        if known:
            return
        _log.warning("refused", object=str(self), url=self.site.url, reason=str(refused))
        if isinstance(refused, Unauthorized):
            self.emit("unauthorized")
        else:
            self.emit("error", refused)

    def _drop(self, reason: str) -> None:
        if self._replaying:
            self._replaying.cancel()
        self._readiness.end()
        self.calls.drop(reason)
        self.dropped()


def _is_final(error: Exception) -> bool:
    """Return True if a replay is not repeated: one follows on the next websocket, or it would be refused again."""
    return isinstance(error, Lost | Unauthorized | WrongCall | Unsuitable) or not isinstance(error, PenstockError)


def _unconfirmed(method: str, reason: PenstockError) -> Unconfirmed:
    return Unconfirmed(f"{method}: it may have been executed or not: {reason}")
