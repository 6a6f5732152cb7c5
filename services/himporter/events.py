"""Server-sent events: clients that listen to what becomes of accepted requests. One poll serves all of them."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from common.http.answers import Header
from common.http.direct import Exchange
from penstock.base.exact_json import as_json
from penstock.base.keys import Keys
from penstock.core.script import Script
from penstock.core.wire import Reply
from services.himporter.bridge import Bridge
from services.himporter.states import State, state_of, unknown

POLL_SECONDS: Final = 0.5
QUIET_POLLS: Final = 30
"""Polls without news after which a client gets a sign of life."""
MAX_NEWS: Final = 1_000
"""Maximum number of messages of one request that are read at a time."""
MAX_LISTS: Final = 100
"""Maximum number of lists that are read in one step."""
STREAM: Final[list[Header]] = [
    *((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")),
]
_news: Final = Script.read(Path(__file__).parent / "lua" / "news.lua")


class Events:
    """All clients of this process that listen."""

    def __init__(self, keys: Keys, bridge: Bridge) -> None:
        self._keys, self._bridge = keys, bridge
        self._listeners: list[Listener] = []
        self._reading: set[tuple[str, int]] = set()
        """What is being read: a second reader of the same waits for the next poll."""
        self._timer: asyncio.TimerHandle | None = None

    def listen(self, exchange: Exchange, id: str) -> None:
        """Answer with events until the request ``id`` is answered or cancelled; 404 if it is unknown."""
        listener = Listener(exchange, id, self._keys.response(id))
        if listener.place in self._reading:
            self._wait([listener])
        else:
            self._read([[listener]])

    def _wait(self, listeners: "list[Listener]") -> None:
        self._listeners += listeners
        if self._listeners and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        self._timer = None
        by_what_is_new: dict[tuple[str, int], list[Listener]] = {}
        for listener in self._listeners:
            by_what_is_new.setdefault(listener.place, []).append(listener)
        self._listeners, groups = [], [*by_what_is_new.values()]
        for first in range(0, len(groups), MAX_LISTS):
            self._read(groups[first : first + MAX_LISTS])

    def _read(self, groups: "Sequence[list[Listener]]") -> None:
        """Read what is new for ``groups`` of listeners, each with the same list, of which it has seen the same."""
        self._reading.update(group[0].place for group in groups)
        called = self._bridge.call(
            _news,
            partial(self._arrived, groups),
            replies=self._keys.responses,
            lists=[group[0].list for group in groups],
            most=MAX_NEWS,
            seen=[group[0].seen for group in groups],
        )
        if not called:
            self._go_on(groups, [None] * len(groups))

    def _arrived(self, groups: "Sequence[list[Listener]]", reply: Reply) -> None:
        self._go_on(groups, [None] * len(groups) if reply.error else reply.value())

    def _go_on(self, groups: "Sequence[list[Listener]]", found: "Sequence[list[bytes] | int | None]") -> None:
        """Hand out what was ``found``, and look again later for those that listen on."""
        for group, messages in zip(groups, found, strict=True):
            self._reading.discard(group[0].place)
            news = (len(messages), state_of(messages)) if isinstance(messages, list) else messages
            self._wait([each for each in group if each.tell(news)])


class Listener:
    """One client that listens to the request ``id``."""

    def __init__(self, exchange: Exchange, id: str, list: str) -> None:
        self._exchange, self._id, self.list = exchange, id, list
        self.seen = 0
        """How many messages of ``list`` it has been told of."""
        self._quiet = 0
        self._has_begun = False

    @property
    def place(self) -> tuple[str, int]:
        """Return what it reads next: a list, and how many messages of it come before."""
        return self.list, self.seen

    def tell(self, news: tuple[int, State] | int | None) -> bool:
        """Send ``news``: how many messages, and what they say; return whether to go on.

        None: the server is away; 0: the request is unknown.
        """
        exchange = self._exchange
        if not self._has_begun and not isinstance(news, tuple):
            answer = unknown(503 if news is None else 404, self._id)
            exchange.respond(answer.status, answer.headers, answer.body)
            return False
        if not self._has_begun:
            exchange.begin(200, STREAM)
            self._has_begun = True
        is_over = self._send(*news) if isinstance(news, tuple) else news == 0
        if is_over or exchange.is_draining:
            exchange.end()
        return not exchange.is_done and not exchange.is_gone

    def _send(self, many: int, state: State) -> bool:
        """Send an event for what ``many`` messages say; return whether the request is over."""
        exchange = self._exchange
        self.seen += many
        for progress in state.progress:
            exchange.send(b"event: progress\ndata: %b\n\n" % as_json(progress))
        if state.answer:
            exchange.send(b"event: done\ndata: %b\n\n" % as_json({"id": self._id, "status": state.answer.status}))
        elif state.is_cancelled:
            exchange.send(b"event: cancelled\ndata: %b\n\n" % as_json({"id": self._id}))
        self._quiet = 0 if many else self._quiet + 1
        if self._quiet >= QUIET_POLLS:
            self._quiet = 0
            exchange.send(b":\n\n")
        return state.is_cancelled or state.answer is not None
