"""The page that shows the OpenAPI document: whole HTML with its style, no script, nothing from elsewhere."""

import json
import re
import shlex
from base64 import b64encode
from collections.abc import Iterable, Iterator
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final
from urllib.parse import urlencode

from common.http.answers import Header

TEMPLATE: Final = files(__package__).joinpath("page.html").read_text()
PLACE: Final = b"@HOST@"
"""What stands in the page for the host by which the client calls the service."""
is_plain: Final = re.compile(rb"[A-Za-z0-9._-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?").fullmatch
PUBLIC: Final[tuple[Header, ...]] = ((b"cache-control", b"no-cache"), (b"x-content-type-options", b"nosniff"))
BOUNDS: Final = (("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", ""))
Json = dict[str, Any]


class Page:
    """The page of one document."""

    def __init__(self, document: Json) -> None:
        text = Template(TEMPLATE).substitute(
            title=escape(document["info"]["title"]),
            version=escape(document["info"]["version"]),
            about="".join(f"<p>{_text(each)}</p>" for each in document["info"]["description"].split("\n\n")),
            navigation=_navigation(document),
            operations="".join(_sections(document)),
            problems="".join(map(_answer, *zip(*document["components"]["responses"].items(), strict=True))),
            schemas="".join(_schemas(document)),
        )
        self._parts = text.encode().split(PLACE)
        style = text[text.index("<style>") + len("<style>") : text.index("</style>")]
        digest = b64encode(sha256(style.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
        policy += "; frame-ancestors 'none'"
        self._headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", policy.encode()),
            (b"referrer-policy", b"no-referrer"),
            (b"vary", b"host"),
            *PUBLIC,
        ]

    def answer(self, headers: Iterable[Header]) -> tuple[list[Header], bytes]:
        """Return headers and body for a request; its lines for curl name the host that the request names."""
        host = next((value for name, value in headers if name == b"host" and is_plain(value)), b"localhost:8080")
        return self._headers, host.join(self._parts)


def _operations(document: Json) -> Iterator[tuple[str, str, Json, list[Json]]]:
    """Yield path, method, operation and all its parameters."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield path, method, operation, [*item["parameters"], *operation.get("parameters", ())]


def _navigation(document: Json) -> str:
    lines: list[str] = []
    for tag in document["tags"]:
        lines.append(f"<h2>{escape(tag['name'])}</h2><ul>")
        for path, method, operation, _ in _operations(document):
            if tag["name"] in operation["tags"]:
                lines.append(f'<li><a href="#{operation["operationId"]}">{_method(method)}{escape(path)}</a></li>')
        lines.append("</ul>")
    more = '<li><a href="#problems">Problems</a></li><li><a href="#bodies">Bodies</a></li>'
    return "".join([*lines, f"<h2>More</h2><ul>{more}</ul>"])


def _sections(document: Json) -> Iterator[str]:
    for tag in document["tags"]:
        yield f"<section><h2>{escape(tag['name'])}</h2>"
        for path, method, operation, parameters in _operations(document):
            if tag["name"] in operation["tags"]:
                yield _article(path, method, operation, parameters, document["components"])
        yield "</section>"


def _article(path: str, method: str, operation: Json, parameters: list[Json], components: Json) -> str:
    schemas, needs_token = components["schemas"], "securitySchemes" in components
    parts = [
        f'<article id="{operation["operationId"]}"><h3>{_method(method)} <code>{escape(path)}</code></h3>',
        f"<p>{_text(operation['summary'])}. {_text(operation.get('description', ''))}</p>",
    ]
    if parameters:
        rows = (_row(each["name"], each["schema"], each["required"], each.get("description")) for each in parameters)
        parts.append(f'<h4>Parameters</h4><table class="fields">{"".join(rows)}</table>')
    bodies: list[Any] = [None]
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        parts.append(f"<h4>Body: {_kind(content['schema'])}</h4>{_fields(_named(content['schema']), schemas)}")
        bodies = [each["value"] for each in content["examples"].values()]
    parts.append("<h4>Try it</h4>")
    parts += (f"<pre>{escape(_curl(path, method, parameters, body, needs_token))}</pre>" for body in bodies)
    answers = "".join(_answer(status, each) for status, each in operation["responses"].items() if "$ref" not in each)
    parts.append(f'<h4>Answers</h4><table class="answers">{answers}</table></article>')
    return "".join(parts)


def _curl(path: str, method: str, parameters: list[Json], body: Any, needs_token: bool) -> str:
    """Return a line for the shell."""
    query = {each["name"]: each["example"] for each in parameters if each["in"] == "query" and "example" in each}
    for each in parameters:
        path = path.replace(f"{{{each['name']}}}", str(each.get("example", "")))
    url = f"{PLACE.decode()}{path}"
    words = ["curl"]
    if needs_token:
        words.append('-H "Authorization: Bearer $TOKEN"')
    if body is not None:
        words.append(f"-d {shlex.quote(json.dumps(body))}")
    elif method != "get":
        words.append(f"-X {method.upper()}")
    return " ".join([*words, f"'{url}?{urlencode(query)}'" if query else url])


def _answer(status: str, answer: Json) -> str:
    kinds = dict.fromkeys(_kind(each["schema"]) for each in answer.get("content", {}).values() if "schema" in each)
    more = f' <span class="soft">{" or ".join(kinds)}</span>' if kinds else ""
    return f"<tr><td{' class=bad' * (status >= '400')}>{status}</td><td>{_text(answer['description'])}{more}</td></tr>"


def _schemas(document: Json) -> Iterator[str]:
    """Yield the bodies that stand beside no operation."""
    schemas = document["components"]["schemas"]
    bodies = (each["requestBody"]["content"] for _, _, each, _ in _operations(document) if "requestBody" in each)
    shown = {_named(each["application/json"]["schema"]) for each in bodies}
    for name in sorted(schemas.keys() - shown):
        yield f"<article><h3>{name}</h3>{_fields(name, schemas)}</article>"


def _named(schema: Json) -> str:
    """Return the name of the schema that a body, or its first form, has."""
    reference: str = schema.get("anyOf", [schema])[0]["$ref"]
    return reference.rpartition("/")[2]


def _fields(name: str, schemas: Json) -> str:
    schema = schemas[name]
    required, text = schema.get("required", ()), _text(schema.get("description", ""))
    rows = (
        _row(field, each, field in required, each.get("description")) for field, each in schema["properties"].items()
    )
    return f'<p>{text}</p><table class="fields" id="body-{name}">{"".join(rows)}</table>'


def _row(name: str, schema: Json, required: bool, text: str | None) -> str:
    mark = ' <span class="required">required</span>' if required else ""
    default = schema.get("default")
    said = f" Default: <code>{escape(json.dumps(default))}</code>." if default is not None else ""
    cells = f"<code>{escape(name)}</code>{mark}", _kind(schema), _text(text or "") + said
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _kind(schema: Json) -> str:
    """Return a type in words, as HTML."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#body-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each != {"type": "null"})
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    if "enum" in schema:
        return " ".join(f"<code>{escape(str(each))}</code>" for each in schema["enum"])
    bounds = _bounds(schema)
    more = f' <span class="soft">{bounds}</span>' if bounds else ""
    if schema.get("type") == "array":
        return f"list of{more} {_kind(schema['items'])}"
    if "contentEncoding" in schema:
        return f"string, {schema['contentEncoding']}"
    return f"{schema.get('type', 'any JSON')}{more}"


def _bounds(schema: Json) -> str:
    """Return the bounds of a number, of the length of a string, or of that of a list."""
    found = []
    for least, most, unit in BOUNDS:
        if least in schema and most in schema:
            found.append(f"{schema[least]:,.10g} to {schema[most]:,.10g}{unit}")
        elif most in schema:
            found.append(f"up to {schema[most]:,.10g}{unit}")
        elif least in schema:
            found.append(f"from {schema[least]:,.10g}{unit}")
    above = f"above {schema['exclusiveMinimum']:g}, " if "exclusiveMinimum" in schema else ""
    return above + ", ".join(found)


def _method(method: str) -> str:
    return f'<span class="method {method}">{method.upper()}</span>'


def _text(text: str) -> str:
    """Return text as HTML; what is between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
