"""Encoding of messages for the link: as they are, with hops counted, compressed, or unpacked."""

import json
from collections.abc import Iterator
from typing import Any, Final

import zstandard

from penstock.core.once import Dead, Outgoing
from services.vpush.settings import Settings

COMPRESSIBLE_PART: Final = 0.99
"""Part of the largest message that a batch to compress may have: random bytes grow a little."""
MAGIC: Final = b"penstock:zstd:1\n"
"""The beginning of a compressed batch; zstd of each message's length (little-endian) and bytes follows."""
MAX_UNPACKED_BYTES: Final = 1_073_741_824
"""Maximum number of bytes of a batch once it is unpacked."""
LENGTH_BYTES: Final = 4
"""Bytes of a message's length in a compressed batch."""
MAX_MESSAGES: Final = 5_000
"""Maximum number of messages of a compressed batch: as many as ``batch`` allows, and as one script takes."""
_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Encoder:
    """Callable that encodes messages. Deterministic: equal input gives equal bytes, so a resend is identical."""

    def __init__(self, settings: Settings, largest: int) -> None:
        """``largest`` is the bytes of the largest message that the other server accepts."""
        self._compresses, self._unpacks, self._hops = settings.compression != "none", settings.unpack, settings.max_hops
        self._largest = int(largest * COMPRESSIBLE_PART) if self._compresses else largest

    def __call__(self, first: int, messages: list[bytes], size: int) -> Outgoing:
        if not (self._compresses or self._unpacks or self._hops) and size <= self._largest:
            return Outgoing(messages, [])
        going: list[bytes] = []
        dead: list[Dead] = []
        for number, message in enumerate(messages, start=first):
            try:
                going += self._checked(message)
            except Unsendable as unsendable:
                dead.append(Dead(number, *unsendable.args))
        return Outgoing([packed(part) for part in self._parts(going)] if self._compresses else going, dead)

    def _parts(self, messages: list[bytes]) -> Iterator[list[bytes]]:
        """Yield parts that are small enough for the other server even if nothing can be compressed."""
        part: list[bytes] = []
        size = 0
        for message in messages:
            size += LENGTH_BYTES + len(message)
            if part and size > self._largest:
                yield part
                part, size = [], LENGTH_BYTES + len(message)
            part.append(message)
        if part:
            yield part

    def _checked(self, message: bytes) -> list[bytes]:
        """Return what to send for one message. Raise ``Unsendable``."""
        if self._hops:
            message = one_more_hop(message, self._hops)
        several = unpacked(message) if self._unpacks else [message]
        for each in several:
            if len(each) > self._largest:
                raise Unsendable("tooLarge", f"{len(each)} bytes, where the other server takes {self._largest}")
        return several


class Unsendable(Exception):
    """A message that cannot be sent: the reason of its dead letter, and words; without words it is only dropped."""


def packed(messages: list[bytes]) -> bytes:
    """Return ``messages`` compressed into one."""
    lengths = b"".join(len(message).to_bytes(LENGTH_BYTES, "little") + message for message in messages)
    return MAGIC + zstandard.ZstdCompressor().compress(lengths)


def unpacked(message: bytes) -> list[bytes]:
    """Return the messages that ``packed`` was given. Raise ``Unsendable``."""
    if not message.startswith(MAGIC):
        raise Unsendable("notPacked", "expected a batch that vpush has compressed")
    frame = message[len(MAGIC) :]
    try:
        if zstandard.frame_content_size(frame) > MAX_UNPACKED_BYTES:
            raise Unsendable("notPacked", f"more than {MAX_UNPACKED_BYTES} bytes")
        data = zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=MAX_UNPACKED_BYTES, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise Unsendable("notPacked", str(error)) from None
    found: list[bytes] = []
    place = 0
    while place < len(data):
        if len(found) == MAX_MESSAGES:
            raise Unsendable("notPacked", f"more than {MAX_MESSAGES} messages")
        begin = place + LENGTH_BYTES
        end = begin + int.from_bytes(data[place:begin], "little")
        found.append(data[begin:end])
        place = end
    if place != len(data):
        raise Unsendable("notPacked", "the last message is cut off")
    if not found:  # vpush packs no empty batch: a frame that claims to be empty was not decompressed
        raise Unsendable("notPacked", "no messages")
    return found


def one_more_hop(message: bytes, most: int) -> bytes:
    """Return ``message`` with ``meta.hops`` raised by one. Raise ``Unsendable``, without words if that is too many."""
    try:
        content: Any = json.loads(message)
        hops = content.setdefault("meta", {}).get("hops", 0)
        if isinstance(hops, bool) or not hops >= 0:  # such as NaN, which never grows
            raise TypeError
        content["meta"]["hops"] = hops + 1
    except (ValueError, RecursionError, AttributeError, TypeError):
        raise Unsendable("noEnvelope", "expected a JSON object, whose meta.hops counts the links") from None
    if hops + 1 > most:
        raise Unsendable("maxHops", "")
    return _json(content).encode(errors="backslashreplace")  # half a surrogate pair, as JSON writes it
