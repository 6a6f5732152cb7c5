"""Where commands and replies of RESP end: https://redis.io/docs/latest/develop/reference/protocol-spec/"""

from typing import Final

LINES: Final = b"+-:_,#("
"""Types that end with their line."""
BLOBS: Final = b"$!="
"""Types whose line says how many bytes follow."""
AGGREGATES: Final = {b"*"[0]: 1, b"~"[0]: 1, b">"[0]: 1, b"%"[0]: 2, b"|"[0]: 2}
"""Types whose line says how many elements follow, and of how many frames each consists."""


class Frames:
    """Splits what comes over a connection, in RESP2 or RESP3."""

    def __init__(self) -> None:
        self._rest = b""

    def whole(self, more: bytes) -> list[bytes]:
        """The frames that ``more`` completes. Raises ``ValueError`` for what is no RESP."""
        data, found, begin = self._rest + more, list[bytes](), 0
        while end := _end_of(data, begin):
            found.append(data[begin:end])
            begin = end
        self._rest = data[begin:]
        return found


def words_of(command: bytes) -> list[bytes]:
    """The words of a command, which is an array of blobs, or a line of words."""
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
    """Where the frame that begins at ``begin`` ends; 0 where some of it is missing."""
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
