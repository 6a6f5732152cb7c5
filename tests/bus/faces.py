"""Calls of the objects of a bus, right and wrong ones, which all faces of an object must answer alike."""

import math
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
        "count": lambda queue: queue.count(),
        "ttl": lambda queue: queue.ttl(),
        "maxsize": lambda queue: queue.maxsize(),
        "find": lambda queue: queue.find(),
        "peek": lambda queue: queue.peek(2),
        "peek of 2.0": lambda queue: queue.peek(2.0),
        "exists": lambda queue: queue.exists(),
        "flush": lambda queue: queue.flush(),
        "close": lambda queue: queue.close(),
        "get_metadata": lambda queue: queue.get_metadata("maxsize"),
        "set_metadata": lambda queue: queue.set_metadata({"a": 1, "b": True}),
        "set_metadata of nothing": lambda queue: queue.set_metadata({}),
        "ack": lambda queue: queue.ack(1),
        "push": lambda queue: queue.push("a"),
        "push as JSON": lambda queue: queue.push({"a": 1}, json=True),
        "push_many": lambda queue: queue.push_many(["a", b"b"]),
        "detach": lambda queue: queue.detach(),
    },
    "channel": {
        "connect": lambda channel: channel.connect(ttl=60, reliable=True),
        "send": lambda channel: channel.send("a"),
        "send_to": lambda channel: channel.send_to("remote", "a"),
        "ack": lambda channel: channel.ack(1),
        "messages": lambda channel: channel.messages() and None,
        "disconnect": lambda channel: channel.disconnect(),
        "end": lambda channel: channel.end(),
    },
    "pubsub": {
        "subscribe": lambda topic: topic.subscribe(),
        "unsubscribe": lambda topic: topic.unsubscribe(),
        "publish": lambda topic: topic.publish("a"),
    },
    "persistable": {
        "save": lambda cart: cart.save(),
        "load": lambda cart: cart.load(),
        "persist": lambda cart: cart.persist(10**8),
        "unpersist": lambda cart: cart.unpersist(),
    },
}


def consume(**options: Any) -> Call:
    return lambda queue: queue.consume(**options)


def described(name: str, value: Any) -> Call:
    return lambda queue: queue.set_metadata({name: value})


WRONG: Final[dict[Kind, dict[str, tuple[Call, str]]]] = {
    "queue": {
        "attach with text": (lambda queue: queue.attach(ttl="5"), "ttl"),
        "attach for no time": (lambda queue: queue.attach(ttl=0), "ttl"),
        "attach for less than none": (lambda queue: queue.attach(ttl=-1), "ttl"),
        "attach for half a second": (lambda queue: queue.attach(ttl=1.5), "ttl"),
        "attach for ages": (lambda queue: queue.attach(ttl=10**12), "ttl"),
        "attach for ever": (lambda queue: queue.attach(ttl=math.inf), "ttl"),
        "attach for a time that is none": (lambda queue: queue.attach(ttl=math.nan), "ttl"),
        "attach without end": (lambda queue: queue.attach(maxsize=math.inf), "maxsize"),
        "attach with half a message": (lambda queue: queue.attach(maxsize=0.5), "maxsize"),
        "attach with less than none": (lambda queue: queue.attach(maxsize=-1), "maxsize"),
        "peek of none": (lambda queue: queue.peek(0), "number"),
        "peek of text": (lambda queue: queue.peek("x"), "number"),
        "peek of true": (lambda queue: queue.peek(True), "number"),
        "get_metadata of a number": (lambda queue: queue.get_metadata(5), "name"),
        "set_metadata of a number": (lambda queue: queue.set_metadata({5: "a"}), ""),
        "set_metadata of the bus": (lambda queue: queue.set_metadata({"source": "x", "moving": "y"}), "moving, source"),
        **{
            f"set_metadata of {name} {value!r}": (described(name, value), name)
            for name, values in {"ttl": ("soon", "", 0, -1, 10**20, "1e3"), "maxsize": (-1, "x")}.items()
            for value in values
        },
        "ack of text": (lambda queue: queue.ack("x"), "id"),
        "ack of no number": (lambda queue: queue.ack(None), "id"),
        "push of a number": (lambda queue: queue.push(5), "json=True"),
        "push_many of one": (lambda queue: queue.push_many("ab"), "use push"),
        "push_many of one in bytes": (lambda queue: queue.push_many(b"ab"), "use push"),
        "a handler of nothing": (lambda queue: queue.on("massage", print), "no event"),
        "consume with an unknown option": (consume(relaible=True), "relaible"),
        "consume with busmq's name": (consume(max=3), "max"),
        "consume from before the start": (consume(start=-1), "start"),
        "consume none ahead": (consume(prefetch=0), "prefetch"),
        "consume nothing ahead": (consume(prefetch=None), "prefetch"),
        "consume no bytes ahead": (consume(prefetch_bytes=0), "prefetch_bytes"),
        "consume alone only": (consume(exclusive=True), "reliable"),
        "consume behind an id": (consume(after_id=1), "after_id"),
        "consume less than none": (consume(limit=-1), "limit"),
        "consume text": (consume(limit="3"), "limit"),
        "consume and read": (consume(reliable=True, remove=False), "reliable"),
    },
    "channel": {
        "connect with an unknown option": (lambda channel: channel.connect(relaible=True), ""),
        "connect with no prefetch": (lambda channel: channel.connect(prefetch=0), "prefetch"),
        "connect for no time": (lambda channel: channel.connect(ttl=0), "ttl"),
        "listen with text": (lambda channel: channel.listen(ttl="5"), "ttl"),
        "send of a number": (lambda channel: channel.send(5), "json"),
        "send of an object": (lambda channel: channel.send({"a": 1}), "json"),
        "send_to no role": (lambda channel: channel.send_to("", "a"), "role"),
        "send_to another channel": (lambda channel: channel.send_to("a:b", "a"), "role"),
        "ack of text": (lambda channel: channel.ack("x"), "id"),
    },
    "pubsub": {
        "publish of a number": (lambda topic: topic.publish(5), "json=True"),
    },
    "persistable": {
        f"persist for {ttl}": (lambda cart, ttl=ttl: cart.persist(ttl), "ttl=")  # type: ignore[misc]
        for ttl in (0, -1, 1.5, math.inf, math.nan, None, "5", 10**10)
    },
}
"""Calls that raise ``WrongCall`` whether or not the object is attached, and a word of it."""


def made(kind: Kind, bus: Bus | BlockingBus) -> Any:
    name = "zoo"
    if kind == "persistable":
        return bus.persistable(name, SimpleNamespace(tea=1.5), ["tea"])
    return getattr(bus, kind)(name)


AT_THE_WRONG_TIME: Final = {
    ("queue", "attach", True),
    ("queue", "close", False),
    ("queue", "ack", False),
    ("channel", "connect", True),
    ("channel", "send", False),
    ("channel", "ack", False),
    ("channel", "messages", False),
}
"""Calls that make sense only before the object is attached, or after."""

WAITS: Final = {"push", "push as JSON", "push_many"}
"""What waits for an ``attach``."""
