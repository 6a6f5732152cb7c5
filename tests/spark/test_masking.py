"""Values that paths select in a message are not archived, nor are messages with ambiguous content."""

import json
from typing import Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonpath_ng.ext.parser import parse
from pydantic import AfterValidator, TypeAdapter, ValidationError

from penstock.spark.masking import checked, hidden, masked

ORDER = b'{"meta": {"id": "order-7"}, "card": {"number": "4111", "until": "12/29"}, "tea": 1.50}'
NAMES = st.sampled_from(["a", "b", "secret", "*", "with space", "\u00e4"])
DOCUMENT: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(NAMES, parts, max_size=3),
    max_leaves=12,
)
PATHS = [
    "$.a.b",
    "$..secret",
    "$.a[*].secret",
    "$['with space']",
    "$..*",
    "$.a[0]",
    "$..a[?(@.b == 1)].b",
    "$.*.a",
]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$.card.number", b'{"meta":{"id":"order-7"},"card":{"number":"***","until":"12/29"},"tea":1.5}'),
        ("$.card", b'{"meta":{"id":"order-7"},"card":"***","tea":1.5}'),
        ("$..id", b'{"meta":{"id":"***"},"card":{"number":"4111","until":"12/29"},"tea":1.5}'),
        ("$", b'"***"'),
        ("$.card.holder", ORDER),
        ("$.meta[0]", ORDER),
    ],
)
def test_what_a_path_finds_is_replaced_and_without_it_every_byte_is_as_it_was(path: str, expected: bytes) -> None:
    assert hidden(ORDER, [path]) == expected


def test_several_paths_may_find_parts_of_each_other() -> None:
    message = b'{"secret":{"secret":[1,{"secret":2}]},"b":[{"secret":null}]}'
    assert hidden(message, ["$..secret", "$.secret.secret", "$.b"]) == b'{"secret":"***","b":"***"}'
    assert hidden(message, ["$.b[*].secret", "$.b"]) == b'{"secret":{"secret":[1,{"secret":2}]},"b":"***"}'


@settings(deadline=None)
@given(DOCUMENT, st.lists(st.sampled_from(PATHS), min_size=1, max_size=3), st.booleans())
def test_nothing_that_a_path_finds_is_left(document: Any, paths: list[str], ascii: bool) -> None:
    message = json.dumps(document, ensure_ascii=ascii).encode()
    found = hidden(message, paths)
    assert found is not None
    secret = [place for path in paths for place in parse(path).find(document)]
    if not secret:
        assert found == message
        return
    for place in sorted(secret, key=lambda place: -len(str(place.full_path))):
        if place.context is None:
            document = "***"
        else:
            place.path.update(place.context.value, "***")
    assert json.loads(found) == document
    left = [place.value for path in paths if "?" not in path for place in parse(path).find(json.loads(found))]
    assert set(map(str, left)) <= {"***"}


@pytest.mark.parametrize("name", ["card", "c\\u0061rd", "\\u0063ard"])
def test_a_name_is_found_however_it_is_written(name: str) -> None:
    assert hidden(b'{"%b":{"number":1}}' % name.encode(), ["$.card.number"]) == b'{"card":{"number":"***"}}'


@pytest.mark.parametrize(
    "message",
    [
        b"plain text",
        b"",
        b"2010/01/01 00:00,39.4",
        b'{"card": ',
        b'\xff{"card": 1}',
        b'{"a": {"card": "4111"}, "a": {}}',
        b"[" * 100_000 + b"]" * 100_000,
        b"1" * 5_000,
        b'{"card": 1, "sum": NaN}',
        b'{"sum": Infinity}',
        b'{"card": 1, "sum": 1e400}',
    ],
)
def test_what_is_no_json_or_says_a_name_twice_is_not_kept(message: bytes) -> None:
    assert hidden(message, ["$.card"]) is None


@pytest.mark.parametrize("message", [b"123", b'"text"', b"null", b"[]", b' {"a" :1}\n'])
def test_json_in_which_nothing_is_found_stays_byte_for_byte(message: bytes) -> None:
    assert hidden(message, ["$.card", "$..number"]) == message


@pytest.mark.parametrize(
    "path",
    ["", "card", "$.", "$.card[", "$.a.`len`", "$.a + 1", "$.a[\\x]", "$.a[?(@.b =~ 'x')]", "$.a.`parent`", "card $"],
)
def test_a_path_that_cannot_be_masked_is_named_with_what_was_expected(path: str) -> None:
    with pytest.raises(ValidationError, match=r"\$\.card\.number") as error:
        TypeAdapter(Annotated[str, AfterValidator(checked)]).validate_python(path)
    assert repr(path) in str(error.value)


@pytest.mark.parametrize("path", ["$", "$.a-b", "$['with space']['a']", "$..b[0]", "$.a[1:3]", "$.a[?(@.b == 'x')].c"])
def test_a_path_to_parts_of_a_document_is_taken(path: str) -> None:
    assert checked(path) == path


def test_a_column_is_masked_row_by_row() -> None:
    messages = [ORDER, None, b"plain", b'{"card":{"number":"4111"}}', b"123", b""]
    assert masked(pa.array(messages), ["$.card.number", "$..until"]).to_pylist() == [
        b'{"meta":{"id":"order-7"},"card":{"number":"***","until":"***"},"tea":1.5}',
        None,
        None,
        b'{"card":{"number":"***"}}',
        b"123",
        None,
    ]
    nothing = pa.nulls(2, pa.binary())
    assert masked(nothing, ["$.card"]) is nothing


def test_without_paths_nothing_is_done() -> None:
    messages = pa.array([b"plain"])
    assert masked(messages, []) is messages
