"""The first frame of each side: who it is, and what it accepts."""

import re
import secrets
from dataclasses import dataclass
from typing import Final

from penstock.outbox.frames import FRAME_BYTES, HEADS, HEADS_BYTES, Kind, Violation, frame, unpacked

NONCE_BYTES: Final = 32
STORE_BYTES: Final = 16
MAX_ADDRESS: Final = 300
_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+)):([0-9]{1,5})", re.ASCII)


@dataclass(frozen=True)
class Identity:
    """Who we are to the other side."""

    address: str
    """The address (host:port) that others reach us at, our ``advertise``; empty if none may."""
    store: bytes
    """16 random bytes, written when the store was made."""


@dataclass(frozen=True)
class Limits:
    """What one side accepts, and how long it waits. The other side learns the first three and obeys."""

    window_messages: int = 4096
    """Maximum number of messages that are not acknowledged."""
    window_bytes: int = 8 * 1024 * 1024
    """Maximum number of bytes of them (keys and data); one larger message may be alone in the window."""
    max_message_bytes: int = 16 * 1024 * 1024
    handshake_seconds: float = 10.0
    ping_seconds: float = 10.0
    """Seconds between two pings."""
    silence_seconds: float = 30.0
    """A connection on which nothing comes for so long is closed."""

    @property
    def largest_body(self) -> int:
        """Maximum number of bytes of the body of a frame of messages."""
        return max(self.max_message_bytes, FRAME_BYTES) + HEADS_BYTES + HEADS.size

    def least(self, other: "Limits") -> "Limits":
        """Return what both allow."""
        return Limits(
            min(self.window_messages, other.window_messages),
            min(self.window_bytes, other.window_bytes),
            min(self.max_message_bytes, other.max_message_bytes),
            self.handshake_seconds,
            self.ping_seconds,
            self.silence_seconds,
        )


@dataclass(frozen=True)
class Hello:
    """The first frame, as it came. Fields that a later version adds are ignored."""

    identity: Identity
    limits: Limits
    wanted: str
    """The address that the connector has dialled; empty from a listener."""
    has_secret: bool
    body: bytes
    """What a proof is about."""


def hello(identity: Identity, limits: Limits, *, wanted: str, has_secret: bool) -> bytes:
    """Return our first frame, with a fresh nonce."""
    return frame(
        Kind.HELLO,
        {
            "address": identity.address,
            "store": identity.store,
            "nonce": secrets.token_bytes(NONCE_BYTES),
            "wanted": wanted,
            "secret": has_secret,
            "messages": limits.window_messages,
            "bytes": limits.window_bytes,
            "largest": limits.max_message_bytes,
        },
    )


def hello_in(body: bytes) -> Hello:
    """Return the other side's first frame. Raise ``Violation``."""
    match unpacked(body):
        case {
            "address": str() as address, "store": bytes() as store, "nonce": bytes() as nonce,
            "wanted": str() as wanted, "secret": bool() as has_secret,
            "messages": int() as messages, "bytes": int() as size, "largest": int() as largest,
        } if (
            len(store) == STORE_BYTES
            and len(nonce) == NONCE_BYTES
            and all(not each or is_address(each) for each in (address, wanted))
            and min(messages, size, largest) > 0
        ):  # fmt: skip
            limits = Limits(messages, size, largest)
            return Hello(Identity(address, store), limits, wanted, has_secret, body)
    raise Violation("its hello is none")


def is_address(text: str) -> bool:
    """Return whether ``text`` is host:port."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and len(text) <= MAX_ADDRESS and int(found[3]) < 65_536


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of ``address`` (host:port, ``[::1]:7000`` for IPv6). Raise ``ValueError``."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not is_address(address):
        raise ValueError(f"{address[:MAX_ADDRESS]!r} is no address: expected host:port, e.g. shop.example:7300")
    return found[1] or found[2], int(found[3])


def address_of(host: str, port: int) -> str:
    """Return host:port, with brackets around an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
