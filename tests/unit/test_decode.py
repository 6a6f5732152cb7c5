"""Decoding a page of entries yields the same rows as decoding them one by one."""

import json
from collections.abc import Sequence
from datetime import timedelta, timezone
from math import isfinite

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.spark.decode import FIELDS, RawEntry, decode_entries
from penstock.tracking.events import Entry

WORD = st.sampled_from([b"", b"a", b"out", b"\\n", b"\\\\", b"a\\\\n", b"\xc3\xa4"])


def entry(name: str, first: int, count: int, **words: Sequence[bytes]) -> RawEntry:
    """Return one word for all events, or one for each."""
    said = {b"first": b"%d" % first, b"count": b"%d" % count, b"at": b"1700000000123"}
    said |= {field.encode(): b"\n".join(each) for field, each in words.items()}
    return name.encode(), [word for field in FIELDS for word in (field, said.get(field, b""))]


@st.composite
def entries(draw: st.DrawFn) -> list[RawEntry]:
    found, first = [], 1
    for place in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 4))

        def column(words: st.SearchStrategy[bytes], count: int = count) -> list[bytes]:
            return draw(st.lists(words, min_size=1, max_size=1) | st.lists(words, min_size=count, max_size=count))

        several = {name: column(WORD) for name in ("id", "xid", "queue", "service")}
        several["event"] = column(WORD.filter(bool))
        several["attempt"] = column(st.sampled_from([b"", b"1", b"30"]))
        several["seconds"] = column(st.sampled_from([b"", b"0.250000", b"1e3"]))
        several["at"] = column(st.sampled_from([b"1700000000123", b"0", b"99999"]))
        found.append(entry(f"170000000000{place}-0", first, count, **several))
        first += count
    return found


def rows(found: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in found for row in batch.to_pylist()]


@settings(deadline=None)  # the first example imports much
@given(entries())
@example([entry("1-0", 1, 2, event=[b"a", b"a"], id=[b"1", b"2"]), entry("2-0", 3, 1, event=[b"a\\n"])])
def test_a_page_has_the_events_of_its_entries_in_order(page: list[RawEntry]) -> None:
    expected = []
    for name, fields in page:
        decoded = dict(zip(fields[::2], fields[1::2], strict=True))
        for place, event in enumerate(Entry(name, decoded).events()):
            number = int(decoded[b"first"]) + place
            words = event.event, event.id, event.xid, event.queue, event.service, event.attempt, event.seconds
            expected.append((name.decode(), place, number, round(event.at * 1000), *words))
    found = [
        (
            *(row["entry"], row["place"], row["number"], round(row["at"].timestamp() * 1000)),  # type: ignore[attr-defined]
            *(row[name] for name in ("event", "id", "xid", "queue", "service", "attempt", "seconds")),
        )
        for row in rows(decode_entries("demo", page))
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("name", "word"),
    [("count", b"0"), ("count", b"x"), ("first", b""), ("at", b"noon"), ("attempt", b"1.5"), ("seconds", b"long")],
)
def test_an_entry_without_an_event_is_kept_aside_and_the_others_are_read(name: str, word: bytes) -> None:
    good = [entry(f"{number}-0", number, 1, event=[b"done"], id=[b"%d" % number]) for number in range(1, 8)]
    bad = good[3][1].copy()
    bad[2 * FIELDS.index(name.encode()) + 1] = word
    found = rows(decode_entries("demo", [*good[:3], (b"4-0", bad), *good[4:]]))
    assert [row["id"] for row in found] == ["1", "2", "3", None, "5", "6", "7"]
    number = None if name in ("first", "count") else 4
    assert (found[3]["entry"], found[3]["event"], found[3]["number"]) == ("4-0", None, number)
    assert json.loads(str(found[3]["malformed"]))[name] == word.decode()
    assert all(row["malformed"] is None for row in found if row["id"])


def test_an_event_without_a_kind_is_malformed_and_the_others_are_read() -> None:
    good = [entry(f"{number}-0", number, 1, event=[b"done"], id=[b"%d" % number]) for number in (1, 4)]
    odd = entry("2-0", 2, 2, event=[b"done", b""], id=[b"2", b"3"])
    decoded = rows(decode_entries("demo", [good[0], odd, good[1]]))
    seen = [(row["id"], row["event"], row["number"], row["place"]) for row in decoded]
    assert seen == [("1", "done", 1, 0), ("2", "done", 2, 0), (None, None, 3, 1), ("4", "done", 4, 0)]
    assert json.loads(str(decoded[2]["malformed"]))["event"] == ""
    (alone,) = rows(decode_entries("demo", [(b"5-0", [b"event", b"", b"id", b"7"])]))
    assert (alone["event"], alone["malformed"]) == (None, '{"event": "", "id": "7"}')


def test_foreign_fields_are_kept_beside_the_event() -> None:
    first = entry("1-0", 1, 2, event=[b"done"], id=[b"1", b"2"])
    wider = (first[0], [b"colour", b"red\\n\nblue", *first[1], b"node", b"a"])
    plain, foreign = entry("2-0", 3, 1, event=[b"done"], id=[b"3"]), (b"3-0", [b"event", b"done", b"node", b"\xff"])
    found = rows(decode_entries("demo", [wider, plain, foreign]))
    assert [(row["id"], row["number"], row["malformed"]) for row in found] == [
        *(("1", 1, None), ("2", 2, None)),
        *(("3", 3, None), ("", None, None)),
    ]
    assert [row["extra"] and json.loads(str(row["extra"])) for row in found] == [
        *({"colour": "red\n", "node": "a"}, {"colour": "blue", "node": "a"}),
        *(None, {"node": "\\xff"}),
    ]


def test_a_field_with_too_few_lines_is_no_event() -> None:
    (row,) = rows(decode_entries("demo", [entry("1-0", 1, 3, event=[b"done"], id=[b"1", b"2"])]))
    assert json.loads(str(row["malformed"]))["id"] == "1\n2"


def test_a_foreign_entry_is_one_event_if_it_has_one() -> None:
    decoded, odd = rows(
        decode_entries("demo", [(b"5-0", [b"event", b"done", b"id", b"\xff"]), (b"6-0", [b"temperature", b"20"])])
    )
    assert (decoded["event"], decoded["id"], decoded["attempt"], decoded["malformed"]) == ("done", "\\xff", None, None)
    assert decoded["at"].timestamp() == 0.005  # type: ignore[attr-defined]
    assert (odd["entry"], odd["malformed"]) == ("6-0", '{"temperature": "20"}')


def test_bytes_that_are_no_text_are_shown_beside_escaped_newlines() -> None:
    (first, second) = rows(decode_entries("demo", [entry("1-0", 1, 2, event=[b"done"], id=[b"\xff\\n", b"b"])]))
    assert (first["id"], second["id"]) == ("\\xff\n", "b")


NUMBER = st.integers(-(2**70), 2**70).map(lambda number: b"%d" % number) | st.floats().map(
    lambda number: repr(number).encode()
)
TEXT = (st.binary(max_size=8) | st.text(max_size=8).map(str.encode)).map(lambda word: word.replace(b"\n", b"\\n"))
BOUND = st.sampled_from([b"253402300800000", b"253402214399999", b"-99999999999999", b"%d" % (2**63 - 1), b"1e999"])
VALUE = NUMBER | TEXT | BOUND


@settings(deadline=None)
@given(st.data(), st.integers(1, 5))
def test_no_value_of_a_field_ends_the_reading_or_harms_other_events(data: st.DataObject, count: int) -> None:
    ids = [b"%d" % number for number in range(10, 10 + count)]
    at = [b"1700000000123"] * count
    good = {"event": [b"done"] * count, "id": ids, "attempt": [b"1"] * count, "seconds": [b"0.5"] * count, "at": at}
    bad = data.draw(st.integers(0, count - 1))
    field = data.draw(st.sampled_from(["event", "attempt", "seconds", "at", "xid", "queue", "service"]))
    words = [*good.get(field, [b""] * count)]
    words[bad] = data.draw(VALUE)
    changed = good | {field: words}
    found = rows(decode_entries("demo", [entry("1-0", 7, count, **changed)]))
    assert [(row["place"], row["number"]) for row in found] == [(place, 7 + place) for place in range(count)]
    assert [row["id"] for place, row in enumerate(found) if place != bad] == [
        id.decode() for place, id in enumerate(ids) if place != bad
    ]
    assert_usable(found)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*FIELDS, b"message", b"other"]), VALUE))
@example({b"event": b"note", b"id": b"z", b"at": b"253402300800000"})
@example({b"event": b"note", b"id": b"z", b"at": b"-99999999999999"})
@example({b"event": b"note", b"id": b"z", b"at": b"9223372036854775807"})
@example({b"event": b"note", b"attempt": b"9999999999"})
def test_no_entry_ends_the_reading(fields: dict[bytes, bytes]) -> None:
    good = entry("2-0", 1, 1, event=[b"done"], id=[b"1"])
    words = [word for pair in fields.items() for word in pair]
    *found, last = rows(decode_entries("demo", [(b"1-0", words), good]))
    assert (last["id"], last["malformed"]) == ("1", None)
    assert found
    assert_usable(found)


def assert_usable(found: list[dict[str, object]]) -> None:
    """Each row is malformed, or an event that has a date in any time zone and numbers that can be added up."""
    for row in found:
        if row["malformed"] is None:
            assert row["event"]
            row["at"].astimezone(timezone(timedelta(hours=14)))  # type: ignore[attr-defined]
            assert row["seconds"] is None or isfinite(row["seconds"])  # type: ignore[arg-type]
        else:
            json.loads(str(row["malformed"]))


def test_an_empty_page_has_no_rows() -> None:
    assert decode_entries("demo", []) == []
