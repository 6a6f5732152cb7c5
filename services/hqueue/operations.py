"""What the OpenAPI document says of each verb of ``request``, beside its path."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import Field

from services.hqueue.bodies import (
    MAX_BATCH,
    Ack,
    Fetch,
    Heartbeat,
    Listing,
    Look,
    NewTask,
    OldAck,
    OldFetch,
    Rewind,
)
from services.hqueue.replies import (
    Acknowledged,
    Added,
    Again,
    Beat,
    Cancelling,
    Info,
    NotAcknowledged,
    Page,
    Rewound,
    Status,
    Task,
    Tasks,
)
from services.hqueue.request import FORMS, OF_TASKS, ORIGINAL

Batch = Annotated[list[NewTask], Field(min_length=1, max_length=MAX_BATCH)]
Acks = Annotated[list[Ack], Field(min_length=1, max_length=MAX_BATCH)]


@dataclass(frozen=True)
class Operation:
    """What the document says of a verb, beside its path."""

    tag: str
    summary: str
    answers: Mapping[int, tuple[str, Any]]
    """By status a description, and the type of the body; None without one."""
    body: Any = None
    """The type of the body; None without one."""
    query: Any = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    """Bodies or queries that work when they are sent."""
    conflict: str = ""
    """What 409 means; empty if that is no answer."""
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By verb, where a call of it finds what it needs in the answer to this one."""


OF_TASK: Final = {"id": "$response.body#/taskId"}
OF_ATTEMPT: Final = {"taskToken": "$response.body#/taskToken"}
OPERATIONS: Final = {
    "add": Operation(
        "Tasks",
        "Add a task, or several: all or none",
        {
            201: ("Added.", Added | list[Added]),
            200: ("The queue had a task with each `id`: nothing was added.", Added | list[Added]),
        },
        body=NewTask | Batch,
        examples={
            "one": {"value": {"page": 7}, "ttl": 3600, "backoff": {"initial": 1, "factor": 2, "cap": 60}},
            "several": [{"value": 1, "key": "customer-4711"}, {"value64": "AAECAw==", "delay": 60}],
        },
        links={"show": OF_TASK, "cancel": OF_TASK, "retry": OF_TASK},
    ),
    "page": Operation(
        "Queries",
        "List tasks without their contents",
        {200: ("Tasks.", Page)},
        query=Listing,
        examples={"dead": {"state": "dead", "most": 10}},
    ),
    "show": Operation(
        "Queries",
        "Show a task, now or once it has ended",
        {200: ("The task.", Status)},
        query=Look,
        examples={"ended": {"wait": 1.5}},
    ),
    "cancel": Operation(
        "Tasks",
        "Cancel a task",
        {204: ("Cancelled.", None), 202: ("A worker has it, and hears of it.", Cancelling)},
        conflict="The task has ended: `state` says how.",
    ),
    "retry": Operation(
        "Tasks",
        "Let a dead task wait again",
        {200: ("It waits again.", Again)},
        conflict="The task is not dead: `state` says what it is.",
    ),
    "fetch": Operation(
        "Workers",
        "Fetch a task, and wait for one. A worker that has a task gets it again, with a new lease",
        {200: ("A task; with `max` a list of them.", Task | Tasks), 204: ("There is no task.", None)},
        body=Fetch,
        examples={"one": {"workerId": "w1", "timeToRecover": 30}, "several": {"workerId": "w2", "max": 10}},
        links={"ack": OF_ATTEMPT, "heartbeat": OF_ATTEMPT},
    ),
    "heartbeat": Operation(
        "Workers",
        "Renew the lease of a task, say how far it is, and hear of its cancellation",
        {200: ("The lease is renewed.", Beat)},
        body=Heartbeat,
        examples={"progress": {"taskToken": "1.1.AAAAAAAAAAAAAAAAAAAAAAAA", "progress": {"percent": 60}}},
        conflict="The lease is over, or the token is none of this queue.",
    ),
    "ack": Operation(
        "Workers",
        "End an attempt with a result or an error; or several, each for itself",
        {
            200: (
                "The attempt has ended; of several, each says whether it has.",
                Acknowledged | list[Acknowledged | NotAcknowledged],
            )
        },
        body=Ack | Acks,
        examples={
            "result": {"workerId": "w1", "result": 42},
            "errors": [{"workerId": "w2", "error": {"type": "Busy"}, "delay": 10}],
        },
        conflict="The lease is over, another ack came first, or the token is none of this queue: nothing has changed.",
    ),
    "info": Operation("Queries", "Count the tasks of a queue", {200: ("Counts.", Info)}),
    "rewind": Operation(
        "Tasks",
        "Let tasks behind an index that have ended wait again",
        {200: ("How many wait again.", Rewound)},
        body=Rewind,
        examples={"all": {"last": 0}},
    ),
}
OLD: Final = "imicros-queue"
OLD_OPERATIONS: Final = {
    "fetch": Operation(
        OLD,
        "Fetch the bare value of a task",
        {200: ("The value, JSON or bytes.", Any), 204: ("There is no task.", None)},
        body=OldFetch,
        examples={"one": {"workerId": "w3", "timeToRecover": 30}},
    ),
    "ack": Operation(
        OLD,
        "End the task that a worker fetched last; an error is final",
        {200: ("Whether the worker had a task.", bool)},
        body=OldAck,
        examples={"result": {"workerId": "w3", "result": 42}},
    ),
    "info": Operation(
        OLD,
        "Last index, index of the newest task in hand, and by worker `index:time` of its task (ms)",
        {200: ("Counts.", dict[str, int | str])},
    ),
}


def operations() -> Iterator[tuple[str, str, str, str, Operation]]:
    """Yield method, path, id, verb and description of each operation."""
    for (method, what), verb in FORMS.items():
        yield method, f"/queues/{{service}}/{what}", verb, verb, OPERATIONS[verb]
    for (method, form), verb in OF_TASKS.items():
        yield method, f"/queues/{{service}}/tasks/{{id}}{form and '/' + form}", verb, verb, OPERATIONS[verb]
    for verb in sorted(ORIGINAL):
        for method in ("GET", "POST"):
            by_query = "ByQuery" if method == "GET" else ""
            id = f"old{verb.title()}{by_query if OLD_OPERATIONS[verb].body else method.title()}"
            yield method, f"/api/queue/{{service}}/{verb}", id, verb, OLD_OPERATIONS[verb]
