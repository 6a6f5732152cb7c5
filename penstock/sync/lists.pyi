"""Generated from ``penstock.lists``: ``python -m tests.support.stubs`` writes it anew."""

import signal
from collections.abc import AsyncIterable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.base.payload import Payload
from penstock.lists.message import Message as Message
from penstock.lists.work import Request as Request
from penstock.sync.portal import Portal

class Lists:
    """As ``penstock.lists.Lists``: ``with Lists("redis://localhost:6379/0") as lists: lists["in"].push("x")``."""

    def __init__(
        self,
        url: str,
        *,
        patience: float | None = 60.0,
        lease: float = 30.0,
        stop_signals: Iterable[signal.Signals] = ...,
        outbox: str | Path | None = None,
    ) -> None: ...
    @property
    def waiting(self) -> int: ...
    @property
    def patience(self) -> float | None: ...
    @property
    def stopping(self) -> bool: ...
    def __getitem__(self, name: Payload) -> List: ...
    def work(self, namespace: str, source: Payload | None = None) -> Work: ...
    def stop(self) -> None: ...
    @property
    def run(self) -> Portal: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class List:
    """As ``penstock.lists.List``."""

    name: bytes
    def push(self, message: Payload) -> None: ...
    def push_many(self, messages: Iterable[Payload] | AsyncIterable[Payload]) -> int: ...
    def push_json(self, value: Any) -> None: ...
    def messages(
        self,
        *,
        attempts: int | None = None,
        dead: Payload | None = None,
        prefetch: int = ...,
        prefetch_bytes: int = ...,
    ) -> Iterator[Message]: ...

class Work:
    """As ``penstock.lists.Work``."""

    def requests(self, *, prefetch: int = ..., prefetch_bytes: int = ...) -> Iterator[Request]: ...
