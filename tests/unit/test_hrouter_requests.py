"""Requests and answers of hrouter: what is skimmed is what would be parsed."""

import json
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from services.hrouter.request import BadRequest, parse_request, skim
from services.hrouter.routing import Routing
from services.hrouter.rule import Rule
from services.hrouter.table import Table

RULES: list[dict[str, Any]] = [
    {"prefix": "/old/", "redirect": "https://example.org/new/"},
    {"path": "^/item/([^/]*)/(.*)", "redirect": {"to": "/items?id=\\1#\\2", "status": 308}},
    {"prefix": "/private", "respond": {"status": 403, "body": "Größe", "headers": {"X-Reason": "no"}}},
    {"prefix": "/api", "to": "api"},
]
TEXT = some.text(max_size=30)
LATIN = some.text(some.characters(max_codepoint=255), max_size=30)
LATE = 1_795_000_000.5


def message(path: str = "/", **more: Any) -> dict[str, Any]:
    """Return a request as himporter makes it."""
    known = {"id": "3-1f", "replyTo": "web:res:3", "method": "GET", "path": path, "query": "", "headers": []}
    return {**known, **more}


@given(
    LATIN,
    TEXT,
    TEXT,
    some.none() | some.floats(0, 1e12) | some.integers(0, 10**12),
    some.booleans(),
    some.sampled_from([(", ", ": "), (",", ":")]),
)
def test_what_is_skimmed_is_what_would_be_parsed(
    path: str, query: str, body: str, deadline: float | None, escaped: bool, separators: tuple[str, str]
) -> None:
    times = {} if deadline is None else {"deadline": deadline}
    meta = {"id": "3-1f", **times, "traceparent": "00-ab"}
    made = json.dumps(
        message(path, query=query, headers=[["x", body]], body=body, **times, meta=meta),
        ensure_ascii=escaped,
        separators=separators,
    ).encode("utf-8", "surrogatepass")
    parsed = parse_request(made)
    assert skim(made) in ((parsed.path, parsed.deadline), None)


def test_an_ordinary_request_is_skimmed() -> None:
    times = {"deadline": LATE}
    body = 'say "deadline": 1, or \\"deadline\\": 2, or {"deadline": 3,'
    made = json.dumps({**message("/days/2010-01-01", body=body, **times), "meta": times}).encode()
    assert skim(made) == (b"/days/2010-01-01", LATE)
    assert skim(json.dumps(message("/x")).encode()) == (b"/x", inf)
    assert skim(json.dumps(message('/"')).encode()) is None


def test_a_deadline_within_another_part_does_not_drop_a_request() -> None:
    order = json.dumps(message("/api", order={"deadline": 20_260_101})).encode()
    assert routing(RULES).route([order], LATE).to == {"api": [order]}


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"text",
        b"[]",
        b"7",
        b"{}",
        b'{"id": "1", "replyTo": "r", "method": "GET", "path": "/api", "query"',
        b'{"id": "1", "replyTo": "r", "method": "GET", "path": 7}',
        b'{"id": "1", "replyTo": "r", "method": 7, "path": "/"}',
        b'{"id": 1, "replyTo": "r", "method": "GET", "path": "/"}',
        b'{"id": "1", "replyTo": [], "method": "GET", "path": "/"}',
        b'{"id": "1", "replyTo": "r", "method": "GET", "path": "/", "deadline": "soon"}',
        b'{"id": "1", "replyTo": "r", "method": "GET", "path": "/", "deadline": true}',
        b'{"method": "GET", "path": "/", "headers": {"host": "x"}}',
        b'{"method": "GET", "path": "/", "headers": [["host"]]}',
        b'{"method": "GET", "path": "/", "headers": [["host", 7]]}',
        '{"method": "GET", "path": "/✓"}'.encode(),
        b'{"method": "GET", "path": "/"}\xff',
        b"[" * 100_000,
    ],
)
def test_a_message_that_is_no_request_is_refused(bad: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_request(bad)


@pytest.mark.parametrize("name", ["id", "replyTo"])
def test_what_no_name_may_be_is_refused_without_orjson_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = json.dumps(message("/old/x", **{name: "web:res:\ud800"})).encode()
    assert routing(RULES).route([bad], 0).dead == [(bad, "badRequest")]
    monkeypatch.setattr("common.http.json.orjson", None)
    assert routing(RULES).route([bad], 0).dead == [(bad, "badRequest")]
    routed = Routing(Table([Rule.parse({"match": "all", "method": "GET", "to": "out"})]), lambda name: None).route(
        [bad], 0
    )
    assert (routed.to, routed.answers, routed.dead) == ({}, {}, [(bad, "badRequest")])


@pytest.mark.parametrize("deadline", [b"NaN", b"Infinity", b"1e999"])
def test_a_deadline_that_is_no_number_of_json_is_refused_without_orjson_too(
    deadline: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.http.json.orjson", None)
    with pytest.raises(BadRequest):
        parse_request(b'{"method": "GET", "path": "/", "deadline": %b}' % deadline)


def routing(rules: list[dict[str, Any]]) -> Routing:
    """Return the routing of ``rules``, by which only lists of web:res may get answers."""
    parsed = [Rule.parse({name: value for name, value in rule.items() if value is not None}) for rule in rules]
    return Routing(Table(parsed), lambda name: None if name.startswith("web:res:") else "not allowed")


def answered(path: str) -> dict[str, Any]:
    routed = routing(RULES).route([json.dumps(message(path)).encode()], 0)
    ((name, (answer,)),) = routed.answers.items()
    assert (name, routed.to, routed.dead) == ("web:res:3", {}, [])
    found: dict[str, Any] = json.loads(answer)
    assert found.pop("id") == "3-1f"
    return found


def test_a_rule_answers_with_a_response_or_a_redirect() -> None:
    plain = [["x-reason", "no"], ["content-type", "text/plain; charset=utf-8"]]
    assert answered("/private/x") == {"status": 403, "headers": plain, "body": "Größe"}
    assert answered("/old/x") == {"status": 302, "headers": [["location", "https://example.org/new/"]]}
    place = [["location", "/items?id=a%20b#c/\xe9"]]
    assert answered("/item/a%20b/c/\xe9") == {
        "status": 308,
        "headers": [["location", place[0][1].replace("\xe9", "%E9")]],
    }


def test_no_line_end_of_a_path_gets_into_a_header() -> None:
    (header,) = answered("/item/a\r\nset-cookie: b=c/x")["headers"]
    assert header == ["location", "/items?id=a%0D%0Aset-cookie:%20b=c#x"]


def test_what_no_rule_matches_is_not_found() -> None:
    assert answered("/nowhere") == {"status": 404, "headers": [["content-type", "text/plain"]], "body": "not found\n"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"replyTo": ""}, "noReplyTo"), ({"id": ""}, "noReplyTo"), ({"replyTo": "other:list"}, "badReplyTo")],
)
def test_who_cannot_be_answered_is_a_dead_letter(change: dict[str, str], reason: str) -> None:
    asked, carried = (json.dumps(message(path, **change)).encode() for path in ("/private", "/api"))
    routed = routing(RULES).route([asked, carried], 0)
    assert (routed.to, routed.answers, routed.dead) == ({"api": [carried]}, {}, [(asked, reason)])


@pytest.mark.parametrize("method", [None, "GET"])
def test_a_late_request_is_dropped_and_one_in_time_keeps_its_bytes_and_order(method: str | None) -> None:
    made = [json.dumps(message("/api", deadline=LATE + late)).encode() for late in (-1, 0, 1, -0.001, 2)]
    routed = routing([{"match": "all", "method": method, "to": "api"}]).route(made, LATE)
    assert (routed.to, routed.answers, routed.dead) == ({"api": [made[1], made[2], made[4]]}, {}, [])
