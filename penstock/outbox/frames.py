"""Frames of the outbox's wire as bytes: made, and read from pieces of any size.

A frame has a header of six bytes (version, kind, length of its body) and a body of msgpack. That of messages has the
length of their heads, the heads (``[[seq, id, keys, sent, size], ...]``) and their data as they are: nothing that
a peer sends becomes more than a few times its size in memory.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from penstock.base.errors import PenstockError
from penstock.base.extras import extra

with extra("outbox"):
    import msgpack

VERSION: Final = 1
HEADER: Final = struct.Struct(">BBI")
HEADS: Final = struct.Struct(">I")
STRANGER_BYTES: Final = 4096
"""Largest body before a peer is authenticated."""
CONTROL_BYTES: Final = 65_536
"""Largest body without messages."""
HEADS_BYTES: Final = 262_144
"""Maximum number of bytes of the heads of one frame."""
FRAME_BYTES: Final = 262_144
"""Data of one frame, unless one message has more."""
MAX_REASON: Final = 500
"""Characters of a reason: longer ones are cut."""
REFUSALS: Final = 25
"""Maximum number of refusals of one frame: with reasons of four bytes a character they fit into ``CONTROL_BYTES``."""
MAX_KEYS: Final = 1000
MAX_KEYS_BYTES: Final = 65_536
"""Of all keys of a message, with four for each."""
MAX_SEQ: Final = 2**63 - 1


class Kind(IntEnum):
    HELLO = 1
    PROOF = 2
    MESSAGES = 3
    ACKNOWLEDGED = 4
    PING = 5
    PONG = 6
    BYE = 7


class Violation(PenstockError):
    """The other side broke the protocol; the message says how, and shows nothing of what came."""


class WrongVersion(Violation):
    """The other side speaks another version, or something else."""


class MessageFrame(NamedTuple):
    """A message on the wire."""

    seq: int
    """Its number at this destination, from 1: greater than that of the message before it on this connection."""
    id: bytes
    """16 bytes, a UUIDv7."""
    keys: Sequence[str]
    data: bytes
    sent: float = 0.0
    """When it was published (s since the epoch), by the publisher's clock; only for people."""


class Acknowledged(NamedTuple):
    """What the other side has settled."""

    upto: int
    """It has on disk, or has refused, all messages up to this seq."""
    refused: Mapping[int, str]
    """Those that it will never take, by seq, with the reason: dead letters of the sender."""


def frame(kind: Kind, body: Any) -> bytes:
    """Return a frame whose body is ``body`` as msgpack."""
    packed: bytes = msgpack.packb(body)
    return HEADER.pack(VERSION, kind, len(packed)) + packed


def frame_of(messages: Iterable[MessageFrame]) -> bytes:
    """Return one frame with ``messages``."""
    heads, data = [], []
    for each in messages:
        heads.append((each.seq, each.id, each.keys, each.sent, len(each.data)))
        data.append(each.data)
    packed: bytes = msgpack.packb(heads)
    length = HEADS.size + len(packed) + sum(map(len, data))
    return b"".join([HEADER.pack(VERSION, Kind.MESSAGES, length), HEADS.pack(len(packed)), packed, *data])


def weight_of(message: MessageFrame, largest: int) -> int:
    """Return how many bytes ``message`` counts in a window: its data, its keys, and four for each key.

    Raise ``ValueError`` if no peer would take it, or it weighs more than ``largest`` bytes.
    """
    if len(message.id) != 16 or not 0 < message.seq <= MAX_SEQ or not message.keys:
        raise ValueError("expected a seq from 1, an id of 16 bytes and a key at least")
    keys = _keys_bytes(message.keys)
    if len(message.keys) > MAX_KEYS or keys > MAX_KEYS_BYTES:
        raise ValueError(f"expected at most {MAX_KEYS:,} keys of {MAX_KEYS_BYTES:,} bytes together")
    weight = keys + len(message.data)
    if weight > largest:
        raise ValueError(f"a message of {weight:,} bytes is too large: the limit is {largest:,}")
    return weight


class Reader:
    """Takes bytes and returns whole frames. Holds one frame that is not whole, at most ``largest`` bytes."""

    def __init__(self, largest: int = STRANGER_BYTES) -> None:
        self.largest = largest
        """Maximum number of bytes of a body with messages; 4 KiB until the peer is authenticated."""
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take ``data``; yield kind and body of each frame that is whole. Raise ``Violation``.

        ``largest`` may be changed between two frames.
        """
        self._held += data
        start = 0
        try:
            while len(self._held) - start >= HEADER.size:
                version, kind, length = HEADER.unpack_from(self._held, start)
                self._check(version, kind, length)
                end = start + HEADER.size + length
                if len(self._held) < end:
                    return
                body = bytes(memoryview(self._held)[start + HEADER.size : end])
                start = end
                yield kind, body
        finally:
            del self._held[:start]

    def _check(self, version: int, kind: int, length: int) -> None:
        if version != VERSION:
            raise WrongVersion(f"it speaks version {version} of the protocol, or another protocol: expected {VERSION}")
        most = self.largest if kind == Kind.MESSAGES else min(self.largest, CONTROL_BYTES)
        if length > most:
            raise Violation(f"a frame of {length:,} bytes is too large: the limit is {most:,}")


def unpacked(body: bytes) -> Any:
    """Return what ``body`` has. Raise ``Violation`` if it is not one object of msgpack."""
    try:
        return msgpack.unpackb(body, use_list=False)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        raise Violation("a frame has a body that is not msgpack") from None


def messages_in(body: bytes) -> tuple[list[MessageFrame], list[int]]:
    """Return the messages of a frame, and what each weighs (see ``weight_of``). Raise ``Violation``."""
    if len(body) < HEADS.size:
        raise Violation("a frame of messages has no heads")
    (length,) = HEADS.unpack_from(body)
    start = HEADS.size + length
    if length > HEADS_BYTES or start > len(body):
        raise Violation("a frame of messages has heads of a wrong length")
    heads = unpacked(body[HEADS.size : start])
    if not isinstance(heads, tuple) or not heads:
        raise Violation("a frame of messages has no list of heads")
    found, weights = list[MessageFrame](), list[int]()
    for head in heads:
        keys_bytes = _checked(head)
        seq, id, keys, sent, size = head
        found.append(MessageFrame(seq, id, keys, body[start : start + size], sent))
        weights.append(keys_bytes + size)
        start += size
    if start != len(body):
        raise Violation("a frame of messages has other data than its heads say")
    return found, weights


def acknowledgements(upto: int, refused: Mapping[int, str]) -> bytes:
    """Return the frames that acknowledge all messages up to ``upto``, but for those ``refused``."""
    reasons = [(seq, refused[seq][:MAX_REASON]) for seq in sorted(refused)]
    parts = [reasons[start : start + REFUSALS] for start in range(0, len(reasons), REFUSALS)]
    frames = [frame(Kind.ACKNOWLEDGED, (part[-1][0], part)) for part in parts]
    if not reasons or reasons[-1][0] < upto:
        frames.append(frame(Kind.ACKNOWLEDGED, (upto, ())))
    return b"".join(frames)


def acknowledged_in(body: bytes) -> Acknowledged:
    """Return what a frame acknowledges. Raise ``Violation``."""
    match unpacked(body):
        case (int() as upto, tuple() as refused) if _is_number(upto, MAX_SEQ):
            return Acknowledged(upto, dict(_refusal(each, upto) for each in refused))
    raise Violation("a frame of acknowledgements has something else")


def reason_in(body: bytes) -> str:
    """Return why the other side says bye. Raise ``Violation``."""
    reason = unpacked(body)
    if not isinstance(reason, str):
        raise Violation("a bye without a reason")
    return _printable(reason)


def number_in(body: bytes) -> int:
    """Return the number of a ping or a pong. Raise ``Violation``."""
    number = unpacked(body)
    if type(number) is not int:
        raise Violation("a ping without a number")
    return number


def _refusal(found: Any, upto: int) -> tuple[int, str]:
    match found:
        case (int() as seq, str() as reason) if _is_number(seq, upto):
            return seq, _printable(reason)
    raise Violation("a frame of acknowledgements has a refusal that is none")


def _printable(text: str) -> str:
    """Return a reason so that it cannot control a terminal or forge lines of a log."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_REASON])


def _checked(head: Any) -> int:
    """Return how many bytes the keys of ``head`` weigh. Raise ``Violation`` if it is no head."""
    try:
        seq, id, keys, sent, size = head
        if (
            type(seq) is type(size) is int
            and type(sent) in (float, int)
            and type(id) is bytes
            and type(keys) is tuple
            and 0 < seq <= MAX_SEQ
            and len(id) == 16
            and 0 < len(keys) <= MAX_KEYS
            and (weight := _keys_bytes(keys)) <= MAX_KEYS_BYTES
            and 0 <= sent < 2**40
            and 0 <= size < 2**32
        ):
            return weight
    except (TypeError, ValueError):  # not five parts, or keys that are no text
        pass
    raise Violation("a message has a head that is none")


def _is_number(value: object, most: int) -> bool:
    return type(value) is int and 0 < value <= most


def _keys_bytes(keys: Sequence[str]) -> int:
    return len("".join(keys).encode()) + 4 * len(keys)
