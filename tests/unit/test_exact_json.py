"""Equal values of JSON have one form, all others another, with and without orjson."""

import json
from decimal import Decimal
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from common.json_field import object_of, value_at
from penstock.base import exact_json
from penstock.base.exact_json import as_json, canonical, canonical_number, exactly, parse, parse_whole
from penstock.tracking.correlation import correlation_of

NUMBERS = some.integers(-(2**70), 2**70) | some.floats() | some.sampled_from([2**63, 2**64, -(2**63) - 1, 10**400])
VALUES = some.recursive(
    some.none() | some.booleans() | NUMBERS | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
RAW = [
    b'{"meta": {"id": "\\ud800"}}',
    b'{"meta": {"id": 1e999}}',
    b'{"meta": {"id": -0}}',
    b'{"meta": {"id": 1}, "meta": {"id": 2}}',
    b'{"meta": {"id": 18446744073709551616}}',
    b'{"meta": {"id": "a"}, "x": 18446744073709551617}',
    b'{"meta": {"id": "a", "big": 18446744073709551617}}',
    b'\xef\xbb\xbf{"meta": {"id": 1}}',
    '{"meta": {"id": 1}}'.encode("utf-16"),
    b'{"meta": {"id": 1}} x',
    b'{"meta": {"id": "\xff"}}',
    b'{"meta": ' + b"[" * 100_000,
    b"[1]",
    b"text",
]


def assert_same(message: bytes) -> None:
    def read() -> str:
        found = object_of(message)
        return repr((correlation_of(message), value_at(message, found, "meta.id"), value_at(message, found, "meta")))

    fast = read()
    with patch.object(exact_json, "orjson", None):
        assert read() == fast


@given(VALUES, VALUES, some.booleans())
def test_any_message_has_the_same_id_and_fields(id: object, other: object, escaped: bool) -> None:
    text = json.dumps({"meta": {"id": id, "other": other}}, ensure_ascii=escaped)
    assert_same(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("message", RAW, ids=lambda message: repr(message[:40]))
def test_odd_messages_have_the_same_id_and_fields(message: bytes) -> None:
    assert_same(message)


def value_of(text: str) -> object:
    """Return a value that Python finds equal for equal JSON, by means of its own: decimals and tuples with a type."""
    found = json.loads(text, parse_float=Decimal, parse_int=Decimal)

    def typed(value: object) -> object:
        if isinstance(value, dict):
            return "object", frozenset((name, typed(each)) for name, each in value.items())
        if isinstance(value, list):
            return "array", tuple(map(typed, value))
        return type(value).__name__, value

    return typed(found)


NUMBERS_AS_TEXT = some.builds(
    "{}{}{}{}".format,
    some.sampled_from(["", "-"]),
    some.sampled_from(["0", "1", "10", "100", "1795880000", "9007199254740993", "1" + "0" * 22]),
    some.sampled_from(["", ".0", ".5", ".50", ".123456788", ".123456789", ".000"]),
    some.sampled_from(["", "e0", "E+1", "e-1", "e-7", "e-10", "e22", "e400", "e-400", "e500"]),
)
TEXTS = some.sampled_from(['"1"', '"a"', '"\\u0061"', "true", "null", '""', '"NaN"'])
SPELLED = some.recursive(
    NUMBERS_AS_TEXT | TEXTS,
    lambda inner: (
        some.lists(inner, max_size=2).map(lambda each: f"[{', '.join(each)}]")
        | some.tuples(inner, inner).map(lambda two: '{{"x": {}, "y": {}}}'.format(*two))
        | some.tuples(inner, inner).map(lambda two: '{{"y":{},"x":{}}}'.format(*two))
    ),
    max_leaves=4,
)


@given(SPELLED, SPELLED)
@example("1e400", "1e500")
@example("1795880000.123456788", "1795880000.123456789")
@example("1000.0", "1e3")
@example("12e-1", "1.20")
@example("0.1", "0.10000000000000001")
@example("-0", "0.000")
@example("1e-400", "0")
@example('{"x": 1, "y": "1"}', '{"y":"1","x":1.0}')
def test_two_values_have_one_canonical_form_if_and_only_if_they_are_equal(one: str, other: str) -> None:
    forms = []
    for text in (one, other):
        message = f'{{"v": {text}}}'.encode()
        forms.append(canonical(exactly(message, parse(message), "v")))
        assert value_of(forms[-1]) == value_of(text)
    assert (forms[0] == forms[1]) == (value_of(one) == value_of(other))


@given(SPELLED)
def test_what_is_only_passed_on_keeps_its_digits(text: str) -> None:
    assert value_of(as_json(parse_whole(text.encode())).decode()) == value_of(text)
    with patch.object(exact_json, "orjson", None):
        assert value_of(as_json(parse_whole(text.encode())).decode()) == value_of(text)


@pytest.mark.parametrize("text", ["", "x", "1.", ".5", "+1", "0x1", "NaN"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a number|digits"):
        canonical_number(text)


def test_a_short_number_never_becomes_long() -> None:
    assert max(len(canonical_number(f"1e{exponent}")) for exponent in range(-999, 999)) < 25


def test_large_ids_that_differ_in_their_last_digit_stay_apart() -> None:
    first, second = (b'{"meta": {"id": %d}}' % (2**64 + number) for number in (1, 2))
    assert correlation_of(first).xid != correlation_of(second).xid
    assert value_at(first, object_of(first), "meta") != value_at(second, object_of(second), "meta")


def test_digits_in_a_text_make_no_number_of_a_float() -> None:
    """An id of 16 digits beside it made a `Number` of 1.5 for each program that used hqueue's client."""
    for text in ("1234567890123456789", "\\", '"', 'a"\\"', "1e400", "\\1234567890123456789"):
        found = parse_whole(json.dumps({"id": text, text: 1.5}).encode())
        assert (found["id"], type(found[text])) == (text, float)
        exact = parse_whole(json.dumps({"id": text}).encode()[:-1] + b', "n": 1234567890.12345678}')
        assert as_json(exact["n"]) == b"1234567890.12345678"


HUGE = "9" * 5_000


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"1e{HUGE}", f"10e{HUGE[:-1]}8"),
        (f"0.01e1{'0' * 5_000}", f"0.1e{HUGE}"),
        (f"-12e-{HUGE}", f"-1.2e-{HUGE[:-1]}8"),
        (f"1e{'0' * 5_000}7", "1e7"),
        (f"0e{HUGE}", "0"),
    ],
)
def test_exponents_of_any_length_are_compared(one: str, other: str) -> None:
    """Python makes no int of more than 4,300 digits: one message of 5 kB ended services."""
    assert canonical_number(one) == canonical_number(other) != canonical_number(f"1e{HUGE[1:]}")


def test_an_id_with_an_exponent_of_any_length_is_an_xid() -> None:
    ids = [f"1e{HUGE}", f"10e{HUGE[:-1]}8", json.dumps(f"1e{HUGE}"), f"2e{HUGE}"]
    first, same, text, another = (correlation_of(f'{{"meta": {{"id": {id}}}}}'.encode()).xid for id in ids)
    assert first == same
    assert len({first, text, another}) == 3


def test_utf_16_is_no_json() -> None:
    """The server's scripts do not read it, and digits are looked for byte by byte."""
    with pytest.raises(ValueError, match="invalid start byte"):
        parse('{"time": 1795880000.123456788}'.encode("utf-16"))
