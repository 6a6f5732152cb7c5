"""The keys and channels of a bus, as busmq 3.1.0 has them, and the numbers there: ids and times to live.

Numbers that others have written are read as ``penstock/core/lua/parts/numbers.lua`` does.
"""

from typing import Final, NamedTuple, Self

from penstock.base.encoding import encoded
from penstock.base.errors import WrongCall

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
MAX_ID: Final = 2**53 - 1
"""Largest id of a message: Lua counts no further."""
MAX_TTL: Final = 10**9
"""Longest ttl (s) of a queue."""
MAX_DIGITS: Final = 16


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


def is_whole(value: object, least: int, most: int = MAX_ID) -> bool:
    """Return whether ``value`` is a whole number from ``least`` to ``most``, such as 5 or 5.0."""
    return isinstance(value, int | float) and least <= value <= most and value == int(value)


def check_attaching(ttl: object, maxsize: object) -> None:
    """Raise ``WrongCall`` for what is no ttl (s) or maxsize of a queue."""
    if not (is_whole(ttl, 1, MAX_TTL) and is_whole(maxsize, 0)):
        raise WrongCall(f"ttl={ttl!r}, maxsize={maxsize!r}: expected whole seconds from 1 to 10^9, and at least 0")


def check_id(id_: object) -> None:
    """Raise ``WrongCall`` for what is no id of a message."""
    if type(id_) is not int:
        raise WrongCall(f"ack: expected the id of a message, found {id_!r}")


def check_field(field: object) -> None:
    """Raise ``WrongCall`` for what is no name of a field of the metadata."""
    if not isinstance(field, str):
        raise WrongCall(f"metadata: expected the name of a field as text, found {field!r}")


def whole(word: bytes, most: int = MAX_ID) -> int | None:
    """Return ``word`` as a number; None unless it is decimal digits only, at most ``most``."""
    number = int(word) if len(word) <= MAX_DIGITS and word.isdigit() else None
    return None if number is None or number > most else number
