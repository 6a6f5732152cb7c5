"""What the messages in the list of an accepted request say of it."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from common.http.message import Answer, answer_of, failed, parse
from penstock.base.exact_json import as_json
from services.himporter.bridge import RETRY_AFTER

NOTE_OF_ACCEPTANCE: Final = as_json({"accepted": True})
"""The first message of each list. It has no id, so that no program takes it for an answer."""


class State(NamedTuple):
    """The progress that workers have reported, oldest first; whether the request is cancelled; and the first answer."""

    progress: list[Any]
    is_cancelled: bool
    answer: Answer | None

    def then(self, newer: "State") -> "State":
        """Return what ``newer`` messages say besides, with the last progress only."""
        progress = (newer.progress or self.progress)[-1:]
        return State(progress, self.is_cancelled or newer.is_cancelled, newer.answer)


def unknown(status: int, id: str) -> Answer:
    """Return the answer to a client that asks for a state that nobody knows: 404, or 503 while the server is away."""
    if status == 503:
        return failed(503, "the server of the lists is away", id, RETRY_AFTER)
    return failed(404, "no such request, or its answer is not kept any more", id)


def note_of_cancellation(id: str) -> bytes:
    """Return the message that says that the request ``id`` is cancelled."""
    return as_json({"id": id, "cancelled": True})


def state_of(messages: Sequence[bytes]) -> State:
    """Return what ``messages``, newest first, say; nothing counts that is newer than the first answer."""
    progress: list[Any] = []
    is_cancelled = False
    for parsed in filter(None, map(parse, messages[::-1])):
        id, message = parsed
        if "progress" in message:
            if _can_be_sent(message["progress"]):
                progress.append(message["progress"])
        elif message.get("cancelled") is True and message.keys().isdisjoint(("status", "error")):
            is_cancelled = True
        else:
            return State(progress, is_cancelled, answer_of(message, id))
    return State(progress, is_cancelled, None)


def _can_be_sent(progress: Any) -> bool:
    """Return False for what is nested more deeply than JSON may be that we write."""
    try:
        as_json(progress)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
