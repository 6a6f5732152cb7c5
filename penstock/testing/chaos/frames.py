"""A splitter of RESP commands and replies: https://redis.io/docs/latest/develop/reference/protocol-spec/"""

from typing import Final

LINES: Final = b"+-:_,#("
"""Types whose frame is one line."""
BLOBS: Final = b"$!="
"""Types whose line holds the number of bytes that follow."""
AGGREGATES: Final = {b"*"[0]: 1, b"~"[0]: 1, b">"[0]: 1, b"%"[0]: 2, b"|"[0]: 2}
"""Types whose line holds the number of elements that follow; the value is the number of frames of an element."""


class Frames:
    """Split the bytes of a connection into frames, of RESP2 or RESP3."""

    def __init__(self) -> None:
        self._rest = b""

    def whole(self, more: bytes) -> list[bytes]:
        """Return the frames that ``more`` completes. Raise ``ValueError`` for bytes that are not RESP."""
        data, found, begin = self._rest + more, list[bytes](), 0
        while end := _end_of(data, begin):
            found.append(data[begin:end])
            begin = end
        self._rest = data[begin:]
        return found


def words_of(command: bytes) -> list[bytes]:
    """Return the words of a command, which is an array of blobs or an inline command (a line of words)."""
    if not command.startswith(b"*"):
        return command.split()
    found, at = list[bytes](), command.index(b"\r\n") + 2
    while at < len(command):
        begin = command.index(b"\r\n", at) + 2
        end = begin + int(command[at + 1 : begin - 2])
        found.append(command[begin:end])
        at = end + 2
    return found


def _end_of(data: bytes, begin: int) -> int:
    """Return the index behind the frame that begins at ``begin``, or 0 if it is incomplete."""
    owed, at = 1, begin
    while owed:
        end = data.find(b"\r\n", at) + 2
        if end < 2:
            return 0
        kind, length = data[at], data[at + 1 : end - 2]
        if kind in BLOBS:
            end += max(int(length) + 2, 0) if int(length) >= 0 else 0
            if end > len(data):
                return 0
        elif kind in AGGREGATES:
            owed += max(int(length), 0) * AGGREGATES[kind]
            owed += kind == b"|"[0]  # an attribute belongs to the frame behind it
        elif kind not in LINES and not (chr(kind).isalpha() and at == begin):  # a command may be a line of words
            raise ValueError(f"expected a frame of RESP, not {data[at : at + 50]!r}")
        owed -= 1
        at = end
    return at
