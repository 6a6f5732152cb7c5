"""What a client may send, and how long it may take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one server; sizes in bytes, times in seconds."""

    head: int = 32_768
    """Maximum number of bytes of the request line and the headers."""
    headers: int = 100
    target: int = 8_192
    """Maximum number of bytes of the request target: path and query."""
    body: int = 8_388_608
    bodies: int = 268_435_456
    """Maximum number of bytes of bodies in hand: those that are being sent, and those of requests without an answer.

    And most bytes of answers together that wait for their clients to read.
    """
    head_seconds: float = 10
    """Longest time from the first byte of a head to its end, and from a new connection to the first head."""
    stall_seconds: float = 20
    """Longest time without progress, or with less than ``slowest``, while a body is sent or an answer is read."""
    slowest: int = 500
    """Bytes a second that a client must send of a body on average, besides ``stall_seconds``, and read of an answer."""
    idle_seconds: float = 60
    """Longest time that a connection stays open between two requests."""
    connections: int = 10_000
    per_address: int = 1_000
    """Maximum number of connections from one address that is not a trusted proxy."""

    @property
    def bodies_per_address(self) -> int:
        """Return the most bytes of bodies in hand from one address that is not a trusted proxy: half of all, or one."""
        return max(self.bodies // 2, self.body)
