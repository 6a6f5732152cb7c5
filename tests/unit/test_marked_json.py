"""JSON behind a byte order mark is read as JSON."""

import json

import pytest

from common.tracking.completion import parse_answer
from penstock.tracking.correlation import correlation_of
from services.mdispatch.request import parse_request
from services.monitor.done import parse_done

MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("space", [b"", b" \n"])
def test_a_byte_order_mark_changes_nothing(space: bytes) -> None:
    request = json.dumps({"meta": {"id": "a", "delay": 5, "replyTo": "s:reply:x"}}).encode()
    assert correlation_of(MARK + space + request) == correlation_of(request)
    assert parse_request(MARK + space + request, lambda name: None) == parse_request(request, lambda name: None)
    for parse, text in ((parse_done, b'{"xid": "a", "work": 2}'), (parse_answer, b'{"meta": {"id": "a"}}')):
        assert parse(MARK + space + text) == parse(text)
