"""``penstock.lists``, blocking."""

import signal
from collections.abc import AsyncIterable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

from penstock.base.errors import Unavailable, Unconfirmed
from penstock.base.payload import Payload
from penstock.core.batches import MAX_BYTES, MAX_MESSAGES
from penstock.core.consumer import Consumer
from penstock.lists import lists as _server
from penstock.lists import work as _work
from penstock.lists.message import Message
from penstock.lists.work import Request
from penstock.sync.entered import Entered
from penstock.sync.portal import Portal


class Lists(Entered[_server.Lists]):
    """As ``penstock.lists.Lists``: ``with Lists("redis://localhost:6379/0") as lists: lists["in"].push("x")``."""

    def __init__(
        self,
        url: str,
        *,
        patience: float | None = 60.0,
        lease: float = 30.0,
        stop_signals: Iterable[signal.Signals] = (),
        outbox: str | Path | None = None,
    ) -> None:
        self._options: dict[str, Any] = {"url": url, "patience": patience, "lease": lease, "outbox": outbox}
        super().__init__(stop_signals)

    async def _open(self) -> _server.Lists:
        return await _server.Lists(**self._options).__aenter__()

    @property
    def run(self) -> Portal:
        """Run a coroutine, such as ``request.touch(60)``, and return its result."""
        return self.portal

    def __getitem__(self, name: Payload) -> "List":
        run = self.run
        return List(self._inner[name], run)

    def work(self, namespace: str, source: Payload | None = None) -> "Work":
        """Return the requests of the mdispatch with this namespace."""
        run = self.run
        return Work(self._inner.work(namespace, source), run)


class List:
    """As ``penstock.lists.List``."""

    def __init__(self, one: _server.List, run: Portal) -> None:
        self._list, self._run = one, run

    def push(self, message: Payload) -> None:
        """Push one message."""
        self._run(self._list.push(message))

    def push_many(self, messages: Iterable[Payload] | AsyncIterable[Payload]) -> int:
        """Push all of ``messages``, oldest first, in batches; return how many.

        They are iterated in the thread of the caller, and may take long.
        """
        if isinstance(messages, AsyncIterable | bytes | str):
            return self._run(self._list.push_many(messages))
        each, count = iter(messages), 0
        while batch := [*islice(each, MAX_MESSAGES)]:
            try:
                count += self._run(self._list.push_many(batch))
            except (Unavailable, Unconfirmed) as error:
                raise type(error)(f"{error}, and {count:,} before these") from error
        return count

    def push_json(self, value: Any) -> None:
        """Push ``value`` as JSON."""
        self._run(self._list.push_json(value))

    def messages(
        self,
        *,
        attempts: int | None = None,
        dead: Payload | None = None,
        prefetch: int = MAX_MESSAGES,
        prefetch_bytes: int = MAX_BYTES,
    ) -> Iterator[Message]:
        """Take messages: ``for message in orders.messages():``, and then ``with message:`` around its handling."""

        async def consumer() -> Consumer[Message]:
            return self._list.consumer(prefetch, prefetch_bytes, attempts, dead)

        return self._run(consumer()).blocking(self._run)


class Work:
    """As ``penstock.lists.Work``."""

    def __init__(self, work: _work.Work, run: Portal) -> None:
        self._work, self._run = work, run

    def requests(self, *, prefetch: int = MAX_MESSAGES, prefetch_bytes: int = MAX_BYTES) -> Iterator[Request]:
        """Take requests: ``for request in work.requests():``, and then ``with request:``."""
        consumer = self._run(self._work.consumer(prefetch, prefetch_bytes))
        return cast(Iterator[Request], consumer.blocking(self._run))
