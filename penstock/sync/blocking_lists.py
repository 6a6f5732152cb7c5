"""Blocking lists; the types that editors and type checkers see are in lists.pyi."""

import signal
from collections.abc import AsyncIterable, Callable, Iterable
from functools import partial
from typing import Any

from penstock.base.payload import Payload
from penstock.lists import Message, Request
from penstock.lists import lists as _server
from penstock.sync.calls import called, check_outbox
from penstock.sync.entered import Entered
from penstock.sync.twin import Host, Twin

__all__ = ["List", "Lists", "Message", "Request", "Work"]


class Lists(Entered, of="penstock.lists.lists:Lists", names="__init__ waiting patience stopping __getitem__ work stop"):
    """As ``penstock.lists.Lists``: ``with Lists("redis://localhost:6379/0") as lists: lists["in"].push("x")``."""

    def __init__(self, url: str, stop_signals: Iterable[signal.Signals], **options: Any) -> None:
        check_outbox(options.get("outbox"))
        make = partial(_server.Lists, url, **options)
        super().__init__(make(), stop_signals, again=make)

    stop = Entered._stop


class List(Twin, of="penstock.lists.lists:List", names="push push_many push_json messages"):
    """As ``penstock.lists.List``."""

    name: bytes

    def push_many(self, messages: Iterable[Payload] | AsyncIterable[Payload]) -> Any:
        return self._feed("push_many", messages)

    def messages(self, **options: Any) -> Any:
        return _loop(self._inner.consumer, self._host, options)


class Work(Twin, of="penstock.lists.work:Work", names="requests"):
    """As ``penstock.lists.Work``."""

    def requests(self, **options: Any) -> Any:
        return _loop(self._inner.consumer, self._host, options)


def _loop(consumer: Callable[..., Any], host: Host, options: dict[str, Any]) -> Any:
    return host.run(called(partial(consumer, **options))).blocking(host.run)
