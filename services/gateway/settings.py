"""Settings of gateway."""

import ssl
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Strict, StringConstraints

from common.settings.base import ServiceSettings
from common.settings.fields import MIN_SECRET, Name, Secret, Url, Whole, setting
from common.settings.validation import Rule
from penstock.base.encoding import decoded
from penstock.base.listening import ALL
from penstock.base.shape import Shape
from penstock.bus import Placement
from penstock.bus.keys import CLOSED, MOVED, NOTIFICATIONS
from penstock.bus.scripts import LUA
from penstock.core.acl import Rights

BUS_COMMANDS = frozenset(
    {
        *("SUBSCRIBE", "UNSUBSCRIBE", "PUBLISH", "EXISTS", "EXPIRE", "HGET", "HGETALL", "HMGET", "LLEN", "UNLINK"),
        *("PING", "ROLE"),
    }
)
"""Commands that the Python code of the bus sends."""
KEYS = {
    "queues": "bus:queue:{}:*",
    "channels": "bus:queue:channel:*:{}:*",
    "services": "bus:queue:service:{}:*",
    "objects": "bus:persisted:{}",
}
"""The keys of what the names of a field allow."""


def both_of_tls(certificate: str | None, key: str | None) -> str | None:
    return "certificate and key are needed both, or neither" if (certificate is None) != (key is None) else None


def tls_is_usable(certificate: str | None, key: str | None) -> str | None:
    if certificate is None or key is None:
        return None
    try:
        tls(certificate, key)
    except (OSError, ssl.SSLError) as error:
        return f"certificate and key cannot be loaded: {error.strerror or error}"
    return None


def no_cluster(redis: str, further: list[str]) -> str | None:
    if any("+cluster://" in url for url in (redis, *further)):
        return "a bus has no Redis Cluster: expected servers of their own, or a primary by its sentinels"
    return None


def secrets_are_long_enough(secret: str) -> str | None:
    if _lines(secret) and all(len(each) >= MIN_SECRET for each in _lines(secret)):
        return None
    return f"expected at least {MIN_SECRET} characters in each line"


def path_is_absolute(path: str) -> str | None:
    return None if path.startswith("/") and "?" not in path else "expected a path that begins with /, without a query"


def _lines(secret: str) -> list[str]:
    return [line for each in secret.split("\n") if (line := each.removesuffix("\r"))]


def tls(certificate: str, key: str) -> ssl.SSLContext:
    """Return the context of a server. Raise ``OSError`` if the files cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


Patterns = Annotated[list[Annotated[str, StringConstraints(strict=True, min_length=1)]], Strict()]


class Settings(ServiceSettings):
    """Serve the bus of ``redis`` and ``further`` to other sites over websockets."""

    service: ClassVar[str] = "gateway"
    changes_login: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        *ServiceSettings.rules,
        both_of_tls,
        tls_is_usable,
        no_cluster,
        secrets_are_long_enough,
        path_is_absolute,
    )

    sends: ClassVar[frozenset[str]] = BUS_COMMANDS
    scripts: ClassVar[tuple[Path, ...]] = tuple(sorted(LUA.glob("*.lua")))

    further: Annotated[list[Url], Strict()] = setting(
        "list of URLs", "The further servers of the bus, in the order that all its clients give them.", []
    )
    placement: Placement = setting(
        "busmq | rendezvous", "How a new name chooses its server; all clients of a bus choose alike.", Placement.BUSMQ
    )
    listen_host: Name = setting(
        "address", "Which of the machine's addresses to listen on; all by default, of IPv6 and IPv4.", ALL
    )
    listen_port: Whole = setting(
        "port", "Where websockets are accepted; 0 chooses a free one.", 8790, least=0, most=65_535
    )
    path: Name = setting("path", "The path of the websockets' URL.", "/bus")
    secret: Secret = setting(
        "text",
        "What a peer must know, at least 8 characters; better in the file that GATEWAY_SECRET_FILE names. Further lines"
        " are former secrets, which peers may still use.",
    )
    accept_query_secret: bool = setting(
        "true | false",
        "Accept the secret in the URL, as Node's busmq sends it; proxies may log it there.",
        False,
    )
    certificate: Name | None = setting("file", "The TLS certificate (PEM) with its chain; no TLS by default.", None)
    key: Name | None = setting("file", "The private key (PEM) of the certificate.", None)
    queues: Patterns = setting("list of patterns", "The queues that peers may use, e.g. orders.*; [] for none.", ["*"])
    channels: Patterns = setting("list of patterns", "As queues, for channels.", ["*"])
    services: Patterns | None = setting(
        "list of patterns",
        "As queues, for services, i.e. the queues of their requests and replies; by default as queues says of these.",
        None,
    )
    topics: Patterns = setting("list of patterns", "As queues, for publish and subscribe.", ["*"])
    objects: Patterns = setting("list of patterns", "As queues, for persisted objects.", ["*"])
    methods: Patterns = setting(
        "list of patterns",
        "The methods that peers may call, e.g. attach, push, queue.count, channel.*; on and once are always allowed.",
        ["*"],
    )
    max_frame: Whole = setting(
        "bytes", "Maximum number of bytes of a frame, and of a call.", 16_777_216, least=1_024, most=536_870_912
    )
    max_connections: Whole = setting(
        "connections", "Maximum number of websockets at a time.", 1_000, least=1, most=100_000
    )
    max_objects: Whole = setting("objects", "Maximum number of objects of one websocket.", 1_000, least=1, most=100_000)
    window: Whole = setting(
        "messages",
        "Maximum number of messages of one object that are sent and not confirmed.",
        1_000,
        least=1,
        most=2_000,
    )
    window_bytes: Whole = setting(
        "bytes", "No more messages are sent while this many bytes are not confirmed.", 1_048_576, least=1, most=2**30
    )
    max_calls: Whole = setting(
        "calls",
        "Maximum number of calls of one websocket under way; then no more is read from it.",
        5_000,
        least=1,
        most=100_000,
    )
    call_bytes: Whole = setting(
        "bytes",
        "Maximum number of bytes of these calls, and of what waits to be sent.",
        16_777_216,
        least=1_024,
        most=2**30,
    )
    first_message_timeout: Whole = setting(
        "seconds", "Seconds in which a peer shows its secret.", 10, least=1, most=600
    )
    ping_interval: Whole = setting("seconds", "Seconds between two pings of a websocket.", 10, least=1, most=3_600)
    ping_timeout: Whole = setting(
        "seconds", "Seconds without an answer to one after which a peer is dead.", 20, least=1, most=3_600
    )
    patience: Whole = setting(
        "seconds", "Seconds that a call waits while a server is away; then it fails.", 30, least=1, most=3_600
    )
    pages: bool = setting("true | false", "Serve the browser's client at /bus.js, and a page to try it at /.", True)

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the servers of the bus."""
        return (self.redis, *self.further)

    @property
    def secrets(self) -> list[str]:
        """Return the secret, and the former ones behind it."""
        return _lines(self.secret)

    def fixed(self) -> frozenset[str]:
        return super().fixed() | {"further", "placement"}

    def metrics(self) -> tuple[str, ...]:
        return ("gateway",)

    def patterns(self) -> dict[str, tuple[str, ...]]:
        keys = tuple(key.format(name) for field, key in KEYS.items() for name in getattr(self, field) or ())
        return dict.fromkeys(self.urls, keys)

    def sends_elsewhere(self) -> frozenset[str]:
        from common.acl import of

        more = {"EVAL", "EVALSHA", "SCRIPT|LOAD", "CLIENT|SETNAME", "INFO"}
        return BUS_COMMANDS | of(self.scripts) | more

    def rights(self) -> dict[str, Rights]:
        """Add the channels of the bus."""
        named = [f"bus:queue:{name}:available" for name in self.queues]
        named += [f"bus:queue:channel:*:{name}:available" for name in self.channels]
        for name in self.services or ():
            named += [f"bus:queue:service:{name}:available", f"bus:queue:service:{name}:*:available"]
        topics = [f"bus:pubsub:{name}" for name in (*self.topics, NOTIFICATIONS)]
        channels = Rights((), frozenset(), (decoded(CLOSED), decoded(MOVED), *named, *topics))
        return {url: found | channels if url in self.urls else found for url, found in super().rights().items()}

    def apart(self, directory: Path) -> dict[str, object]:
        return {"listen_port": 0}

    def shape(self) -> Shape:
        return Shape(promise="at-least-once")
