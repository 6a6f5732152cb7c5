"""The blocking bus and its objects; the types that editors and type checkers see are in bus.pyi."""

from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from penstock import bus as _bus
from penstock.base.payload import Received
from penstock.sync.calls import called, check_outbox
from penstock.sync.entered import Entered
from penstock.sync.handlers import Handlers
from penstock.sync.portal import Portal
from penstock.sync.twin import Twin

__all__ = [
    "Bus",
    "Channel",
    "Consumption",
    "FederatedChannel",
    "FederatedConsumption",
    "FederatedPersistable",
    "FederatedPubSub",
    "FederatedQueue",
    "FederatedService",
    "Message",
    "Persistable",
    "PubSub",
    "Queue",
    "Request",
    "Service",
]


class Object(Twin):
    """An object of a bus, whose methods run in the event loop."""

    _host: Handlers

    def _result(self, call: Callable[[], Any], run: Portal) -> Any:
        return run(called(call))


class Emitter(Object, names="on once off"):
    """One with events: their handlers run in a thread, one after the other, and may call the bus."""

    def on(self, event: str, handler: Callable[..., Any]) -> Any:
        self._call("on", (event, self._host.in_turn(handler)), {})
        return handler

    def once(self, event: str, handler: Callable[..., Any]) -> Any:
        self._call("once", (event, self._host.in_turn(handler)), {})
        return handler

    def off(self, event: str, handler: Callable[..., Any] | None) -> None:
        self._call("off", (event, handler and self._host.in_turn(handler)), {})


class Bus(
    Entered,
    Emitter,
    of="penstock.bus.bus:Bus",
    names="__init__ is_online waiting patience buffer queue channel persistable pubsub service federate",
):
    """As ``penstock.bus.Bus``: ``with Bus("redis://localhost:6379") as bus: bus.queue("in").attach()``.

    ``outbox`` is a data directory: an ``Outbox`` belongs to an event loop of the caller.
    """

    def __init__(self, *urls: str, outbox: str | Path | None, **options: Any) -> None:
        check_outbox(outbox)
        super().__init__(_bus.Bus(*urls, outbox=outbox, **options), host=Handlers)


class Queue(
    Emitter,
    of="penstock.bus.queue:Queue",
    names="is_attached is_consuming attach detach push push_many consume stop ack close flush count exists"
    " peek ttl maxsize find metadata get_metadata set_metadata",
):
    """As ``penstock.bus.Queue``."""

    name: str
    pushed: int
    consumed: int

    def push_many(self, messages: Iterable[Any] | AsyncIterable[Any], json: bool) -> Any:
        return self._feed("push_many", messages, json=json)


class Consumption(Object, of="penstock.bus.consumption:Consumption", names="start stop"):
    """As ``penstock.bus.Consumption``: ``for message in queue.consume():``, or ``queue.consume().start()``."""

    def __iter__(self) -> Iterator["Message"]:
        """Take messages, oldest first."""
        run = self._host.run
        try:
            while run(self._inner.fetch()):
                while message := self._inner.next_taken():
                    yield Message(message, self._host)
        finally:
            run.finish(self._inner.stop)


class Message(Object, Received, of="penstock.bus.message:Message", names="ack"):
    """As ``penstock.bus.Message``."""

    body: bytes
    id: int


class Channel(
    Emitter,
    of="penstock.bus.channel:Channel",
    names="is_attached is_remote_connected connect listen send send_to messages ack disconnect end",
):
    """As ``penstock.bus.Channel``."""

    name: str
    local: str
    remote: str


class Persistable(Object, of="penstock.bus.persistable:Persistable", names="fields dirty save load persist unpersist"):
    """As ``penstock.bus.Persistable``."""

    name: str
    value: Any


class PubSub(Emitter, of="penstock.bus.pubsub:PubSub", names="is_subscribed subscribe unsubscribe publish"):
    """As ``penstock.bus.PubSub``."""

    name: str


class Service(
    Emitter,
    of="penstock.bus.service:Service",
    names="is_serving is_connected serve connect request stream notify disconnect",
):
    """As ``penstock.bus.Service``; handlers run side by side, in as many threads as ``concurrency`` says."""

    name: str

    def serve(self, handler: Callable[..., Any] | None, concurrency: int, **options: Any) -> None:
        answer = handler and self._host.answering(handler, concurrency)
        self._call("serve", (answer,), {"concurrency": concurrency, **options})


class Request(Object, of="penstock.bus.requests:Request", names="partial answer end fail"):
    """As ``penstock.bus.Request``."""

    data: Any
    id: Any
    reply_to: str | None
    expires: float | None


class FederatedQueue(Queue, of="penstock.bus.federation.queue:FederatedQueue", names="is_ready"):
    """As ``penstock.bus.federation.FederatedQueue``."""


class FederatedConsumption(Consumption, of="penstock.bus.federation.queue:FederatedConsumption"):
    """As ``penstock.bus.federation.FederatedConsumption``."""


class FederatedChannel(Channel, of="penstock.bus.federation.channel:FederatedChannel", names="is_ready"):
    """As ``penstock.bus.federation.FederatedChannel``."""


class FederatedPersistable(Persistable, of="penstock.bus.federation.persistable:FederatedPersistable"):
    """As ``penstock.bus.federation.FederatedPersistable``."""


class FederatedPubSub(PubSub, of="penstock.bus.federation.pubsub:FederatedPubSub", names="is_ready"):
    """As ``penstock.bus.federation.FederatedPubSub``."""

    is_subscribed: bool


class FederatedService(Service, of="penstock.bus.federation.service:FederatedService"):
    """As ``penstock.bus.federation.FederatedService``."""
