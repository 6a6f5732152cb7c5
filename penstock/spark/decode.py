"""Decode pages of an event stream to Arrow, column by column; only malformed entries are decoded one by one.

An entry holds ``count`` events. A field is one word for all of them or one line for each: docs/keys.md. All words that
a page has of a field are split into lines at once, and a word for several events is repeated.
"""

import json
import re
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.tracking.events import DETAILS, MAX_EVENTS, MESSAGE

RawEntry = tuple[bytes, list[bytes]]
"""Id, and a list of fields and values in turns, as in the reply of XRANGE."""
FIELDS: Final = [b"first", b"count", b"event", b"id", b"xid", b"at", b"queue", b"service", b"attempt", b"seconds"]
"""Fields of an entry, in the order in which the Lua scripts write them."""
OPTIONAL: Final = [MESSAGE, DETAILS]
"""Fields that follow if one of the events has them: its message (``eventMessages``), and what else it says (JSON)."""
KNOWN: Final = [FIELDS, [*FIELDS, MESSAGE], [*FIELDS, DETAILS], [*FIELDS, *OPTIONAL]]
BAD: Final = (ValueError, KeyError, IndexError, OverflowError)
"""What the decoding raises if an entry is not as our scripts write it; pyarrow's errors are ValueErrors."""
ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
END_OF_TIME: Final = 253_402_214_400_000
"""A time of an event (ms) lies before the last day of the year 9999: after that, not all time zones have a date."""
MAX_NUMBER: Final = 2**62
MAX_COLUMN_BYTES: Final = 2**31 - 1
"""Maximum number of bytes of an Arrow column with 32-bit offsets."""
SCHEMA: Final = pa.schema(
    [
        ("namespace", pa.string()),
        ("entry", pa.string()),
        ("place", pa.int32()),
        ("number", pa.int64()),
        ("event", pa.string()),
        ("id", pa.string()),
        ("xid", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("queue", pa.string()),
        ("service", pa.string()),
        ("attempt", pa.int32()),
        ("seconds", pa.float64()),
        ("malformed", pa.string()),
        ("message", pa.binary()),
        ("extra", pa.string()),
    ]
)
"""``entry`` and ``place``, the index in the entry, identify an event. ``malformed`` holds an entry that is no event.

``extra`` has the details of an event, or the unknown fields of an entry that has some (JSON); null if there are none.
"""


def decode_entries(namespace: str, entries: Sequence[RawEntry]) -> list[pa.RecordBatch]:
    """Return the events of ``entries`` in order.

    An entry that is no event is a row with ``malformed`` (JSON) only; an event of which a field cannot be, too, beside
    the other events of its entry, but its number is known.
    """
    if not entries:
        return []
    try:
        return [_columns(namespace, entries)]
    except BAD:
        if len(entries) == 1:
            return _decode_entry(namespace, *entries[0])
        half = len(entries) // 2
        return decode_entries(namespace, entries[:half]) + decode_entries(namespace, entries[half:])


def _columns(namespace: str, entries: Sequence[RawEntry]) -> pa.RecordBatch:
    """Raise ``ValueError`` if our scripts would write one of ``entries`` otherwise."""
    fields = [each for _, each in entries]
    if any(each[::2] not in KNOWN for each in fields):
        raise ValueError("fields of somebody else")
    firsts, counts = (np.array([int(each[place]) for each in fields]) for place in (1, 3))
    if counts.min() < 1 or counts.max() > MAX_EVENTS:
        raise ValueError("no number of events")
    if firsts.min() < 0 or firsts.max() > MAX_NUMBER:
        raise ValueError("no number of an event")
    before = np.cumsum(counts) - counts
    total = int(counts.sum())
    place = np.arange(total) - np.repeat(before, counts)
    names = pa.array([name for name, _ in entries], pa.binary()).cast(pa.string())

    def column(name: bytes, convert: Callable[[pa.Array], pa.Array] = lambda lines: lines) -> pa.Array:
        return _column([each[2 * FIELDS.index(name) + 1] for each in fields], counts, place, convert)

    kinds = column(b"event")
    if pc.any(pc.equal(kinds, "")).as_py():
        raise ValueError("an event without a kind")
    columns = [
        pa.repeat(namespace, total),
        names if total == len(entries) else names.take(pa.array(np.repeat(np.arange(len(entries)), counts))),
        pa.array(place.astype(np.int32)),
        pa.array(np.repeat(firsts, counts) + place),
        kinds,
        column(b"id"),
        column(b"xid"),
        column(b"at", _times),
        column(b"queue"),
        column(b"service"),
        column(b"attempt", lambda lines: _or_null(lines).cast(pa.int32())),
        column(b"seconds", _seconds),
        pa.nulls(total, pa.string()),
        _messages(fields, kinds, counts, place),
        _details(fields, counts, place),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _messages(fields: list[list[bytes]], kinds: pa.Array, counts: Any, place: Any) -> pa.Array:
    """Return the messages of ``registered`` events; null for other events and entries without messages."""
    words = [_optional(each, MESSAGE) for each in fields]
    has = [word is not None for word in words]
    if not any(has):
        return pa.nulls(len(place), pa.binary())
    wanted = pc.and_(pc.equal(kinds, "registered"), pa.array(np.repeat(has, counts)))
    messages = _column([word or b"" for word in words], counts, place, cut=_bytes)
    return pc.if_else(wanted, messages, pa.scalar(None, pa.binary()))


def _details(fields: list[list[bytes]], counts: Any, place: Any) -> pa.Array:
    words = [_optional(each, DETAILS) for each in fields]
    if not any(words):
        return pa.nulls(len(place), pa.string())
    return _or_null(_column([word or b"" for word in words], counts, place))


def _optional(fields: list[bytes], name: bytes) -> bytes | None:
    """Return the word of a field of ``OPTIONAL``; None if the entry does not have it."""
    names = fields[2 * len(FIELDS) :: 2]
    return fields[2 * (len(FIELDS) + names.index(name)) + 1] if name in names else None


def _column(
    words: list[bytes],
    counts: Any,
    place: Any,
    convert: Callable[[pa.Array], pa.Array] = lambda lines: lines,
    cut: Callable[[bytes, Any], pa.Array] | None = None,
) -> pa.Array:
    """Return one field of all events. ``words`` has the field of each entry; its lines are passed to ``convert``."""
    data = b"\n".join(words) + b"\n"
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    last = np.searchsorted(ends, np.cumsum([len(word) + 1 for word in words]) - 1)
    lines_of = np.diff(last, prepend=-1)
    if not ((lines_of == 1) | (lines_of == counts)).all():
        raise ValueError("neither one word nor one for each")
    lines = convert((cut or _lines)(data, ends))
    if len(lines) == len(place):
        return lines
    each_has_its_own = np.repeat(lines_of > 1, counts)
    return lines.take(pa.array(np.repeat(last - lines_of + 1, counts) + np.where(each_has_its_own, place, 0)))


def _lines(data: bytes, ends: Any) -> pa.Array:
    """Return the lines of ``data``, which end at ``ends``, as text; bytes that are not UTF-8 become ``\\xff``."""
    if b"\\" in data or not _is_text(data):
        return pa.array([_text(ESCAPED.sub(_unescaped, line)) for line in data.split(b"\n")[:-1]], pa.string())
    return _cut(data, ends, pa.string())


def _bytes(data: bytes, ends: Any) -> pa.Array:
    """Return the lines of ``data`` as bytes."""
    if b"\\" not in data:
        return _cut(data, ends, pa.binary())
    _require_room(data)
    return pa.array([_unescape(line) if b"\\" in line else line for line in data.split(b"\n")[:-1]], pa.binary())


def _cut(data: bytes, ends: Any, kind: pa.DataType) -> pa.Array:
    _require_room(data)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends - np.arange(len(ends))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.replace(b"\n", b""))]
    return pa.Array.from_buffers(kind, len(ends), buffers)


def _require_room(data: bytes) -> None:
    if len(data) > MAX_COLUMN_BYTES:
        raise ValueError("too much for one column")


def _unescape(line: bytes) -> bytes:
    """Undo the escaping of ``line``: much faster than ``ESCAPED`` if many bytes are escaped."""
    return b"\\".join(part.replace(b"\\n", b"\n") for part in line.split(b"\\\\"))


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unescaped(found: re.Match[bytes]) -> bytes:
    return b"\n" if found[1] == b"n" else found[1]


def _times(lines: pa.Array) -> pa.Array:
    milliseconds = lines.cast(pa.int64())
    bounds = pc.min_max(milliseconds).as_py()
    if len(milliseconds) and not 0 <= bounds["min"] <= bounds["max"] < END_OF_TIME:
        raise ValueError("no time of an event")
    return pc.multiply(milliseconds, 1000).cast(pa.timestamp("us", tz="UTC"))


def _seconds(lines: pa.Array) -> pa.Array:
    seconds = _or_null(lines).cast(pa.float64())
    if pc.all(pc.is_finite(seconds)).as_py() is False:
        raise ValueError("no duration")
    return seconds


def _or_null(lines: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(lines, ""), pa.scalar(None, pa.string()), lines)


def _decode_entry(namespace: str, name: bytes, fields: list[bytes]) -> list[pa.RecordBatch]:
    """Return the rows of an entry that our scripts would not write: its events, or one row with ``malformed``.

    An entry of another program is one event; one of a newer version may have more fields.
    """
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        if b"count" in values:
            return _events(namespace, name, values, 0, _checked_count(values))
        return [_foreign_event(namespace, name, values)]
    except BAD:
        return [_malformed(namespace, name, values, 0, None)]


def _checked_count(values: dict[bytes, bytes]) -> int:
    """Return how many events an entry has. Raise ``ValueError`` or ``KeyError`` if its fields do not fit together."""
    first, count = int(values[b"first"]), int(values[b"count"])
    lines = {values[field].count(b"\n") + 1 for field in FIELDS}
    if not (1 <= count <= MAX_EVENTS and 0 <= first <= MAX_NUMBER and lines <= {1, count}):
        raise ValueError("its fields do not fit together")
    return count


def _events(namespace: str, name: bytes, values: dict[bytes, bytes], start: int, count: int) -> list[pa.RecordBatch]:
    """Return ``count`` events of an entry from the place ``start`` on; those that cannot be are malformed."""
    part = {field: _part(word, int(values[b"count"]), start, count) for field, word in values.items()}
    number = int(values[b"first"]) + start
    part |= {b"first": b"%d" % number, b"count": b"%d" % count}
    try:
        found = _with_unknown_fields(namespace, name, part)
    except BAD:
        if count == 1:
            return [_malformed(namespace, name, part, start, number)]
        half = count // 2
        earlier = _events(namespace, name, values, start, half)
        return earlier + _events(namespace, name, values, start + half, count - half)
    places = pa.array(np.arange(start, start + count, dtype=np.int32))
    return [found.set_column(SCHEMA.names.index("place"), SCHEMA.field("place"), places)]


def _part(word: bytes, total: int, start: int, count: int) -> bytes:
    """Return the lines of a word for some of ``total`` events, or the word if it is for all."""
    lines = word.split(b"\n")
    return b"\n".join(lines[start : start + count]) if len(lines) == total else word


def _malformed(
    namespace: str, name: bytes, values: dict[bytes, bytes], place: int, number: int | None
) -> pa.RecordBatch:
    """Return a row with ``malformed`` only; of a message only the size is kept."""
    if message := values.get(MESSAGE):
        values = {**values, MESSAGE: b"(%d bytes)" % len(message)}
    words = {_text(field): _text(value) for field, value in values.items()}
    row = {"namespace": namespace, "entry": name.decode(), "place": place, "number": number}
    return pa.RecordBatch.from_pylist([{**row, "malformed": json.dumps(words)}], schema=SCHEMA)


def _with_unknown_fields(namespace: str, name: bytes, values: dict[bytes, bytes]) -> pa.RecordBatch:
    """Decode an entry with unknown fields. Raise ``ValueError`` or ``KeyError`` if the known ones are no events."""
    ours = [*FIELDS, *([MESSAGE] if MESSAGE in values else [])]
    found = _columns(namespace, [(name, [word for field in ours for word in (field, values[field])])])
    count = found.num_rows
    more = {_text(field): _each(word, count) for field, word in values.items() if field not in ours}
    extra = [json.dumps({field: words[place] for field, words in more.items()}) for place in range(count)]
    return found.set_column(SCHEMA.names.index("extra"), SCHEMA.field("extra"), pa.array(extra)) if more else found


def _each(word: bytes, count: int) -> list[str]:
    """Return the line of ``word`` for each event, or the whole word for all of them."""
    lines = [_text(ESCAPED.sub(_unescaped, line)) for line in word.split(b"\n")]
    return lines if len(lines) == count else [_text(word)] * count


def _foreign_event(namespace: str, name: bytes, values: dict[bytes, bytes]) -> pa.RecordBatch:
    """Decode an entry of another program. Raise ``ValueError`` or ``KeyError`` if it is no event."""
    words = {_text(field): _text(value) for field, value in values.items() if field != MESSAGE}
    if not words["event"]:
        raise ValueError("an event without a kind")
    row: dict[str, Any] = {"namespace": namespace, "entry": name.decode(), "place": 0, "event": words.pop("event")}
    row |= {field: words.pop(field, "") for field in ("id", "xid", "queue", "service")}
    row["at"] = int(words.pop("at", "") or name.partition(b"-")[0]) * 1000
    if not 0 <= row["at"] < END_OF_TIME * 1000:
        raise ValueError("no time of an event")
    attempt, seconds = words.pop("attempt", ""), words.pop("seconds", "")
    row["attempt"], row["seconds"] = int(attempt) if attempt else None, float(seconds) if seconds else None
    if row["seconds"] is not None and not isfinite(row["seconds"]):
        raise ValueError("no duration")
    row["extra"] = json.dumps(words) if words else None
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


def _text(word: bytes) -> str:
    return word.decode(errors="backslashreplace")
