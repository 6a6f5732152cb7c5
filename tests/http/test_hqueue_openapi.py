"""The OpenAPI document of hqueue and its page: they say what the service does, and nothing else."""

import json
import re
import shlex
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import TypeAdapter

from penstock.base.exact_json import as_json
from services.hqueue.bodies import Base64, NewTask, read
from services.hqueue.handler import RequestHandler
from services.hqueue.openapi import document
from services.hqueue.page import Page
from services.hqueue.problem import Problem
from services.hqueue.request import FORMS, OF_TASKS, ORIGINAL, RIGHTS, route_of
from services.hqueue.settings import Settings
from tests.http.clients import serving
from tests.http.queue_service import QueueService

VERBS = {*FORMS.values(), *OF_TASKS.values()}
BASE64 = TypeAdapter(Base64).json_schema()
METHODS = {"get", "post", "delete"}


def settings(**more: Any) -> Settings:
    return Settings(redis="redis://localhost:6379", redis_namespace="work", **more)


def handler(**more: Any) -> RequestHandler:
    return RequestHandler({}, None, lambda: True, lambda error: None, settings(**more))


def operations(described: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield path, method and operation; the parameters in the path have the values of their examples."""
    for path, item in described["paths"].items():
        for each in item["parameters"]:
            path = path.replace(f"{{{each['name']}}}", each["example"])
        yield from ((path, method, item[method]) for method in item.keys() & METHODS)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tokens": True},
        {"master_key": "file:/run/secrets/master"},
        {"webhook_hosts": ["hooks.example.com"], "webhook_secret": "x" * 32},
    ],
    ids=["plain", "tokens", "sealed", "webhooks"],
)
def test_the_document_is_valid_openapi_3_1(more: Any) -> None:
    described = json.loads(as_json(document(settings(**more))))
    assert described["openapi"].startswith("3.1.")
    assert [str(error) for error in OpenAPIV31SpecValidator(described).iter_errors()] == []
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_verb_is_in_the_document_and_nothing_else() -> None:
    found = [route_of(method.upper(), path) for path, method, _ in operations(document(settings()))]
    assert {route.verb for route in found if not route.is_original} == VERBS
    assert {route.verb for route in found if route.is_original} == ORIGINAL
    assert len(found) == len(FORMS) + len(OF_TASKS) + 2 * len(ORIGINAL)


def test_a_method_that_the_document_does_not_have_is_405_with_those_that_it_has() -> None:
    allowed: dict[str, set[str]] = {}
    for path, method, _ in operations(document(settings())):
        allowed.setdefault(path, set()).add(method.upper())
    for path, methods in allowed.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - methods:
            with pytest.raises(Problem) as caught:
                route_of(method, path)
            headers = dict(caught.value.headers)
            assert caught.value.status == 405
            assert {*headers[b"allow"].decode().split(", ")} == methods


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_clients_take_out_of_a_path_name_no_queue(name: str) -> None:
    for path in (f"/queues/{name}/tasks", f"/api/queue/{name}/info", f"/queues/{name}/tasks/1"):
        with pytest.raises(Problem, match=r"neither \. nor \.\."):
            route_of("GET", path)
    assert route_of("GET", "/queues/.../tasks").service == "..."


def test_the_document_has_each_field_of_a_new_task_that_the_service_accepts() -> None:
    fields = {field.alias for field in NewTask.model_fields.values()}
    hooks = document(settings(webhook_hosts=["a.example"], webhook_secret="x" * 32))
    assert hooks["components"]["schemas"]["NewTask"]["properties"].keys() == fields
    assert document(settings())["components"]["schemas"]["NewTask"]["properties"].keys() == fields - {"webhook"}


def test_tokens_and_their_rights_are_in_the_document_only_if_they_are_needed() -> None:
    plain, secured = document(settings()), document(settings(tokens=True))
    assert "securitySchemes" not in plain["components"]
    assert not any("security" in operation or "401" in operation["responses"] for *_, operation in operations(plain))
    for path, method, operation in operations(secured):
        rights = [right for each in operation["security"] for right in each["token"]]
        assert {*rights} == {RIGHTS[route_of(method.upper(), path).verb], "admin"}
        assert "401" in operation["responses"]


@given(st.text("AZaz09+/=-_ \n", max_size=9))
@example("QQ==\n")
@example("00000000=")
@example("0000====")
def test_what_the_document_calls_base64_is_what_the_service_reads(text: str) -> None:
    try:
        read(NewTask, {"value64": text})
        accepted = True
    except Problem:
        accepted = False
    assert accepted == bool(re.fullmatch(BASE64["pattern"].removesuffix("$"), text))


@pytest.mark.parametrize(
    "body",
    [
        {"value": 1, "value64": "QQ=="},
        {"attempts": 1.5},
        {"attempts": True},
        {"value64": "QQ"},
        {"value64": 7},
        {"unknown": 1},
    ],
)
def test_a_task_that_contradicts_its_schema_is_refused(body: Any) -> None:
    described = document(settings())
    schema = {"$ref": "#/components/schemas/NewTask", "components": described["components"]}
    assert not Draft202012Validator(schema).is_valid(body)
    with pytest.raises(Problem) as caught:
        read(NewTask, body)
    assert caught.value.status == 422
    assert "Value error" not in caught.value.detail


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"vlaue": 1}, "vlaue: unknown property: did you mean value?"),
        ({"backoff": {"zzz": 1}}, "backoff.zzz: unknown property"),
        ({"delay": "5", "ttl": 0}, "delay: expected a number; ttl: expected more than 0.0"),
        ({"replyTo": "a b"}, "replyTo: expected a text that matches ^[A-Za-z0-9._-]{1,200}$"),
        ({"key": "x" * 257}, "key: expected at most 256 characters"),
    ],
)
def test_a_refusal_says_what_was_expected_in_our_words(body: Any, detail: str) -> None:
    with pytest.raises(Problem) as caught:
        read(NewTask, body)
    assert caught.value.detail == detail


def test_a_whole_number_may_have_a_point() -> None:
    assert read(NewTask, {"attempts": 5.0}).attempts == 5


class Tags(HTMLParser):
    """All tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found = list[tuple[str, dict[str, str | None]]]()
        self.text = ""
        self.lines = list[str]()
        """What stands in ``pre``."""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "pre":
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.lasttag == "pre":
            self.lines[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.lasttag = ""


def asks(words: list[str], method: str, path: str) -> bool:
    """Return whether a line for curl asks for a path with a method."""
    given = words[words.index("-X") + 1] if "-X" in words else "POST" if "-d" in words else "GET"
    return (words[0], given.lower()) == ("curl", method) and words[-1].partition("?")[0] == f"localhost:8080{path}"


def test_the_page_has_every_operation_and_its_links_lead_somewhere() -> None:
    described = document(settings())
    tags = Tags(Page(described).answer([(b"host", b"localhost:8080")])[1].decode())
    ids = [each["id"] for _, each in tags.found if "id" in each]
    assert len(ids) == len({*ids})
    for path, method, operation in operations(described):
        assert operation["operationId"] in ids
        assert any(asks(shlex.split(line), method, path) for line in tags.lines), (method, path)
    links = {each["href"] for tag, each in tags.found if tag == "a"}
    assert links - {f"#{id}" for id in ids} == {"openapi.json"}
    for schema in described["components"]["schemas"].values():
        assert all(name in tags.text for name in schema["properties"])


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    headers, body = Page(document(settings())).answer([])
    text = body.decode()
    tags = Tags(text)
    assert {tag for tag, _ in tags.found}.isdisjoint({"script", "img", "iframe", "form", "object", "base", "input"})
    assert [each["href"] for tag, each in tags.found if tag == "link"] == ["data:,"]
    assert not any(name.startswith("on") or name in ("style", "src") for _, each in tags.found for name in each)
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    policy = dict(headers)[b"content-security-policy"].decode()
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert b64encode(sha256(style.encode()).digest()).decode() in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("host", [b"a'b", b"$(id)", b"a;b", b"<b>", b""])
def test_a_host_that_a_shell_or_a_browser_would_read_is_not_shown(host: bytes) -> None:
    _, body = Page(document(settings())).answer([(b"host", host)])
    assert b"curl localhost:8080/" in body
    assert not host or host not in body


async def test_the_document_and_the_page_need_no_token_and_only_can_be_read() -> None:
    async with serving(handler=handler()) as served, served.connect() as client:
        linked = b"Host: a.example\r\nSec-Fetch-Site: cross-site\r\n"
        answer = await client.ask(b"GET /openapi.json HTTP/1.1\r\n%b\r\n" % linked)
        assert (answer.status, answer.header("content-type")) == (200, "application/json")
        assert json.loads(answer.body) == json.loads(as_json(document(settings())))
        answer = await client.ask(b"GET / HTTP/1.1\r\nHost: queues.example:81\r\n\r\n")
        assert (answer.status, answer.header("content-type")) == (200, "text/html; charset=utf-8")
        assert b"queues.example:81/queues/resize/tasks" in answer.body
        head = await client.ask(b"HEAD / HTTP/1.1\r\nHost: queues.example:81\r\n\r\n", of="HEAD")
        assert head.header("content-length") == str(len(answer.body))
        for path in (b"/", b"/openapi.json", b"/ready"):
            answer = await client.ask(b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % path)
            assert (answer.status, answer.header("allow")) == (405, "GET, HEAD")


def checked(described: Any, operation: Any, reply: httpx.Response) -> Any:
    """Return the body of an answer that is as the document says; fail if it is not."""
    answer = operation["responses"][str(reply.status_code)]
    if "content" not in answer:
        assert reply.content == b""
        return None
    schema = answer["content"][reply.headers["content-type"]]["schema"]
    body = reply.json()
    Draft202012Validator({**schema, "components": described["components"]}).validate(body)
    return body


def listed(service: QueueService, state: str) -> str:
    """Return the id of the first task in ``state``."""
    found = httpx.get(f"{service.url}/queues/resize/tasks", params={"state": state}).json()["tasks"]
    return str(found[0]["taskId"])


@pytest.mark.slow
def test_the_examples_work_when_they_are_sent_in_the_order_of_work(service: QueueService) -> None:
    described = httpx.get(f"{service.url}/openapi.json").json()
    known = {operation["operationId"]: (path, method, operation) for path, method, operation in operations(described)}
    sent, token, task = set[str](), "", ""

    def send(id: str) -> list[Any]:
        path, method, operation = known[id]
        path = path.replace("/tasks/407192653589", f"/tasks/{task}")
        sent.add(id)
        query = {each["name"]: each["example"] for each in operation.get("parameters", ()) if "example" in each}
        content = operation.get("requestBody", {"content": {}})["content"].get("application/json", {"examples": {}})
        bodies = [each["value"] for each in content["examples"].values()] or [None]
        found = []
        for body in bodies:
            if id == "heartbeat":
                body = {**body, "taskToken": token}
            reply = httpx.request(method, service.url + path, json=body, params=query)
            assert reply.is_success, reply.text
            found.append(checked(described, operation, reply))
        return found

    for _ in range(3):
        task = send("add")[0]["taskId"]
    token = send("fetch")[0]["taskToken"]
    for id in ("heartbeat", "show", "page", "info", "oldInfoGet", "oldInfoPost"):
        send(id)
    assert send("ack")[1][0]["acknowledged"] is True
    send("rewind")
    for id in ("oldFetchByQuery", "oldAckByQuery", "oldFetch", "oldAck"):
        send(id)
    for state, status in (("held", 202), ("delayed", 204)):
        id = listed(service, state)
        cancelled = httpx.delete(f"{service.url}/queues/resize/tasks/{id}")
        assert cancelled.status_code == status
        checked(described, known["cancel"][2], cancelled)
    sent.add("cancel")
    dead = listed(service, "dead")
    reply = httpx.post(f"{service.url}/queues/resize/tasks/{dead}/retry")
    assert checked(described, known["retry"][2], reply)["taskId"] == dead
    sent.add("retry")
    assert sent == known.keys()


@pytest.mark.slow
def test_the_lines_for_curl_on_the_page_are_accepted(service: QueueService) -> None:
    lines = Tags(httpx.get(service.url).text).lines
    assert len(lines) >= 16
    for line in lines:
        words = ["curl", "--silent", "--write-out", "\n%{http_code}", *shlex.split(line)[1:]]
        printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        assert int(printed.rpartition("\n")[2]) in (200, 201, 202, 204, 404, 409), (line, printed)
