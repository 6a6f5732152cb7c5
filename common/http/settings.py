"""The settings of every service that speaks HTTP."""

from ipaddress import ip_address, ip_network
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Strict

from common.http.limits import Limits
from common.settings.base import ServiceSettings
from common.settings.fields import Name, Whole, setting
from common.settings.validation import Rule


def _network(text: str) -> str:
    try:
        ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"expected an address or a network such as 10.0.0.0/8, found {text!r}") from None
    return text


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach ``host``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_to_others_on_purpose(listen_host: str, insecure: bool, tokens: bool) -> str | None:
    if is_loopback(listen_host) or insecure or tokens:
        return None
    return "anybody who reaches this address may use the service: set tokens: true, or insecure: true if you want that"


def tokens_have_a_namespace(tokens: bool, redis_namespace: str | None) -> str | None:
    return "needs redisNamespace, where the tokens are" if tokens and redis_namespace is None else None


def bodies_have_room_for_one(max_bodies: int, max_body: int) -> str | None:
    return f"expected at least maxBody, {max_body}, found {max_bodies}" if max_bodies < max_body else None


class HttpSettings(ServiceSettings):
    """Where to listen, whom to trust, and what clients may send."""

    service: ClassVar[str] = "http"
    rules: ClassVar[tuple[Rule, ...]] = (
        *ServiceSettings.rules, open_to_others_on_purpose, tokens_have_a_namespace, bodies_have_room_for_one,
    )  # fmt: skip

    listen_host: Name = setting("address", "Which of the machine's addresses to listen on.", "127.0.0.1")
    listen_port: Whole = setting("port", "Where to listen for HTTP; 0 chooses a free port.", 8080, least=0, most=65_535)
    share_port: bool = setting(
        "true | false", "Let other instances on this machine listen on the same port; the kernel shares it.", False
    )
    insecure: bool = setting("true | false", "Serve anybody who reaches an address that is not loopback.", False)
    tokens: bool = setting(
        "true | false", "Serve only requests with a token that `penstock token add` has made.", False
    )
    trusted_proxies: Annotated[list[Annotated[str, AfterValidator(_network)]], Strict()] = setting(
        "list of addresses", "Addresses or networks of proxies whose X-Forwarded-* headers are believed.", []
    )
    max_head: Whole = setting(
        "bytes", "Maximum number of bytes of a request's line and headers.", 32_768, least=1_024, most=1_048_576
    )
    max_headers: Whole = setting("headers", "Maximum number of headers of a request.", 100, least=10, most=10_000)
    max_target: Whole = setting(
        "bytes", "Maximum number of bytes of a request's path and query.", 8_192, least=64, most=1_048_576
    )
    max_body: Whole = setting(
        "bytes", "Maximum number of bytes of a request's body.", 8_388_608, least=0, most=536_870_912
    )
    max_bodies: Whole = setting(
        "bytes", "Maximum number of bytes of bodies in hand, of all clients together; more is 503.", 268_435_456,
        least=0, most=1_099_511_627_776,
    )  # fmt: skip
    head_timeout: Whole = setting("seconds", "Seconds in which a client sends a head.", 10, least=1, most=3_600)
    stall_timeout: Whole = setting(
        "seconds", "Seconds without progress in a body, or in reading an answer, until a client is cut off.", 20,
        least=1, most=3_600,
    )  # fmt: skip
    idle_timeout: Whole = setting(
        "seconds", "Seconds that a connection stays open between two requests.", 60, least=1, most=3_600
    )
    max_connections: Whole = setting(
        "connections", "Maximum number of connections at a time.", 10_000, least=1, most=1_000_000
    )
    max_connections_per_address: Whole = setting(
        "connections",
        "Maximum number of connections from one address that is no trusted proxy.",
        1_000,
        least=1,
        most=1_000_000,
    )

    @property
    def limits(self) -> Limits:
        """Return the bounds of what clients may send."""
        return Limits(
            head=self.max_head,
            headers=self.max_headers,
            target=self.max_target,
            body=self.max_body,
            bodies=self.max_bodies,
            head_seconds=self.head_timeout,
            stall_seconds=self.stall_timeout,
            idle_seconds=self.idle_timeout,
            connections=self.max_connections,
            per_address=self.max_connections_per_address,
        )

    def fixed(self) -> frozenset[str]:
        """Keep the socket for the life of the process: connections wait in it while a reload drains."""
        return super().fixed() | {"listen_host", "listen_port", "share_port"}
