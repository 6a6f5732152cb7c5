"""Decoding a page of entries yields the same rows as decoding them one by one."""

import json
from collections.abc import Sequence

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
    assert (found[3]["entry"], found[3]["event"], found[3]["number"]) == ("4-0", None, None)
    assert json.loads(str(found[3]["malformed"]))[name] == word.decode()
    assert all(row["malformed"] is None for row in found if row["id"])


@pytest.mark.parametrize("words", [[b""], [b"done", b""]])
def test_an_event_without_a_kind_is_malformed_and_the_others_are_read(words: list[bytes]) -> None:
    good = [entry(f"{number}-0", number, 1, event=[b"done"], id=[b"%d" % number]) for number in (1, 4)]
    decoded = rows(decode_entries("demo", [good[0], entry("2-0", 2, 2, event=words, id=[b"2", b"3"]), good[1]]))
    assert [(row["id"], row["event"]) for row in decoded] == [("1", "done"), (None, None), ("4", "done")]
    assert json.loads(str(decoded[1]["malformed"]))["event"] == b"\n".join(words).decode()
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


def test_an_empty_page_has_no_rows() -> None:
    assert decode_entries("demo", []) == []
