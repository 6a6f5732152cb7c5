"""The bodies of requests: what a client may say, with bounds."""

from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar
from urllib.parse import parse_qs

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from common.settings.redaction import nearest
from penstock.base.validation import describe_error
from services.hqueue.problem import Problem

WEEK: Final = 604_800.0
MAX_BATCH: Final = 100
MAX_INDEX: Final = 2**53
"""The largest whole number that is exact as a score of Redis."""
State = Literal["waiting", "delayed", "blocked", "held", "done", "dead", "expired"]


def _base64(value: Any) -> Any:
    if not isinstance(value, str) or len(value) % 4 or value.endswith("==="):  # Python takes too much of a padding
        raise ValueError("expected base64")
    try:
        return b64decode(value, validate=True)
    except ValueError:
        raise ValueError("expected base64") from None


def _whole(value: Any) -> Any:
    """Return 5 for 5.0: JSON has one kind of numbers, and some languages write all with a point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Base64 = Annotated[
    bytes,
    BeforeValidator(_base64),
    WithJsonSchema(
        {
            "type": "string",
            "contentEncoding": "base64",
            "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
        }
    ),
]
WHOLE: Final = BeforeValidator(_whole)
Name = Annotated[str, Field(min_length=1, max_length=128)]
Life = Annotated[float, Field(gt=0, le=WEEK)]
Lease = Annotated[float, Field(gt=0, le=86_400)]
Delay = Annotated[float, Field(ge=0, le=WEEK)]


class Body(BaseModel):
    """A JSON object without fields that are not known."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True, populate_by_name=False)
    either: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs of fields of which a body has one at most."""

    @model_validator(mode="after")
    def _has_one_of_each(self) -> Self:
        for pair in self.either:
            if self.model_fields_set.issuperset(pair):
                first, second = map(to_camel, pair)
                raise ValueError(f"expected {first} or {second}, found both")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add what ``either`` says."""
        found = handler(schema)
        if cls.either:
            own = handler.resolve_ref_schema(found)
            own["allOf"] = [{"not": {"required": [*map(to_camel, pair)]}} for pair in cls.either]
        return found


def _given(name: str) -> dict[str, JsonValue]:
    return {"required": [name], "properties": {name: {"type": "string"}}}


class Backoff(Body):
    """Seconds before the next attempt: ``initial`` x ``factor`` ^ (attempts - 1), at most ``cap``."""

    initial: Annotated[float, Field(ge=0, le=WEEK)] = 1.0
    factor: Annotated[float, Field(ge=1, le=100)] = 2.0
    cap: Annotated[float, Field(ge=0, le=WEEK)] = 60.0


class NewTask(Body):
    """A task to add. Times are in seconds."""

    either = (("value", "value64"),)

    value: Any = Field(None, description="What a worker gets, as it is.")
    value64: Base64 | None = Field(None, description="Bytes in place of a value, as base64.")
    token: Any = Field(None, description="Returned with the outcome, as it is.")
    id: Name | None = Field(None, description="A name of the client's: a second task with it is not added.")
    key: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None, description="Tasks with one key are done in their order, one at a time."
    )
    delay: Delay = Field(0.0, description="Time until a worker may have it.")
    ttl: Life = Field(WEEK, description="Time from now to its end (schedule to close).")
    start_timeout: Life | None = Field(None, description="Time until a worker must have it (schedule to start).")
    attempt_timeout: Life | None = Field(
        None, description="Longest time of one attempt (start to close), whatever its heartbeats."
    )
    attempts: Annotated[int, Field(ge=0, le=1_000_000), WHOLE] | None = Field(
        None, description="Maximum number of attempts; 0: as many as it takes."
    )
    backoff: Backoff | None = None
    reply_to: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,200}$")] | None = Field(
        None, description="The name of a list that gets the outcome, once: `NS:replies:OWNER/NAME` in the server."
    )
    webhook: Annotated[str, Field(min_length=1, max_length=2_000)] | None = Field(
        None, description="An URL to which the outcome is posted, signed, until it is answered with 2xx."
    )
    non_retryable: list[Name] = Field([], max_length=100, description="Types of errors after which none follows.")


class Fetch(Body):
    """What a worker asks for."""

    either = (("time_to_recover", "time_to_recover_ms"),)

    worker_id: Annotated[Name, Field(description="A name that no other worker of the queue has.")]
    time_to_recover: Lease | None = Field(None, description="Length of the lease in seconds, decimals allowed.")
    time_to_recover_ms: Annotated[float, Field(gt=0, le=86_400_000)] | None = Field(None, description="The same in ms.")
    wait: Annotated[float, Field(ge=0, le=20)] = Field(0.0, description="Longest wait for a task.")
    max: Annotated[int, Field(ge=1, le=MAX_BATCH), WHOLE] | None = Field(
        None, description="Maximum number of tasks; 1 without a list."
    )


class Ack(Body):
    """How an attempt ended: with ``result``, ``result64``, ``error`` or ``release``; else the result is null."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_given("taskToken"), _given("workerId")]})
    either = (
        ("error", "result"), ("error", "result64"), ("result", "result64"),
        ("release", "result"), ("release", "result64"), ("release", "error"),
    )  # fmt: skip

    task_token: str | None = Field(None, description="As the fetch has returned it.")
    worker_id: Name | None = Field(None, description="Instead of a token: the task that this worker fetched last.")
    result: Any = Field(None, description="What the task has come to.")
    result64: Base64 | None = Field(None, description="Bytes in place of a result, as base64.")
    error: Any = Field(None, description="What went wrong; its `type` is compared with `nonRetryable` of the task.")
    retry: bool = Field(True, description="Whether another attempt may follow an error.")
    delay: Delay | None = Field(None, description="Seconds until it, instead of the back-off of the task.")
    release: Literal[True] | None = Field(
        None, description="The worker has not begun: the task waits again, and this attempt does not count."
    )

    @model_validator(mode="after")
    def _names_one_attempt(self) -> Self:
        if (self.task_token is None) == (self.worker_id is None):
            raise ValueError("expected taskToken or workerId")
        return self


class Heartbeat(Body):
    """That a worker still works on a task."""

    task_token: Annotated[str, Field(description="As the fetch has returned it.")]
    progress: Any = Field(None, description="How far it is, for those who look and for the next attempt.")
    time_to_recover: Lease | None = Field(None, description="Length of the lease from now; as at the fetch by default.")


class Rewind(Body):
    """From where to begin again."""

    last: Annotated[int, Field(ge=0, le=MAX_INDEX, description="An index: tasks behind it wait again."), WHOLE]


class Listing(Body):
    """Which tasks of a queue to list."""

    state: State | None = Field(None, description="Only tasks in this state.")
    after: Annotated[int, Field(ge=0, le=MAX_INDEX)] = Field(0, description="Only tasks behind this index.")
    most: Annotated[int, Field(ge=1, le=1_000)] = Field(100, description="Maximum number of tasks.")


class Look(Body):
    """Whether to wait for the end of a task."""

    wait: Annotated[float, Field(ge=0, le=20)] = Field(0.0, description="Longest wait for its end, in seconds.")


class OldFetch(Body):
    """The original's fetch; its ``timeToRecover`` is in seconds."""

    model_config = ConfigDict(extra="ignore")

    worker_id: Annotated[Name, Field(description="A name that no other worker of the queue has.")]
    time_to_recover: Lease | None = Field(None, description="Length of the lease in seconds, decimals allowed.")


class OldAck(Body):
    """The original's acknowledgement."""

    model_config = ConfigDict(extra="ignore")

    worker_id: Annotated[Name, Field(description="Whose task it is.")]
    result: Any = Field(None, description="What the task has come to.")
    error: Any = Field(None, description="What went wrong; the task is dead.")


B = TypeVar("B", bound=Body)


def read(kind: type[B], value: Any) -> B:
    """Return ``value`` as a body of ``kind``. Raise ``Problem``, which names each field that is wrong."""
    if not isinstance(value, dict):
        raise Problem(422, "expected a JSON object")
    return _read(kind, kind.model_validate, value)


def read_query(kind: type[B], query: str) -> B:
    """Return the ``query`` of a request as a body of ``kind``. Raise ``Problem`` as ``read`` does."""
    given = parse_qs(query, keep_blank_values=True).items()
    return _read(kind, kind.model_validate_strings, {name: each if len(each) > 1 else each[0] for name, each in given})


def _read(kind: type[B], validate: Callable[[Any], B], value: Any) -> B:
    try:
        return validate(value)
    except ValidationError as error:
        found = [_described(kind, each) for each in error.errors(include_url=False, include_input=False)]
        detail = "; ".join(f"{place}: {text}" if place else text for place, text in found[:10])
        raise Problem(422, detail, errors=[{"field": place, "problem": text} for place, text in found[:100]]) from None


def _described(kind: type[Body], error: Mapping[str, Any]) -> tuple[str, str]:
    """Return the place of an error, and what is wrong there."""
    place, words = ".".join(map(str, error["loc"])), describe_error(error)
    known = [to_camel(name) for name in kind.model_fields]
    near = nearest(place, known) if error["type"] == "extra_forbidden" and len(error["loc"]) == 1 else None
    return place, f"{words}: did you mean {near}?" if near else words
