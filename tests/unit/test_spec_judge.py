"""Expectations of a list, and the wording of differences."""

from pathlib import Path
from typing import Any

import pytest

from penstock.testing.spec.declared import Expectation
from penstock.testing.spec.judge import differences

PUSHED = {"in": [b"a", b"b"], "other": [b"c"]}


def differences_of(expected: Any, *got: bytes) -> list[str]:
    return differences(Expectation.model_validate(expected), list(got), lambda given: given.load(Path(), PUSHED))


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (["a", "b"], [b"a", b"b"]),
        ({"equal": [b"\xff\x00", "ü"]}, [b"\xff\x00", "ü".encode()]),
        ("pushed", [b"a", b"b", b"c"]),
        ({"equal": {"pushed": "in"}}, [b"a", b"b"]),
        ({"equal": {"pushed": "in", "skip": 1, "first": 1}}, [b"b"]),
        ({"equal": {"numbers": 3}}, [b"1", b"2", b"3"]),
        ({"anyOrder": ["a", "a", "b"]}, [b"b", b"a", b"a"]),
        ({"atLeastOnce": ["a", "b"]}, [b"b", b"a", b"b", b"b"]),
        ({"contains": ["b", "b"]}, [b"b", b"x", b"b", b"b"]),
        ({"matches": r"^\w+$"}, [b"one", "zwölf".encode()]),
        ({"matches": ["^o", "o$"]}, [b"one", b"two"]),
        ({"json": {"$.a.b": 1, "$.c[*]": 3}}, [b'{"a": {"b": 1.0}, "c": [1, 3]}']),
        ({"json": {"$": {"a": [True, None]}}}, [b'{"a":[true,null]}']),
        ({"json": [{"$.id": 1}, {"$.id": 2}]}, [b'{"id": 1}', b'{"id": 2}']),
        ({"json": []}, []),
        ("none", []),
        ({"count": 2, "atLeast": 1}, [b"a", b"a"]),
    ],
)
def test_what_is_expected_is_no_difference(expected: Any, got: list[bytes]) -> None:
    assert differences_of(expected, *got) == []


@pytest.mark.parametrize(
    ("expected", "got", "difference"),
    [
        (["a", "b"], [b"b", b"a"], "expected 2 messages, in this order; they came in another"),
        (["a"], [b"a", b"a"], "expected 1 message, in this order; got 2"),
        ("pushed", [b"a", b"b"], "expected 3 messages, in this order; got 2"),
        ({"anyOrder": ["a", "a"]}, [b"a", b"b"], "expected 2 messages, in any order; got 2"),
        ({"atLeastOnce": ["a", "b"]}, [b"a", b"a"], "expected 2 messages, each at least once; got 2"),
        ({"atLeastOnce": ["a"]}, [b"a", b"x"], "expected 1 message, each at least once; got 2"),
        ({"contains": ["a", "a"]}, [b"a", b"x"], "expected 2 messages, among others; got 2"),
        ({"matches": "x"}, [], "expected 1 message at least, got none"),
        ({"matches": "^a$"}, [b"a", b"ab"], "1 of 2 messages not as expected"),
        ({"matches": ["a"]}, [b"a", b"a"], "expected 1 message, got 2"),
        ({"json": {"$.id": 1}}, [], "expected 1 message at least, got none"),
        ({"json": {"$.id": 1}}, [b'{"id": true}'], "1 of 1 message not as expected"),
        ({"json": {"$.id": 1}}, [b'{"id": 1}', b'{"no": 1}', b"id"], "2 of 3 messages not as expected"),
        ({"json": [{"$.id": 1}]}, [], "expected 1 message, got 0"),
        ("none", [b"a"], "expected no message, got 1"),
        ({"count": 2}, [b"a"], "expected 2 messages, got 1"),
        ({"atLeast": 2}, [b"a"], "expected at least 2 messages, got 1"),
    ],
)
def test_what_is_not_expected_is_a_difference(expected: Any, got: list[bytes], difference: str) -> None:
    assert differences_of(expected, *got)[0] == difference


def test_all_that_makes_a_difference_is_listed_the_first_of_each_kind() -> None:
    wanted = [f"{number:02}" for number in range(10)]
    got = [b"00", *[b"01"] * 3, b"09", b"02", b"foreign \x1b[31m\xff"]
    assert differences_of(wanted, *got) == [
        "expected 10 messages, in this order; got 7",
        "  missing: 6",
        *(f'    "{number:02}"' for number in range(3, 8)),
        "    … and 1 more",
        "  too many: 2",
        '    "01"',
        '    "01"',
        "  not expected: 1",
        '    "foreign \\u001b[31m\\\\xff"',
        "  first difference at message 3",
        '    expected "02"',
        '    got      "01"',
    ]


def test_a_wrong_message_is_shown() -> None:
    assert differences_of({"json": {"$.a[*].b": 2}}, b'{"a": [{"b": 1}, {"b": "2"}]}', b"[", b'{"a": 0}') == [
        "3 of 3 messages not as expected",
        '  message 1: expected $.a[*].b to be 2, got 1, "2"',
        '    got "{\\"a\\": [{\\"b\\": 1}, {\\"b\\": \\"2\\"}]}"',
        "  message 2: expected JSON: Expecting value: line 1 column 2 (char 1)",
        '    got "["',
        "  message 3: expected $.a[*].b to be 2, got nothing",
        '    got "{\\"a\\": 0}"',
    ]


def test_a_long_message_is_cut_in_the_middle() -> None:
    (_, _, line) = differences_of({"count": 0}, b"<" + b"x" * 5000 + b">")
    assert line.startswith('    "<xxx')
    assert line.endswith('xxx>" (5,002 bytes)')
    assert len(line) < 200
