"""The bodies of answers, for the OpenAPI document; a test compares them with what the service sends."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from services.hqueue.bodies import State

Seconds = Annotated[float, Field(description="Seconds since the epoch.")]


class Added(TypedDict):
    """A task that is in the queue."""

    taskId: str
    index: Annotated[int, Field(description="Its place in the queue, from 1.")]
    state: State


class Task(TypedDict):
    """A task that a worker has now: with `value`, or with `value64` if it was added as bytes."""

    taskId: str
    index: int
    attempt: Annotated[int, Field(description="Deliveries so far, with this one.")]
    taskToken: Annotated[str, Field(description="Proves that the worker has the task: for ack and heartbeat.")]
    leaseEnd: Seconds
    value: NotRequired[Any]
    value64: NotRequired[str]
    progress: NotRequired[Annotated[Any, Field(description="What the attempt before has said last.")]]


class Tasks(TypedDict):
    """The answer to a fetch with `max`."""

    tasks: list[Task]


class Acknowledged(TypedDict):
    """An attempt has ended."""

    acknowledged: Literal[True]
    state: Annotated[State, Field(description="State of the task from now on.")]


class FieldProblem(TypedDict):
    """What is wrong with one field."""

    field: str
    problem: str


class Problem(TypedDict):
    """A problem document of RFC 9457."""

    type: Annotated[Literal["about:blank"], Field(description="The status says all.")]
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: Annotated[str, Field(description="What was expected.")]
    errors: NotRequired[Annotated[list[FieldProblem], Field(description="Each field that is wrong (422).")]]
    allow: NotRequired[Annotated[list[str], Field(description="Methods of this path (405).")]]
    state: NotRequired[Annotated[State, Field(description="State of the task (409).")]]


class NotAcknowledged(Problem):
    """A member of a batch that was refused; the others are not affected."""

    acknowledged: Literal[False]


class Refusal(TypedDict):
    """A request that broke HTTP or a limit; the connection ends."""

    error: str


class Beat(TypedDict):
    """A lease that is renewed."""

    cancelRequested: Annotated[bool, Field(description="Somebody wants this task to be given up.")]
    leaseEnd: Seconds


class Held(TypedDict):
    """A task that a worker has."""

    taskId: str
    index: int
    worker: str
    attempt: int
    leaseEnd: Seconds


class Info(TypedDict):
    """Counts of a queue."""

    service: str
    index: Annotated[int, Field(description="Index of the task that was added last.")]
    waiting: int
    delayed: int
    blocked: Annotated[int, Field(description="Tasks that wait for an older one with their key.")]
    inHand: Annotated[int, Field(description="Tasks that workers have.")]
    ended: Annotated[int, Field(description="Tasks that have ended and are kept.")]
    oldest: Annotated[float | None, Field(description="Age of the oldest task that waits, in seconds.")]
    held: Annotated[list[Held], Field(description="Up to 100 tasks that workers have.")]


class Listed(TypedDict):
    """A task without its contents."""

    taskId: str
    index: int
    state: State
    attempt: Annotated[int, Field(description="Deliveries so far.")]
    added: Seconds
    id: NotRequired[Annotated[str, Field(description="The name that the client gave it.")]]
    reason: NotRequired[Annotated[str, Field(description="Why it is dead.", examples=["timeout"])]]
    worker: NotRequired[str]
    leaseEnd: NotRequired[Seconds]
    due: NotRequired[Annotated[float, Field(description="When it begins to wait, in seconds since the epoch.")]]
    endedAt: NotRequired[Seconds]
    delivery: NotRequired[
        Annotated[Literal["waiting", "done", "failed"], Field(description="How far the delivery of its outcome is.")]
    ]
    cancelRequested: NotRequired[Literal[True]]


class Status(Listed):
    """A task with what is known of its outcome: `result` or `result64` if it is done, else the last error."""

    result: NotRequired[Any]
    result64: NotRequired[str]
    error: NotRequired[Any]
    progress: NotRequired[Any]
    token: NotRequired[Annotated[Any, Field(description="As it was given with the task.")]]


class Page(TypedDict):
    """Tasks in the order in which they were added."""

    tasks: list[Listed]
    next: NotRequired[Annotated[int, Field(description="The `after` with which to go on, if there may be more.")]]


class Cancelling(TypedDict):
    """A worker has the task, and hears of the cancellation at its next heartbeat."""

    taskId: str
    state: Literal["held"]
    cancelRequested: Literal[True]


class Again(TypedDict):
    """A task that waits again, or is blocked by an older one with its key."""

    taskId: str
    state: State


class Rewound(TypedDict):
    """How many tasks wait again."""

    rewound: int
