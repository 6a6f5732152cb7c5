"""Print replies as redis-cli does, on machines without it: with types on a terminal, raw elsewhere."""

from collections.abc import Sequence
from typing import Any, Final

from redis._parsers import _AsyncRESP2Parser
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import InvalidResponse, ResponseError

from penstock.core.connection import connect

ESCAPES: Final = {0x22: '\\"', 0x5C: "\\\\", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x07: "\\a", 0x08: "\\b"}

TEXT_COMMANDS: Final = {
    "client": {"list", "info"},
    "cluster": {"nodes", "info"},
    "debug": {"htstats", "htstats-key", "client-eviction"},
    "latency": {"graph", "doctor"},
    "memory": {"malloc-stats", "doctor"},
}
"""Commands whose reply is text for people, printed raw on a terminal, too, like that of INFO and LOLWUT."""


class Status(bytes):
    """A simple string such as ``OK``, which redis-cli prints without quotes."""


class Failure(ResponseError):
    """An error reply with its exact text (redis-py removes the leading ``ERR``)."""


Reply = Status | bytes | int | None | Failure | list["Reply"]


class ExactReplies(_AsyncRESP2Parser):
    """redis-py's parser, but it keeps simple strings apart from others, and the exact text of errors."""

    async def _read_response(self, disable_decoding: bool = False) -> Any:
        line: bytes = await self._readline()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return Status(rest)
        if kind == b"-":
            return Failure(rest.decode(errors="surrogateescape"))
        if kind == b":":
            return int(rest)
        if kind not in b"$*":
            raise InvalidResponse(f"not a reply of RESP2: {line[:80]!r}")
        if rest == b"-1":
            return None
        if kind == b"$":
            text: bytes = await self._read(int(rest))
            return text
        return [await self._read_response() for _ in range(int(rest))]


async def send_command(url: str, words: Sequence[bytes]) -> Reply:
    """Send one command and return its reply, without a time limit; return an error reply instead of raising it.

    Return None if SHUTDOWN ended the server.
    """
    client = connect(url, silence=None, name="penstock-redis")
    client.connection_pool.connection_kwargs["parser_class"] = ExactReplies
    client.response_callbacks.clear()
    try:
        reply: Reply = await client.execute_command(*words)
    except Failure as failure:
        return failure
    except Disconnected:
        if words[0].lower() == b"shutdown":
            return None
        raise
    finally:
        await client.aclose()
    return reply


def format_typed(reply: Reply, words: Sequence[bytes] = ()) -> bytes:
    """Return what redis-cli prints on a terminal, or with ``--no-raw``, for the reply to ``words``."""
    return _bare(reply) if _is_textual(words) else _typed(reply, "")


def format_raw(reply: Reply, words: Sequence[bytes] = ()) -> bytes:
    """Return what redis-cli prints into a pipe or a file."""
    return _bare(reply) + (b"" if _is_textual(words) else b"\n")


def quoted(text: bytes) -> str:
    """Return ``text`` in double quotes, with every byte escaped that is not printable ASCII."""
    return '"' + "".join(_letter(byte) for byte in text) + '"'


def _letter(byte: int) -> str:
    return ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")


def _typed(reply: Reply, indent: str) -> bytes:
    """Return the reply with types; ``indent`` precedes every line but the first, which the outer array numbers."""
    if isinstance(reply, list):
        return _numbered(reply, indent) if reply else b"(empty array)\n"
    if isinstance(reply, Failure):
        return b"(error) " + _words(reply) + b"\n"
    if isinstance(reply, Status):
        return bytes(reply) + b"\n"
    if isinstance(reply, bytes):
        return f"{quoted(reply)}\n".encode()
    return b"(nil)\n" if reply is None else b"(integer) %d\n" % reply


def _numbered(replies: list[Reply], indent: str) -> bytes:
    width = len(str(len(replies)))
    within = indent + " " * (width + 2)
    lines = []
    for place, reply in enumerate(replies, start=1):
        before = indent if place > 1 else ""
        lines.append(f"{before}{place:>{width}}) ".encode() + _typed(reply, within))
    return b"".join(lines)


def _bare(reply: Reply) -> bytes:
    if isinstance(reply, list):
        return b"\n".join(_bare(element) for element in reply)
    if isinstance(reply, Failure):
        return _words(reply) + b"\n"
    if isinstance(reply, bytes):
        return bytes(reply)
    return b"" if reply is None else b"%d" % reply


def _words(failure: Failure) -> bytes:
    return str(failure.args[0]).encode(errors="surrogateescape")


def _is_textual(words: Sequence[bytes]) -> bool:
    command, *rest = [word.decode(errors="replace").lower() for word in words[:2]] or [""]
    return command in {"info", "lolwut"} or (bool(rest) and rest[0] in TEXT_COMMANDS.get(command, ()))
