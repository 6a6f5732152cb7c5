"""What a message says of itself besides its xid, as its record and its events keep it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

MAX_SECONDS: Final = 1e11
_traceparent: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}").fullmatch


def traceparent_of(value: object) -> str:
    """Return ``value`` if it is a valid traceparent of W3C's Trace Context, of 55 characters; else an empty text."""
    return value if isinstance(value, str) and _traceparent(value) else ""


def seconds_of(value: object) -> float | None:
    """Return a number of seconds of 0 or more, with six decimals; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_SECONDS:
        return None
    return round(float(value), 6)


@dataclass(frozen=True)
class Details:
    """The field ``details`` of a record and of an event: JSON, docs/keys.md."""

    traceparent: str = ""
    """The trace of the client that sent the message; empty if it named none."""
    deadline: float | None = None
    """When (s since the epoch) the message is useless, as its sender says."""
    budget: float | None = None
    """Seconds from its acceptance to that deadline."""
    work: float | None = None
    """Seconds that its worker worked on it, of an event that ends an attempt."""

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Self:
        """Return what the ``meta`` of a message says; leave out what is invalid."""
        deadline, budget = seconds_of(meta.get("deadline")), seconds_of(meta.get("budget"))
        return cls(traceparent_of(meta.get("traceparent")), deadline, (deadline and budget) or None)

    @classmethod
    def parse(cls, written: str | None) -> Self:
        """Parse the field; leave out what is invalid."""
        try:
            found = json.loads(written) if written else {}
        except (ValueError, RecursionError):
            return cls()
        return replace(cls.of(found), work=seconds_of(found.get("work"))) if isinstance(found, dict) else cls()


def written_details(meta: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the deadline (s since the epoch) and the text of the field for a message's ``meta``, None if it has none.

    The text has no backslash and no line end. It is made by hand, since that takes a third of the time.
    """
    trace, deadline = traceparent_of(meta.get("traceparent")), seconds_of(meta.get("deadline"))
    words = [f'"traceparent": "{trace}"'] if trace else []
    if deadline is not None:
        words.append(f'"deadline": {deadline!r}')
        if budget := seconds_of(meta.get("budget")):
            words.append(f'"budget": {budget!r}')
    return None if deadline is None else f"{deadline:.6f}", f"{{{', '.join(words)}}}" if words else None


NO_DETAILS: Final = Details()
