"""The objects of a blocking bus; each class stands for the one of the same name in ``penstock.bus``."""

from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

from penstock.base.errors import Full
from penstock.core.batches import MAX_MESSAGES
from penstock.sync.blocking import Blocking


class Queue(Blocking):
    """As ``penstock.bus.Queue``."""

    def push_many(self, messages: Iterable[Any] | AsyncIterable[Any], *, json: bool = False) -> list[int]:
        """Push all of ``messages`` in order, in batches; return their ids. Raise as ``push`` does.

        They are iterated in the thread of the caller, and may take long.
        """
        push: Callable[..., Any] = partial(self._inner.push_many, json=json)
        if isinstance(messages, AsyncIterable | bytes | str):
            return self._bus.run(_ids(push, messages))
        each, ids = iter(messages), list[int]()
        while batch := [*islice(each, MAX_MESSAGES)]:
            try:
                ids += self._bus.run(_ids(push, batch))
            except Full as error:
                raise Full(f"{error}, and {len(ids):,} before these", [*ids, *error.ids]) from error
        return ids


class Consumption(Blocking):
    """As ``penstock.bus.Consumption``: ``for message in queue.consume():``, or ``queue.consume().start()``."""

    def __iter__(self) -> Iterator[Blocking]:
        run = self._bus.run
        try:
            while run(self._inner.fetch()):
                while message := self._inner.next_taken():
                    yield Message(message, self._bus)
        finally:
            run.finish(self._inner.stop)


class Message(Blocking):
    """As ``penstock.bus.Message``."""


class Channel(Blocking):
    """As ``penstock.bus.Channel``."""


class Persistable(Blocking):
    """As ``penstock.bus.Persistable``."""

    @property
    def value(self) -> Any:
        """Return the object whose fields are kept."""
        return self._inner.value

    @value.setter
    def value(self, value: Any) -> None:
        self._inner.value = value


class PubSub(Blocking):
    """As ``penstock.bus.PubSub``."""


class Service(Blocking):
    """As ``penstock.bus.Service``."""


class Request(Blocking):
    """As ``penstock.bus.Request``."""


class FederatedQueue(Queue):
    """As ``penstock.bus.federation.FederatedQueue``."""


class FederatedConsumption(Consumption):
    """As ``penstock.bus.federation.FederatedConsumption``."""


class FederatedChannel(Channel):
    """As ``penstock.bus.federation.FederatedChannel``."""


class FederatedPersistable(Persistable):
    """As ``penstock.bus.federation.FederatedPersistable``."""


class FederatedPubSub(PubSub):
    """As ``penstock.bus.federation.FederatedPubSub``."""


class FederatedService(Service):
    """As ``penstock.bus.federation.FederatedService``."""


KINDS: Final = {
    each.__name__: each
    for each in (
        *(Queue, Consumption, Message, Channel, Persistable, PubSub, Service, Request),
        *(FederatedQueue, FederatedConsumption, FederatedChannel, FederatedPersistable, FederatedPubSub),
        FederatedService,
    )
}
"""Those of which a bus makes objects, by the name of what they stand for."""


async def _ids(push: Callable[..., Any], messages: Any) -> list[int]:
    ids: list[int] = await push(messages)
    return ids
