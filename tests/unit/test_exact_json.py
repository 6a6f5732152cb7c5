"""Ids and fields of messages are the same with and without orjson."""

import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as some

from common.json_field import object_of, value_at
from penstock import exact_json
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


def test_large_ids_that_differ_in_their_last_digit_stay_apart() -> None:
    first, second = (b'{"meta": {"id": %d}}' % (2**64 + number) for number in (1, 2))
    assert correlation_of(first).xid != correlation_of(second).xid
    assert value_at(first, object_of(first), "meta") != value_at(second, object_of(second), "meta")
