"""Headers that are for one connection, proxies, and JSON with and without orjson."""

import pytest

from common.http import json
from common.http.answers import end_to_end, is_name, is_value
from common.http.message import answer_of
from common.http.proxies import Proxies
from penstock.base import exact_json

FOR = b"x-forwarded-for"


def test_headers_of_one_connection_are_dropped_with_those_that_connection_names() -> None:
    headers = [
        *((b"a", b"1"), (b"connection", b"Close, X-Mine"), (b"x-mine", b"2"), (b"te", b"trailers")),
        *((b"keep-alive", b"5"), (b"upgrade", b"h2c"), (b"set-cookie", b"x"), (b"set-cookie", b"y")),
    ]
    assert end_to_end(headers) == [(b"a", b"1"), (b"set-cookie", b"x"), (b"set-cookie", b"y")]


def test_connection_removes_no_header_that_others_rely_on() -> None:
    headers = [(b"host", b"a"), (FOR, b"1.2.3.4"), (b"connection", b"host, x-forwarded-for, b"), (b"b", b"1")]
    assert end_to_end(headers) == [(b"host", b"a"), (FOR, b"1.2.3.4")]


def test_what_would_split_an_answer_is_no_name_and_no_value() -> None:
    assert is_name(b"x-a_1")
    for name in (b"", b"a b", b"a:", b"a\r\n", b"\xe4"):
        assert not is_name(name)
    assert is_value(b"any \t\xe4 value")
    for value in (b"a\r\nb", b"a\n", b"\x00", b"\x7f"):
        assert not is_value(value)


def test_only_trusted_proxies_say_where_a_request_came_from() -> None:
    proxies = Proxies(["10.0.0.0/8", "::1"])
    said = [(FOR, b"1.2.3.4"), (b"x-forwarded-proto", b"https"), (b"forwarded", b"for=x"), (b"a", b"b")]
    said += [(b"x-forwarded-user", b"root"), (b"x_forwarded_for", b"1.2.3.4"), (b"x_real_ip", b"1.2.3.4")]
    assert proxies.forwarded(said, "192.0.2.1") == [(b"a", b"b"), (FOR, b"192.0.2.1")]
    assert proxies.forwarded(said, "10.1.2.3")[-1] == (FOR, b"1.2.3.4, 10.1.2.3")
    assert (b"x-forwarded-proto", b"https") in proxies.forwarded(said, "10.1.2.3")
    assert proxies.forwarded(said, "") == [(b"a", b"b"), (FOR, b"")]


def test_addresses_of_trusted_proxies() -> None:
    proxies = Proxies(["10.0.0.0/8", "fe80::/10"])
    for address in ("10.255.0.1", "::ffff:10.0.0.1", "fe80::1%eth0"):
        assert address in proxies
    for address in ("11.0.0.1", "::1", "no address"):
        assert address not in proxies
    assert "10.0.0.1" not in Proxies([])


@pytest.mark.parametrize("fast", [True, False])
def test_json_is_the_same_with_and_without_orjson(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fast:
        monkeypatch.setattr(json, "orjson", None)
        monkeypatch.setattr(exact_json, "orjson", None)
    value = {"a": [1, "ä", None, True], "b": {"c": ""}}
    assert exact_json.as_json(value) == '{"a":[1,"ä",null,true],"b":{"c":""}}'.encode()
    assert json.loads(exact_json.as_json(value)) == value
    if not fast:
        assert exact_json.as_json(json.loads(b'"\\ud800"')) == b'"\\ud800"'
    for text in (b"{", b"\xff", b"[" * 100_000, b"NaN", b"[-Infinity]", b"1e999"):
        assert _is_refused(text)


def _is_refused(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


def test_a_worker_says_neither_the_date_nor_a_length_that_is_none() -> None:
    kept = answer_of({"status": 200, "headers": [["Date", "x"], ["a", "b"], ["content-length", "3"]]}, "1")
    assert kept.headers == [(b"a", b"b"), (b"content-length", b"3")]
    refused = answer_of({"status": 200, "headers": [["content-length", "abc"]]}, "1")
    assert (refused.status, b"content-length" in refused.body) == (502, True)
