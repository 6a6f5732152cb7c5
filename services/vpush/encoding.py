"""What goes over the link for the messages of here: as they are, counted, compressed, or unpacked."""

import json
from collections.abc import Iterator
from typing import Any, Final

import zstandard

from penstock.transfer.protocol import Dead, Outgoing
from services.vpush.settings import Settings

SLACK: Final = 0.99
"""What may be compressed must be smaller: random bytes grow a little."""
MAGIC: Final = b"penstock:zstd:1\n"
"""How a batch begins that was compressed: then zstd of each message's length (the least byte first) and bytes."""
UNPACKED: Final = 1_073_741_824
"""Bytes that a batch may have at most when it is unpacked."""
LENGTH: Final = 4
"""Bytes of a message's length there."""
MOST: Final = 5_000
"""Messages that it may have: as many as ``batch`` allows, and as one script takes."""
_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Preparation:
    """Called with the number of the first message and some messages; the same again for the same."""

    def __init__(self, settings: Settings, largest: int) -> None:
        """``largest``: bytes of a message that the other server takes."""
        self._compresses, self._unpacks, self._hops = settings.compression != "none", settings.unpack, settings.max_hops
        self._largest = int(largest * SLACK) if self._compresses else largest

    def __call__(self, first: int, messages: list[bytes], size: int) -> Outgoing:
        if not (self._compresses or self._unpacks or self._hops) and size <= self._largest:
            return Outgoing(messages, [])
        going: list[bytes] = []
        dead: list[Dead] = []
        for number, message in enumerate(messages, start=first):
            try:
                going += self._checked(message)
            except Unfit as unfit:
                dead.append(Dead(number, *unfit.args))
        return Outgoing([packed(part) for part in self._parts(going)] if self._compresses else going, dead)

    def _parts(self, messages: list[bytes]) -> Iterator[list[bytes]]:
        """Each small enough for the other server, also where nothing can be compressed."""
        part: list[bytes] = []
        size = 0
        for message in messages:
            size += LENGTH + len(message)
            if part and size > self._largest:
                yield part
                part, size = [], LENGTH + len(message)
            part.append(message)
        if part:
            yield part

    def _checked(self, message: bytes) -> list[bytes]:
        """What goes for one message. Raises ``Unfit``."""
        if self._hops:
            message = one_more_hop(message, self._hops)
        several = unpacked(message) if self._unpacks else [message]
        for each in several:
            if len(each) > self._largest:
                raise Unfit("tooLarge", f"{len(each)} bytes, where the other server takes {self._largest}")
        return several


class Unfit(Exception):
    """A message that cannot go: the reason of its dead letter, and words; without words it is dropped and counted."""


def packed(messages: list[bytes]) -> bytes:
    """One message for many."""
    lengths = b"".join(len(message).to_bytes(LENGTH, "little") + message for message in messages)
    return MAGIC + zstandard.ZstdCompressor().compress(lengths)


def unpacked(message: bytes) -> list[bytes]:
    """What ``packed`` was given. Raises ``Unfit``."""
    if not message.startswith(MAGIC):
        raise Unfit("notPacked", "expected a batch that vpush has compressed")
    frame = message[len(MAGIC) :]
    try:
        if zstandard.frame_content_size(frame) > UNPACKED:
            raise Unfit("notPacked", f"more than {UNPACKED} bytes")
        data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=UNPACKED, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Unfit("notPacked", str(error)) from None
    found: list[bytes] = []
    place = 0
    while place < len(data):
        if len(found) == MOST:
            raise Unfit("notPacked", f"more than {MOST} messages")
        begin = place + LENGTH
        end = begin + int.from_bytes(data[place:begin], "little")
        found.append(data[begin:end])
        place = end
    if place != len(data):
        raise Unfit("notPacked", "the last message is cut off")
    if not found:  # nobody packs none: a frame that claims to be empty is not looked into
        raise Unfit("notPacked", "no messages")
    return found


def one_more_hop(message: bytes, most: int) -> bytes:
    """``message`` with ``meta.hops`` one higher. Raises ``Unfit``, without words where that would be too many."""
    try:
        content: Any = json.loads(message)
        hops = content.setdefault("meta", {}).get("hops", 0)
        if isinstance(hops, bool) or not hops >= 0:  # such as NaN, which never grows
            raise TypeError
        content["meta"]["hops"] = hops + 1
    except (ValueError, RecursionError, AttributeError, TypeError):
        raise Unfit("noEnvelope", "expected a JSON object, whose meta.hops counts the links") from None
    if hops + 1 > most:
        raise Unfit("maxHops", "")
    return _json(content).encode(errors="backslashreplace")  # half a surrogate pair, as JSON writes it
