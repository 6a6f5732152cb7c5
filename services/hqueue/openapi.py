"""The OpenAPI 3.1 document: made of the table of operations, the bodies of requests, and those of answers."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from penstock import __version__
from services.hqueue.operations import OLD, OPERATIONS, Operation, operations
from services.hqueue.problem import MORE
from services.hqueue.replies import Problem, Refusal
from services.hqueue.request import ID, RIGHTS, SERVICE
from services.hqueue.settings import Settings

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
Json = dict[str, Any]
ABOUT: Final = """\
A worker in any language fetches a task, does it, and acknowledges it with a result or an error. If it dies, the next
worker gets the task once its lease is over. Queues exist as soon as a task is added.

Bodies are JSON, whatever their `Content-Type` says. Errors are problem documents of RFC 9457. Only a request that
breaks HTTP or a limit gets a plain `{"error": ...}`, and its connection ends."""
WHY: Final = {
    400: "The body is no JSON, or the request breaks HTTP.",
    401: "No token, or an unknown one.",
    403: "The token does not allow this.",
    404: "There is no such path or task.",
    408: "The request took too long.",
    410: "The keys of this owner are deleted: nothing of it can be read or written any more.",
    413: "The body is too long.",
    414: "Path and query are too long.",
    422: "The body or the query has not the expected form: `errors` names each field.",
    429: "The queue is full, or there are too many connections.",
    431: "The head is too large.",
    500: "An error of the service: its log says more.",
    503: "The server of the queues is away or full: ask again.",
    505: "Expected HTTP/1.1.",
}
FOREIGN: Final = "The request comes from a page of another site."
BROKEN: Final = frozenset({400, 408, 413, 414, 429, 431, 503, 505})
"""Answers to requests that break HTTP or a limit, before anything is read of them."""
ALWAYS: Final = frozenset({400, 403, 404, 408, 414, 429, 431, 500, 503, 505})


class Schemas(GenerateJsonSchema):
    """Schemas without titles that repeat a name; answers have no fields but those that are named."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def typed_dict_schema(self, schema: Any) -> Json:
        return {**super().typed_dict_schema(schema), "additionalProperties": False}


def document(settings: Settings) -> Json:
    """Return the document of a service with ``settings``."""
    types = {repr(kind): kind for kind in (Problem, Refusal, *_types())}
    adapters: Any = [(name, "validation", TypeAdapter(kind)) for name, kind in types.items()]
    found, shared = TypeAdapter.json_schemas(
        adapters, by_alias=True, ref_template="#/components/schemas/{model}", schema_generator=Schemas
    )
    schemas = _tidied({name: schema for (name, _), schema in found.items()})
    named = _tidied(shared["$defs"])
    if not settings.webhook_hosts:
        del named["NewTask"]["properties"]["webhook"]  # none is accepted
    paths: dict[str, Json] = {}
    for method, path, id, verb, operation in operations():
        paths.setdefault(path, {"parameters": _in_path(path)})[method.lower()] = _described(
            id, verb, operation, method, schemas, settings
        )
    described: Json = {
        "openapi": "3.1.0",
        "info": {"title": "hqueue: queues of tasks", "version": __version__, "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in ("Tasks", "Workers", "Queries", OLD)],
        "paths": paths,
        "components": {"schemas": named, "responses": _problems(settings)},
    }
    if settings.tokens:
        described["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "A token of `penstock token add`."}
        }
    return described


def _types() -> Iterator[Any]:
    for *_, operation in operations():
        yield from (kind for kind in (operation.body, operation.query) if kind is not None)
        yield from (kind for _, kind in operation.answers.values() if kind is not None)


def _described(
    id: str, verb: str, operation: Operation, method: str, schemas: Mapping[str, Json], settings: Settings
) -> Json:
    by_query = operation.query or (operation.body if method == "GET" else None)
    body = operation.body if method == "POST" else None
    statuses = ALWAYS | ({413} if body else set()) | ({422} if body or by_query else set())
    statuses |= ({401} if settings.tokens else set()) | ({410} if settings.master_key else set())
    responses = {str(status): _answer(*answer, operation, schemas) for status, answer in operation.answers.items()}
    responses |= {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}
    if operation.conflict:
        responses["409"] = _problem(409, operation.conflict)
    described: Json = {"operationId": id, "tags": [operation.tag], "summary": operation.summary}
    if by_query:
        described["parameters"] = _in_query(by_query, operation)
    if body:
        examples = {name: {"value": value} for name, value in operation.examples.items()}
        content = {JSON: {"schema": schemas[repr(body)], "examples": examples}}
        described["requestBody"] = {"required": True, "content": content}
    if settings.tokens:
        rights = dict.fromkeys((RIGHTS[verb], "admin"))
        described["description"] = f"Needs the right {' or '.join(f'`{right}`' for right in rights)}."
        described["security"] = [{"token": [right]} for right in rights]
    return {**described, "responses": responses}


def _answer(text: str, kind: Any, operation: Operation, schemas: Mapping[str, Json]) -> Json:
    answer: Json = {"description": text}
    if kind is None:
        return answer
    answer["content"] = {JSON: {"schema": schemas[repr(kind)]}}
    if kind is Any:
        answer["content"]["application/octet-stream"] = {}
    if operation.links:
        answer["links"] = {verb: _link(verb, found) for verb, found in operation.links.items()}
    if operation is OPERATIONS["add"] and text.startswith("Added"):
        answer["headers"] = {"location": {"description": "Of one task, its path.", "schema": {"type": "string"}}}
    return answer


def _link(verb: str, found: Mapping[str, str]) -> Json:
    service = {"service": "$request.path.service"}
    if OPERATIONS[verb].body:
        return {"operationId": verb, "parameters": service, "requestBody": found}
    return {"operationId": verb, "parameters": {**service, **found}}


def _problems(settings: Settings) -> Json:
    """Return the problems that several operations have."""
    never = {401: not settings.tokens, 410: not settings.master_key}
    texts = WHY if settings.tokens else {**WHY, 403: FOREIGN}
    return {str(status): _problem(status, text) for status, text in texts.items() if not never.get(status)}


def _problem(status: int, text: str) -> Json:
    content: Json = {}
    if status not in BROKEN or status in (400, 429, 503):
        content[PROBLEM] = {"schema": {"$ref": "#/components/schemas/Problem"}}
    if status in BROKEN:
        content[JSON] = {"schema": {"$ref": "#/components/schemas/Refusal"}}
    answer: Json = {"description": f"{HTTPStatus(status).phrase}. {text}", "content": content}
    if status in MORE:
        name, value = (each.decode() for each in MORE[status])
        answer["headers"] = {name: {"required": status != 429, "schema": {"type": "string"}, "example": value}}
    return answer


def _in_path(path: str) -> list[Json]:
    service = {"name": "service", "in": "path", "required": True, "example": "resize"}
    service["description"] = "The queue: 1 to 128 of A-Z a-z 0-9 . _ ~ -, and neither . nor .."
    found: list[Json] = [{**service, "schema": {"type": "string", "pattern": _anchored(SERVICE)}}]
    if "{id}" in path:
        id = {"name": "id", "in": "path", "required": True, "description": "The `taskId` of a task."}
        found.append({**id, "example": "407192653589", "schema": {"type": "string", "pattern": _anchored(ID)}})
    return found


def _anchored(fullmatch: Any) -> str:
    return f"^{fullmatch.__self__.pattern}$"


def _in_query(kind: Any, operation: Operation) -> list[Json]:
    """Return the fields of a body as parameters; a query has no null, and no JSON but text."""
    schema = _tidied(kind.model_json_schema(schema_generator=Schemas))
    found: list[Json] = []
    example: Json = next(iter(operation.examples.values()), {})
    for name, each in schema["properties"].items():
        given = {**each, **each.pop("anyOf", [{}])[0]} if "anyOf" in each else {"type": "string", **each}
        given.pop("anyOf", None)
        text = given.pop("description", "")
        more = {"description": text} if text else {}
        more |= {"example": example[name]} if name in example else {}
        required = name in schema.get("required", ())
        found.append({"name": name, "in": "query", "required": required, **more, "schema": given})
    return found


def _tidied(value: Any) -> Any:
    """Return schemas without the titles of models, nulls as defaults, and double backticks."""
    if isinstance(value, list):
        return [_tidied(each) for each in value]
    if isinstance(value, str):
        return value.replace("``", "`")
    if not isinstance(value, dict):
        return value
    is_schema = "title" in value and isinstance(value["title"], str)
    return {
        name: _tidied(each)
        for name, each in value.items()
        if not (name == "title" and is_schema) and (name, each) != ("default", None)
    }
