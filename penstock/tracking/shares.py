"""Where the time of a message went: its shares of the time until its deadline, or of the time that it took."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.tracking.events import TrackedEvent

ENDS_ATTEMPT = frozenset({"timeout", "failed", "queueTimeout", "done", "late"})


@dataclass(frozen=True)
class Share:
    """One part of the time."""

    where: str
    """``before`` (until it was registered), ``delayed``, ``queue``, ``work``, ``queue, work`` (the worker did not say
    how long it worked), ``back-off``, ``left`` (until its deadline) or ``over`` (since then)."""
    attempt: int | None
    seconds: float
    percent: float


@dataclass(frozen=True)
class Shares:
    """All parts of the time of one message."""

    id: str
    budget: float
    """Seconds that are 100 %."""
    deadline: float | None
    """When (s since the epoch) the budget ends; None if the message has no deadline: then it is what it took so far."""
    parts: list[Share]


def shares_of(events: Sequence[TrackedEvent], now: float) -> Shares | None:
    """Return the shares of the message with ``events``, the oldest first; None without its registration.

    ``now`` (s since the epoch) is the end of what is under way.
    """
    if not events or events[0].event != "registered":
        return None
    first, (parts, end) = events[0], _parts(events, now)
    deadline, budget = first.details.deadline, first.details.budget
    if deadline is not None:
        if budget and (before := first.at - (deadline - budget)) > 0:
            parts.insert(0, ("before", None, before))
        parts.append(("left" if end <= deadline else "over", None, abs(deadline - end)))
        total = budget or deadline - first.at
    else:
        total = end - first.at
    total = max(total, 0.001)
    return Shares(first.id, total, deadline, [Share(*part, 100 * part[2] / total) for part in parts])


def _parts(events: Sequence[TrackedEvent], now: float) -> tuple[list[tuple[str, int | None, float]], float]:
    """Return the parts from the registration to the end, and when that was; ``now`` if it has not ended."""
    parts: list[tuple[str, int | None, float]] = []
    since, attempt, ended = events[0].at, events[0].attempt or None, False
    for event in events[1:]:
        spent = event.at - since
        if event.event in ("delivered", "retry"):
            parts.append(("delayed" if event.event == "delivered" else "back-off", None, spent))
            since, attempt = event.at, event.attempt
        elif event.event in ENDS_ATTEMPT and attempt is not None:
            work = event.details.work
            if work is None:
                parts.append(("queue" if event.event == "queueTimeout" else "queue, work", attempt, spent))
            else:
                parts += [("queue", attempt, max(spent - work, 0.0)), ("work", attempt, min(work, spent))]
            since, attempt = event.at, None
        ended = event.event in ("done", "late", "dead", "expired")
        if ended:
            break
    end = event.at if ended else max(now, since)
    if (spent := end - since) > 0.001:
        waits = "delayed" if len(parts) == 0 else "back-off"
        parts.append((waits if attempt is None else "queue, work", attempt, spent))
    return parts, end
