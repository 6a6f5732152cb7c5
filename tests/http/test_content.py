"""What hqueue only passes on: the digits of numbers stay as they were sent."""

import pytest

from penstock.base.exact_json import as_json, parse_whole
from penstock.hqueue import values
from penstock.jobs.job import packed_value
from services.hqueue.bodies import Ack, Heartbeat, NewTask, read
from services.hqueue.content import content_of, member, parse
from services.hqueue.problem import Problem

EXACT = [
    "12345678901234567.89",
    "1795880000.123456789",
    "0.1000000000000000055",
    "1e-400",
    "18446744073709551617",
    '{"a":[1.50,12345678901234567.89,"12345678901234567.89"],"b":null}',
]


@pytest.mark.parametrize("text", EXACT)
def test_a_value_a_token_a_result_an_error_and_progress_keep_their_digits(text: str) -> None:
    body = read(NewTask, parse(f'{{"value": {text}, "token": {text}, "delay": 0.1234567890123456789}}'.encode()))
    assert member("value", content_of(body, "value")) == f'"value":{text}'.encode()
    assert as_json(body.token) == text.encode()
    assert body.delay == 0.1234567890123456789
    for outcome in ("result", "error"):
        ack = read(Ack, parse(f'{{"taskToken": "t", "{outcome}": {text}}}'.encode()))
        assert content_of(ack, outcome)[1:] == text.encode()
    beat = read(Heartbeat, parse(f'{{"taskToken": "t", "progress": {text}}}'.encode()))
    assert content_of(beat, "progress")[1:] == text.encode()


@pytest.mark.parametrize("text", EXACT)
def test_the_client_passes_on_what_it_has_read(text: str) -> None:
    assert values.as_json(parse_whole(text.encode())) == text.encode()


@pytest.mark.parametrize("text", ["1e400", "-1e999", "NaN", "[Infinity]"])
def test_a_number_that_no_client_can_read_is_refused(text: str) -> None:
    with pytest.raises(Problem, match=r"too large|no JSON"):
        parse(text.encode())


@pytest.mark.parametrize("text", EXACT)
def test_a_value_of_a_job_that_was_read_and_is_set_again_keeps_its_digits(text: str) -> None:
    assert packed_value("key", parse_whole(text.encode())) == text.encode()
