"""Frames and lines of busmq's federation: the channels of a websocket, and the calls that each carries as JSON.

A frame is the id of a channel (16 characters), its kind, and data. The first frame of a channel creates an object at
the other end, which answers ``ready``; after that both ends send lines of JSON, each a call of a method or a callback.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from websockets.typing import Subprotocol

ID_BYTES: Final = 16
DATA: Final = b"1"
CLOSE: Final = b"2"
READY: Final = b"ready"
FUNCTION: Final = "[Function]"
"""What stands in place of a callback among arguments."""
SUBPROTOCOL: Final = Subprotocol("penstock.bus")
"""What a client names that gives its secret in the first frame, since a browser cannot set a header."""
HEADER: Final = "Penstock-Gateway"
"""The header of a response that says which methods a gateway has: see ``VERSION``; Node's server has none."""
VERSION: Final = 2
"""That of our gateway. 1 has ``pushAll`` and ``handled``; 2 has ``peek``, writes parts of an object, and closes nothing
when it is asked for a method that it does not have."""
MAX_FRAME_HEADER: Final = "Penstock-Max-Frame"
"""The header of a response that says how many bytes a frame, and a call, may have."""
_SPLIT: Final = (",", ":")
LISTENING: Final = ("on", "once", "promisify")
"""Names that each object of busmq announces besides its methods."""


class Call(NamedTuple):
    """A call as it came: ``method``, its arguments without a callback, and the callback's id if it has one."""

    method: str
    values: list[Any]
    callback: int | None


def dumped(value: Any) -> bytes:
    """Return ``value`` as JSON on one line, in ASCII: so a lone surrogate, which stands for a byte, stays one."""
    return json.dumps(value, separators=_SPLIT).encode()


def event_line(callback: int, values: Sequence[Any]) -> bytes:
    """Return the line that calls a callback of the other end."""
    return b'{"method":%d,"arguments":%b}\n' % (callback, dumped(values))


def call_line(method: str, values: Sequence[Any], callback: int | None = None) -> bytes:
    """Return the line that calls a method of the other end's object."""
    arguments = {str(place): value for place, value in enumerate(values)}
    callbacks = dict[str, list[str]]()
    if callback is not None:
        arguments[str(len(values))] = FUNCTION
        callbacks[str(callback)] = ["0", str(len(values))]
    return dumped({"method": method, "arguments": [arguments], "callbacks": callbacks, "links": []}) + b"\n"


def methods_line(names: Sequence[str]) -> bytes:
    """Return the line with which each end announces the methods of its object."""
    functions: list[Any] = [dict.fromkeys(names, FUNCTION)]
    callbacks = {str(place): ["0", name] for place, name in enumerate(names)}
    return dumped({"method": "methods", "arguments": functions, "callbacks": callbacks, "links": []}) + b"\n"


class Lines:
    """Collects the lines of one direction of a channel: a frame may end within one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return what the lines that ``data`` ends hold. Raise ``ValueError`` for what is no JSON, or too long."""
        end = data.rfind(b"\n")
        self._size += len(data) if end < 0 else 0
        if self._size > self._most:
            raise ValueError(f"a line is longer than {self._most:,} bytes")
        if end < 0:
            self._parts.append(data)
            return []
        whole = b"".join((*self._parts, data[:end]))
        self._parts, self._size = [data[end + 1 :]], len(data) - end - 1
        rows: list[dict[str, Any]] = loaded(b"[" + whole.replace(b"\n", b",") + b"]")
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a line holds no object")
        return rows


def loaded(data: bytes) -> Any:
    """Return the value of JSON. Raise ``ValueError`` if it is none."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parsed_call(row: Mapping[str, Any], names: Sequence[str]) -> Call | None:
    """Return the call in a line; None for what needs none. ``names`` are the methods as they were announced.

    Raise ``ValueError`` if it is no call.
    """
    method, arguments = row.get("method"), row.get("arguments")
    if method in ("methods", "cull"):
        return None
    if type(method) is int and 0 <= method < len(names):
        method = names[method]
    if not isinstance(method, str) or not isinstance(arguments, list):
        raise ValueError("a line holds no call")
    first = arguments[0] if arguments else {}
    values = list(first.values()) if isinstance(first, dict) else first
    callbacks = row.get("callbacks") or {}
    if not isinstance(values, list) or not isinstance(callbacks, dict):
        raise ValueError("the arguments of a call are neither an object nor an array")
    if not callbacks:
        return Call(method, values, None)
    if values and values[-1] == FUNCTION:
        values.pop()
    return Call(method, values, int(next(reversed(callbacks))))


def parsed_event(row: Mapping[str, Any]) -> tuple[int, list[Any]] | None:
    """Return the callback that a line calls, and its arguments; None for what needs none. Raise ``ValueError``."""
    method, arguments = row.get("method"), row.get("arguments")
    if isinstance(method, str):
        return None
    if type(method) is not int or not isinstance(arguments, list):
        raise ValueError("a line holds no call")
    return method, arguments
