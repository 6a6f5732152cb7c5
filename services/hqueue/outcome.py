"""What is said of a task: its state, and what its client and its workers have left."""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.base.errors import Unopenable
from penstock.base.exact_json import as_json, exactly, parse
from services.hqueue.content import member, opened
from services.hqueue.seals import Lock, place

OPTIONAL: Final = {
    "id": "name",
    "reason": "reason",
    "worker": "worker",
    "leaseEnd": "lease",
    "due": "due",
    "endedAt": "ended",
    "delivery": "delivery",
}


def status_of(id: str, task: dict[str, Any]) -> dict[str, Any]:
    """Return what a record says of a task, without its contents."""
    known = {
        "taskId": id, "index": int(task["index"]), "state": task["state"], "attempt": int(task["attempt"]),
        "added": task["added"],
    }  # fmt: skip
    known |= {name: task[field] for name, field in OPTIONAL.items() if task.get(field) is not None}
    if task.get("cancelled"):
        known["cancelRequested"] = True
    return known


@dataclass
class Contents:
    """What is sealed of a task, opened: members of a JSON object, and the URL that wants to hear of its end."""

    members: list[bytes] = field(default_factory=list)
    webhook: str | None = None

    def as_json(self, status: dict[str, Any]) -> bytes:
        """Return ``status`` with the contents, as JSON."""
        return b",".join((as_json(status)[:-1], *self.members)) + b"}"


def contents_of(queue: str, id: str, task: dict[str, Any], found: Sequence[Any], lock: Lock) -> Contents:
    """Open more, result, error and progress of a task, as ``Store.show`` returns them behind its record.

    Raise ``Unopenable``; but leave out what cannot be opened of a task that is dead for that reason.
    """
    more, result, error, progress = found
    contents = Contents()
    wanted = {"result": result} if task["state"] == "done" else {"error": error}
    is_lenient = task.get("reason") == "unopenable"
    for name, sealed in (wanted | {"progress": progress}).items():
        if sealed is not None:
            with suppress(Unopenable) if is_lenient else nullcontext():
                contents.members.append(member(name, opened(lock, sealed, place(queue, id, name))))
    if more is not None:
        with suppress(Unopenable) if is_lenient else nullcontext():
            text = lock.open(more, place(queue, id, "more"))
            known = more_of(text)
            contents.webhook = known.get("webhook")
            if "token" in known:
                contents.members.append(b'"token":' + as_json(exactly(text, known, "token")))
    return contents


def more_of(text: bytes) -> dict[str, Any]:
    """Return what a client has said of its task besides the value. Raise ``Unopenable``."""
    try:
        return dict(parse(text))
    except (TypeError, ValueError):
        raise Unopenable("changed after it was stored") from None
