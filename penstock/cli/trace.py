"""``penstock trace``: show the events of a message from the event stream."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.encoding import counted, decoded, encoded, parse_number
from penstock.cli._frame import DEFAULT_URL, Failed, Json, RedisUrl, run
from penstock.cli._progress import progress
from penstock.cli._selection import Named, named_by, require_events
from penstock.cli._servers import lists_of
from penstock.cli._text import clock, print_json, print_table, shown

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys
    from penstock.tracking.events import TrackedEvent
    from penstock.tracking.record import By
    from penstock.tracking.shares import Shares

COLUMNS = ("time (UTC)", "+s", "event", "attempt", "queue", "service", "seconds")
EARLIER_SECONDS = 1.0
"""Events are read from this long before the timestamp of the record, which is not taken at the same instant."""


def trace(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of mdispatch.")],
    word: Annotated[str, typer.Argument(metavar="ID|XID", help="The id or xid of the message, or the message itself.")],
    by: Named = "either",
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show the events of a message, the oldest first, and where its time went.

    Each share is in per cent of the time that it was given (meta.deadline), or else of the time that it took. Events
    are read from the stream NS:events, which keeps the newest eventCapacity entries. A number is looked up as the xid
    of a message in flight, else as an id; --by chooses one of them.
    """
    run(_trace(namespace, word, named_by(by), redis, json))


async def _trace(namespace: str, word: str, by: "By", url: str, as_json: bool) -> int:
    from penstock.base.keys import Keys
    from penstock.tracking.events import history_extent
    from penstock.tracking.shares import shares_of

    keys = Keys(namespace)
    async with lists_of(namespace, url) as redis:
        await require_events(redis, keys)
        found = await _events(redis, keys, word, by)
        if not found:
            length, oldest = await history_extent(redis, keys)
            events = counted(length, "event")
            there = "no events" if oldest is None else f"{events} since {clock(oldest)} UTC"
            raise Failed(f"no event of a message {shown(word)}: {shown(keys.events)} has {there}")
        seconds, micros = await redis.time()
    lives = [[event for event in found if event.id == id] for id in dict.fromkeys(event.id for event in found)]
    shares = [each for life in lives if (each := shares_of(life, seconds + micros / 1e6))]
    if as_json:
        lines = [_as_json(event, found[0].at) for event in found]
        print_json({"namespace": namespace, "asked": word, "events": lines, "shares": [*map(asdict, shares)]})
    else:
        _print(keys, word, found)
        for each in shares:
            typer.echo(_sentence(each))
    return 0


async def _events(redis: "Redis", keys: "Keys", word: str, by: "By") -> list["TrackedEvent"]:
    """Return the events of the message with that id, or else of all messages with that xid."""
    from penstock.tracking.events import read_entries
    from penstock.tracking.record import canonical_number, find_message, xids_of

    id, xids, since = canonical_number(word), xids_of(word), None
    message = await find_message(redis, keys, word, by)
    if message:
        since = parse_number(decoded(await redis.hget(encoded(keys.message(message.id)), "timestamp")))
    by_id: list[TrackedEvent] = []
    by_xid: list[TrackedEvent] = []
    with progress(f"events of {shown(keys.namespace)}", await redis.xlen(encoded(keys.events))) as advance:
        async for chunk in read_entries(redis, keys, None if since is None else since - EARLIER_SECONDS):
            events = [event for entry in chunk for event in entry.events({id, *xids})]
            by_id += [event for event in events if event.id == id]
            by_xid += [event for event in events if event.xid in xids]
            advance(len(chunk))
    if by == "xid" or (message and message.id != id):
        return by_xid
    if by == "id":
        return by_id
    return by_id or by_xid


def _print(keys: "Keys", word: str, found: list["TrackedEvent"]) -> None:
    ids = list(dict.fromkeys(event.id for event in found))
    columns = COLUMNS if len(ids) == 1 else ("id", *COLUMNS)
    rows = [([] if len(ids) == 1 else [shown(event.id)]) + _row(event, found[0].at) for event in found]
    which = f"message {shown(ids[0])}" if len(ids) == 1 else f"{len(ids)} messages {shown(word)}"
    xids = {event.xid for event in found} - {""}
    known = f" (xid {shown(min(xids))})" if len(ids) == 1 and xids else ""
    print_table(f"{shown(keys.namespace)}: the life of {which}{known}", columns, rows)
    for event in found:
        if event.details.traceparent:
            typer.echo(f"message {shown(event.id)}: traceparent {event.details.traceparent}")


def _sentence(found: "Shares") -> str:
    """Return the shares in words: ``before 0.1 %, queue 2.0 % (attempt 1), work 5.0 % (attempt 1), left 92.9 %``."""
    of = "that it took" if found.deadline is None else "until its deadline"
    parts = [
        f"{each.where} {each.percent:.1f} %" + (f" (attempt {each.attempt})" if each.attempt else "")
        for each in found.parts
    ]
    return f"message {shown(found.id)}, of the {found.budget:.3f} s {of}: {'; '.join(parts) or 'nothing yet'}"


def _row(event: "TrackedEvent", first: float) -> list[object]:
    attempt = "-" if event.attempt is None else event.attempt
    seconds = "-" if event.seconds is None else f"{event.seconds:.3f}"
    names = [shown(event.queue) or "-", shown(event.service) or "-"]
    return [clock(event.at, "milliseconds"), f"{event.at - first:.3f}", shown(event.event), attempt, *names, seconds]


def _as_json(event: "TrackedEvent", first: float) -> dict[str, Any]:
    named = {"id": event.id, "xid": event.xid, "event": event.event, "at": event.at, "since": event.at - first}
    known = {"attempt": event.attempt, "queue": event.queue, "service": event.service, "seconds": event.seconds}
    return named | known | ({"traceparent": event.details.traceparent} if event.details.traceparent else {})
