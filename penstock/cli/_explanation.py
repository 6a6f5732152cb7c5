"""The location of a message as sentences."""

from collections.abc import Iterator
from shlex import quote

from penstock.base.encoding import counted
from penstock.cli._text import age, clock, shown
from penstock.inspect.location import MAX_QUEUE_SCAN, Location


def explanation(here: Location) -> Iterator[str]:
    """Yield the lines to print."""
    write_lines = {
        "delayed": _delayed,
        "in flight": _in_flight,
        "dead": _dead,
        "revived": _revived,
        "buried": _buried,
        "removed": _removed,
        "done": _done,
        "expired": _expired,
        "stray": _stray,
        "unknown": _unknown,
    }
    if here.others:
        many, where = len(here.others) + 1, "with that xid are in flight or delayed"
        younger = ", ".join(map(shown, here.others[:10])) + (", ..." if len(here.others) > 10 else "")
        yield f"{many:,} messages {where}: this is the oldest, then come {younger}."
    if here.namesake:
        yield f"Message {shown(here.namesake)} is a different one: use --by id for it."
    yield from write_lines[here.state](here)
    if here.traceparent:
        yield f"Its client's traceparent is {here.traceparent}."


def _delayed(here: Location) -> Iterator[str]:
    if here.next == "retry":
        why = f"the worker gave it up: {shown(here.error)}" if here.error else "it was not done in time"
        last = f"attempt {_of(here)} was delivered {_ago(here)}, and {why}"
        yield f"{_who(here)} waits for its next attempt: {last}."
        yield _next(here, f"attempt {_of(here, 1)}, to {shown(here.queue)}")
    elif here.next == "delivery":
        yield f"{_who(here)} is delayed since it was registered {_ago(here)}."
        yield _next(here, f"its first delivery, to {shown(here.queue)}")
    else:
        yield f"{_who(here)} is delayed, but its record is gone."
        yield _next(here, "it is counted as expired")


def _in_flight(here: Location) -> Iterator[str]:
    if here.next == "expired":
        yield f"{_who(here)} is in flight, but its record is gone."
        yield _next(here, "it is counted as expired")
        return
    yield f"{_who(here)} is in flight: attempt {_of(here)}, delivered {_ago(here)} by {_instance(here)}."
    if here.error:
        yield f"The worker gave it up: {shown(here.error)}"
    else:
        yield from _held(here)
    if here.waits is not None and not here.error:
        yield f"A worker that takes it has {age(here.waits)} to finish it."
        if here.until is not None:
            yield _next(here, f"the dead letters of {shown(here.namespace)}", "unless it is taken before, ")
        return
    dead = f"the dead letters of {shown(here.namespace)}"
    what = dead if here.next == "dead" else f"attempt {_of(here, 1)}{_backoff(here)}"
    yield _next(here, what, "unless it is done by its deadline, ", "Its deadline was")


def _held(here: Location) -> Iterator[str]:
    queue = shown(here.queue)
    match here.held:
        case "queue" if here.before == 0:
            yield f"No worker has taken it yet: it is the next in {queue}."
        case "queue":
            yield f"No worker has taken it yet: {here.before:,} in {queue} are before it."
        case "worker":
            yield f"A worker has it: it is not in {queue} any more."
        case "unsure":
            all = f"{here.length:,} in {queue}"
            yield f"It is not among the next {MAX_QUEUE_SCAN:,} of {all}: it is further back, or a worker has it."


def _dead(here: Location) -> Iterator[str]:
    after = f" after attempt {_of(here)}" if here.attempt else ""
    yield f"{_who(here)} died {_ago(here)}: {shown(here.reason) or 'no reason given'}{after}."
    if here.error:
        yield f"The error was: {shown(here.error)}"
    where = f" goes back to {shown(here.queue)}" if here.queue else " does not say where it came from"
    yield f"Waiting for you: it is a dead letter in {shown(here.namespace)}:dead and{where}:"
    yield f"penstock revive {quote(shown(here.namespace))} {quote(shown(here.id))}"


def _revived(here: Location) -> Iterator[str]:
    yield f"{_who(here)} died and was revived {_ago(here)}: it went back to {shown(here.queue)} and gets a new id."


def _buried(here: Location) -> Iterator[str]:
    yield f"{_who(here)} died, and its letter was buried {_ago(here)}."


def _removed(here: Location) -> Iterator[str]:
    reason = f" ({shown(here.reason)})" if here.reason else ""
    yield f"{_who(here)} died {_ago(here)}{reason}, and its letter is gone: it was revived or buried."


def _done(here: Location) -> Iterator[str]:
    took = "" if here.seconds is None else f" It took {here.seconds:.3f} s."
    late = ", after its time-out" if here.late else ""
    yield f"{_who(here)} was done {_ago(here)}, with attempt {_of(here)}{late}.{took}"


def _expired(here: Location) -> Iterator[str]:
    yield f"{_who(here)} expired {_ago(here)}: its record was gone when it was due."


def _stray(here: Location) -> Iterator[str]:
    when = "" if here.since is None else f", last seen {_ago(here)},"
    yield f"{_who(here)}{when} is neither in flight nor delayed, dead or done: somebody has deleted its keys."


def _unknown(here: Location) -> Iterator[str]:
    yield f"Message {shown(here.asked)} is unknown in {shown(here.namespace)}."
    if here.length:
        yield f"In {shown(here.queue)}, not registered yet: {counted(here.length, 'message')}; it may be among them."
    if here.reach is None:
        yield "There are no events: it may have been done."
    else:
        yield f"The events reach back to {clock(here.reach)} UTC: it may have been done before that."


def _who(here: Location) -> str:
    word = shown(here.id) if here.id else shown(here.asked)
    return f"Message {word}" + (f" (xid {shown(here.xid)})" if here.xid else "")


def _of(here: Location, further: int = 0) -> str:
    attempt = "?" if here.attempt is None else here.attempt + further
    return f"{attempt} of {here.attempts}" if here.attempts else str(attempt)


def _ago(here: Location) -> str:
    return "some time ago" if here.since is None else f"{age(here.now - here.since)} ago ({clock(here.since)} UTC)"


def _next(here: Location, what: str, when: str = "", was: str = "It was due") -> str:
    """Return the next step and its time; if that is past, why it may be late."""
    if here.until is None:
        return f"Next: {what}."
    if not here.overdue:
        return f"Next: {what}, {when}in {age(here.until - here.now)} ({clock(here.until)} UTC)."
    late = f"Next: {what}. {was} {age(here.now - here.until)} ago ({clock(here.until)} UTC)"
    if not here.monitors:
        return f"{late}, but no monitor that watches {shown(here.namespace)} is alive: start one."
    return f"{late}, but it has not happened yet: see the log of {', '.join(map(shown, here.monitors))}."


def _backoff(here: Location) -> str:
    least, most = here.backoff or (0, 0)
    if not most:
        return ""
    return f" after a back-off of {least:g} s" if least == most else f" after a back-off of {least:g} to {most:g} s"


def _instance(here: Location) -> str:
    name = shown(f"{here.namespace}:{here.service}") if here.service else "an unknown instance"
    if here.instance is None:
        return f"{name}, which is not alive any more" if here.service else name
    state = f"late: renewed {age(here.instance.renewed_ago)} ago" if here.instance.late else "alive"
    return f"{name} (pid {shown(here.instance.pid)} on {shown(here.instance.host)}, {state})"
