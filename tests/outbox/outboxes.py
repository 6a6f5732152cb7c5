"""Outboxes in the process of a test, which try again soon, and their stores."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from penstock.core.backoff import Backoff
from penstock.outbox import Message, Outbox, listing
from penstock.outbox.ids import new_id
from penstock.outbox.store import Copy, Published, Store
from tests.support.harness import eventually

SOON = Backoff([0.02])
LATER = Backoff([3600.0])
T = TypeVar("T")


def outbox(datadir: Path, bind: str | list[str] = "127.0.0.1:0", **options: Any) -> Outbox:
    """Return an outbox that listens at a free port, unless ``bind`` has one."""
    return Outbox(**{"datadir": datadir, "bind": bind, "backoff": SOON, "reconnects": SOON, **options})


async def subscribed(subscriber: Outbox, publisher: Outbox, *keys: str) -> None:
    """Subscribe, and wait until the publisher has acknowledged."""
    await subscriber.subscribe(publisher.advertise, keys)
    await eventually(lambda: not stored(subscriber.datadir, outgoing))
    assert has_subscriber(publisher, subscriber.advertise, keys)


def has_subscriber(publisher: Outbox, address: str, keys: tuple[str, ...]) -> bool:
    return {(key, address) for key in keys} <= set(stored(publisher.datadir, lambda store: list(store.subscriptions())))


def stored(datadir: Path, read: Callable[[Store], T]) -> T:
    """Return what ``read`` finds in a store, also while its owner runs."""
    store = Store.read(datadir)
    try:
        return read(store)
    finally:
        store.close()


def outgoing(store: Store) -> list[listing.Listed]:
    return [*listing.outgoing(store, data=True)]


def incoming(store: Store) -> list[listing.Listed]:
    return [*listing.incoming(store, data=True)]


def texts(found: Iterable[listing.Listed]) -> list[str]:
    return [(each.data or b"").decode() for each in found]


class Got:
    """A handler that keeps what came."""

    def __init__(self) -> None:
        self.messages = list[Message]()

    def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def texts(self) -> list[str]:
        return [str(message) for message in self.messages]

    async def wait_for(self, *texts: str) -> None:
        """Wait until as many have come; fail unless they are ``texts``, in any order."""
        await eventually(lambda: len(self.messages) >= len(texts))
        assert sorted(self.texts) == sorted(texts)


async def settled() -> None:
    """Let all that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


@contextmanager
def opened(datadir: Path) -> Iterator[Store]:
    store = Store.open(datadir)
    try:
        yield store
    finally:
        store.close()


def published(seq: int, *copies: Copy, data: bytes = b"data") -> Published:
    return Published(seq, new_id(), "k", data, copies or [Copy(1, None)])


def add(store: Store, *messages: Published) -> None:
    with store.transaction():
        store.publish(messages)


def count(store: Store, table: str) -> int:
    return int(store._one(f"SELECT count(*) FROM {table}"))
