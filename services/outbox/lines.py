"""What programs and the service say at the socket: JSON objects, one a line."""

import base64
import binascii
import json
from typing import Any, Final

from penstock.base.encoding import is_unicode
from penstock.base.errors import PenstockError
from penstock.outbox import Message

MAX_LINE: Final = 32 * 1024 * 1024
"""Bytes: the largest message fits as base64."""
MAX_SOURCE: Final = 200
MAX_NUMBER: Final = 2**53 - 1
"""The largest whole number that every language's JSON has."""
SHOWN: Final = 60


class Unexpected(PenstockError):
    """A line is not as expected."""


class Lines:
    """Cuts what comes into lines."""

    def __init__(self) -> None:
        self._parts, self._size = list[bytes](), 0

    def add(self, chunk: bytes) -> list[bytes]:
        """Return the lines that ``chunk`` ends, without line feeds. Raise ``Unexpected`` if one is too long."""
        first, *others = chunk.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > MAX_LINE:
            raise Unexpected(f"a line has more than {MAX_LINE:,} bytes")
        if not others:
            return []
        found = [b"".join(self._parts), *others[:-1]]
        self._parts, self._size = [others[-1]], len(others[-1])
        return found


def parsed(line: bytes) -> dict[str, Any]:
    """Raise ``Unexpected`` if ``line`` is no JSON object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unexpected(f"expected a JSON object a line, found {line[:SHOWN].decode(errors='replace')!r}")
    return found


def written(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def number_in(fields: dict[str, Any], name: str, most: int = MAX_NUMBER) -> int:
    """Return the whole number of 1 or more at ``name``. Raise ``Unexpected``."""
    found = fields.get(name)
    if type(found) is not int or not 1 <= found <= most:
        raise Unexpected(f"{name}: expected a whole number from 1 to {most}")
    return found


def source_in(fields: dict[str, Any]) -> str:
    """Raise ``Unexpected`` if there is no name of a source."""
    found = fields["source"]
    if not isinstance(found, str) or not 1 <= len(found) <= MAX_SOURCE or not is_unicode(found):
        raise Unexpected(f"source: expected a text of 1 to {MAX_SOURCE} characters")
    return found


def keys_in(fields: dict[str, Any]) -> tuple[str, ...]:
    """Return the key or keys of a message to publish. Raise ``Unexpected``."""
    if "publish" not in fields:
        raise Unexpected(
            f"expected publish or source, or take first on a connection; found {', '.join(fields)[:SHOWN]!r}"
        )
    found = fields["publish"]
    keys: list[Any] = found if isinstance(found, list) else [found]
    if not all(isinstance(key, str) and key for key in keys):
        raise Unexpected("publish: expected a key, or a list of keys")
    return tuple(keys)


def data_in(fields: dict[str, Any]) -> bytes:
    """Return the data of a message to publish. Raise ``Unexpected``."""
    text, coded = fields.get("text"), fields.get("base64")
    if isinstance(text, str) and coded is None:
        if not is_unicode(text):
            raise Unexpected("text: half of a surrogate pair is no character; write bytes as base64")
        return text.encode()
    if isinstance(coded, str) and text is None:
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError):
            raise Unexpected("base64: this is none") from None
    raise Unexpected("expected the message either as text or as base64")


def handed(number: int, message: Message) -> bytes:
    """Return the line with which ``message`` is handed to a program as its ``number``."""
    data = bytes(message)
    try:
        body = {"text": data.decode()}
    except UnicodeDecodeError:
        body = {"base64": base64.b64encode(data).decode()}
    told = {"id": message.id, "keys": message.keys, "sender": message.sender, "attempts": message.attempts}
    return written({"message": number, **told, **body})
