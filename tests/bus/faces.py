"""Calls of the objects of a bus, right and wrong ones, which all faces of an object must answer alike."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from penstock.bus import Bus
from penstock.sync import Bus as BlockingBus

Kind = str
Call = Callable[[Any], Any]
OPEN: Final[dict[Kind, Call]] = {
    "queue": lambda queue: queue.attach(),
    "channel": lambda channel: channel.connect(),
    "pubsub": lambda topic: topic.subscribe(),
}
CALLS: Final[dict[Kind, dict[str, Call]]] = {
    "queue": {
        "attach": lambda queue: queue.attach(ttl=60.0, maxsize=5.0),
        "attach with text": lambda queue: queue.attach(ttl="5"),
        "attach for no time": lambda queue: queue.attach(ttl=0),
        "attach with half a message": lambda queue: queue.attach(maxsize=0.5),
        "attach with less than none": lambda queue: queue.attach(maxsize=-1),
        "count": lambda queue: queue.count(),
        "ttl": lambda queue: queue.ttl(),
        "maxsize": lambda queue: queue.maxsize(),
        "find": lambda queue: queue.find(),
        "peek": lambda queue: queue.peek(2),
        "peek of none": lambda queue: queue.peek(0),
        "peek of 2.0": lambda queue: queue.peek(2.0),
        "peek of true": lambda queue: queue.peek(True),
        "peek of text": lambda queue: queue.peek("x"),
        "exists": lambda queue: queue.exists(),
        "flush": lambda queue: queue.flush(),
        "close": lambda queue: queue.close(),
        "get_metadata": lambda queue: queue.get_metadata("maxsize"),
        "get_metadata of a number": lambda queue: queue.get_metadata(5),
        "set_metadata": lambda queue: queue.set_metadata({"a": 1, "b": True}),
        "set_metadata of a number": lambda queue: queue.set_metadata({5: "a"}),
        "set_metadata of the bus": lambda queue: queue.set_metadata({"source": "x"}),
        "set_metadata of no ttl": lambda queue: queue.set_metadata({"ttl": "soon"}),
        "set_metadata of nothing": lambda queue: queue.set_metadata({}),
        "ack": lambda queue: queue.ack(1),
        "ack of text": lambda queue: queue.ack("x"),
        "ack of no number": lambda queue: queue.ack(None),
        "push": lambda queue: queue.push("a"),
        "push of a number": lambda queue: queue.push(5),
        "push as JSON": lambda queue: queue.push({"a": 1}, json=True),
        "push_many": lambda queue: queue.push_many(["a", b"b"]),
        "push_many of one": lambda queue: queue.push_many("ab"),
        "consume with an unknown option": lambda queue: queue.consume(relaible=True),
        "consume alone only": lambda queue: queue.consume(exclusive=True),
        "detach": lambda queue: queue.detach(),
    },
    "channel": {
        "connect": lambda channel: channel.connect(ttl=60, reliable=True),
        "connect with an unknown option": lambda channel: channel.connect(relaible=True),
        "connect with no prefetch": lambda channel: channel.connect(prefetch=0),
        "connect for no time": lambda channel: channel.connect(ttl=0),
        "listen with text": lambda channel: channel.listen(ttl="5"),
        "send": lambda channel: channel.send("a"),
        "send of a number": lambda channel: channel.send(5),
        "send_to": lambda channel: channel.send_to("remote", "a"),
        "send_to no role": lambda channel: channel.send_to("", "a"),
        "send_to another channel": lambda channel: channel.send_to("a:b", "a"),
        "ack": lambda channel: channel.ack(1),
        "ack of text": lambda channel: channel.ack("x"),
        "messages": lambda channel: channel.messages() and None,
        "disconnect": lambda channel: channel.disconnect(),
        "end": lambda channel: channel.end(),
    },
    "pubsub": {
        "subscribe": lambda topic: topic.subscribe(),
        "unsubscribe": lambda topic: topic.unsubscribe(),
        "publish of a number": lambda topic: topic.publish(5),
        "publish": lambda topic: topic.publish("a"),
    },
    "persistable": {
        "save": lambda cart: cart.save(),
        "load": lambda cart: cart.load(),
        "persist": lambda cart: cart.persist(10**8),
        "persist for no time": lambda cart: cart.persist(0),
        "persist for ever": lambda cart: cart.persist(10**10),
        "unpersist": lambda cart: cart.unpersist(),
    },
}


def made(kind: Kind, bus: Bus | BlockingBus) -> Any:
    name = "zoo"
    if kind == "persistable":
        return bus.persistable(name, SimpleNamespace(tea=1.5), ["tea"])
    return getattr(bus, kind)(name)


WAITS: Final = {"push", "push as JSON", "push_many"}
"""What waits for an ``attach``."""
