"""The names of keys and channels: as busmq 3.1.0 has them, and those of Penstock's own clients."""

from typing import Final, NamedTuple, Self

from penstock.base.encoding import encoded

QUEUES: Final = b"bus:queue:"
"""How the keys of queues begin; then come the name, a colon and the kind."""
MOVING: Final = b"bus:moving:"
"""The same of queues that are being moved."""
CLOSED: Final = b"bus:closed"
"""The channel on which buses hear of closed queues: the time (us), a space, the name."""
MOVED: Final = b"bus:moved"
"""The channel on which buses hear of queues that were moved to another server, by name."""
NOTIFICATIONS: Final = "bus:notifications"
"""The topic on which discoverable queues are announced."""


class QueueKeys(NamedTuple):
    """The keys of one queue, as the scripts name them."""

    metadata: bytes
    messages: bytes
    msgid: bytes
    toack: bytes

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the keys of the queue ``name``."""
        return cls(*(queue_key(name, kind) for kind in cls._fields))

    @property
    def named(self) -> dict[str, bytes]:
        """Return them by their names in the scripts."""
        return self._asdict()


def queue_key(name: str | bytes, kind: str) -> bytes:
    """Return the key of this kind of a queue."""
    return b"%b%b:%b" % (QUEUES, name if isinstance(name, bytes) else encoded(name), kind.encode())


def metadata_key(name: str) -> str:
    """Return the key by which a queue is found and placed, as text: the placement of busmq counts its code units."""
    return f"{QUEUES.decode()}{name}:metadata"


def lease_key(name: str | bytes) -> bytes:
    """Return the key that says who consumes a queue alone."""
    return queue_key(name, "consumer")


def ledger_key(name: str | bytes) -> bytes:
    """Return the key that says what has come from each outbox. Clients of busmq do not know it."""
    return queue_key(name, "ledger")


def available_channel(name: str | bytes) -> bytes:
    """Return the channel on which consumers hear of new messages of a queue."""
    return queue_key(name, "available")


def direct_channel(name: str) -> bytes:
    """Return the channel on which the requester that has this queue gets answers: JSON lists."""
    return queue_key(name, "direct")


def moving_key(name: str, kind: str) -> bytes:
    """Return the key of this kind of a queue that is being moved."""
    return b"%b%b:%b" % (MOVING, encoded(name), kind.encode())


def topic_channel(name: str) -> bytes:
    """Return the channel of a topic."""
    return b"bus:pubsub:" + encoded(name)


def object_key(name: str) -> str:
    """Return the key of an object, as text: see ``metadata_key``."""
    return f"bus:persisted:{name}"
