"""``penstock trace``: show the events of a message from the event stream."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli._frame import DEFAULT_URL, Failed, Json, RedisUrl, run
from penstock.cli._progress import progress
from penstock.cli._selection import Named, named_by, require_tracked
from penstock.cli._servers import lists_of
from penstock.cli._text import clock, print_json, print_table, shown
from penstock.encoding import decoded, encoded, parse_number

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.keys import Keys
    from penstock.tracking.events import Event
    from penstock.tracking.record import By

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
    """Show the events of a message, the oldest first.

    They are read from the stream NS:events, which keeps the newest eventCapacity entries. A number is looked up as the
    xid of a message in flight, else as an id; --by chooses one of them.
    """
    run(_trace(namespace, word, named_by(by), redis, json))


async def _trace(namespace: str, word: str, by: "By", url: str, as_json: bool) -> int:
    from penstock.keys import Keys
    from penstock.tracking.events import history_extent

    keys = Keys(namespace)
    async with lists_of(namespace, url) as redis:
        await require_tracked(redis, keys)
        found = await _events(redis, keys, word, by)
        if not found:
            length, oldest = await history_extent(redis, keys)
            events = f"{length:,} event{'s' if length > 1 else ''}"
            there = "no events" if oldest is None else f"{events} since {clock(oldest)} UTC"
            raise Failed(f"no event of a message {shown(word)}: {shown(keys.events)} has {there}")
    if as_json:
        print_json({"namespace": namespace, "asked": word, "events": [_as_json(event, found[0].at) for event in found]})
    else:
        _print(keys, word, found)
    return 0


async def _events(redis: "Redis", keys: "Keys", word: str, by: "By") -> list["Event"]:
    """Return the events of the message with that id, or else of all messages with that xid."""
    from penstock.tracking.events import read_entries
    from penstock.tracking.record import canonical_number, find_message, xids_of

    id, xids, since = canonical_number(word), xids_of(word), None
    message = await find_message(redis, keys, word, by)
    if message:
        since = parse_number(decoded(await redis.hget(encoded(keys.message(message.id)), "timestamp")))
    by_id: list[Event] = []
    by_xid: list[Event] = []
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


def _print(keys: "Keys", word: str, found: list["Event"]) -> None:
    ids = list(dict.fromkeys(event.id for event in found))
    columns = COLUMNS if len(ids) == 1 else ("id", *COLUMNS)
    rows = [([] if len(ids) == 1 else [shown(event.id)]) + _row(event, found[0].at) for event in found]
    which = f"message {shown(ids[0])}" if len(ids) == 1 else f"{len(ids)} messages {shown(word)}"
    xids = {event.xid for event in found} - {""}
    known = f" (xid {shown(min(xids))})" if len(ids) == 1 and xids else ""
    print_table(f"{shown(keys.namespace)}: the life of {which}{known}", columns, rows)


def _row(event: "Event", first: float) -> list[object]:
    attempt = "-" if event.attempt is None else event.attempt
    seconds = "-" if event.seconds is None else f"{event.seconds:.3f}"
    names = [shown(event.queue) or "-", shown(event.service) or "-"]
    return [clock(event.at, "milliseconds"), f"{event.at - first:.3f}", shown(event.event), attempt, *names, seconds]


def _as_json(event: "Event", first: float) -> dict[str, Any]:
    named = {"id": event.id, "xid": event.xid, "event": event.event, "at": event.at, "since": event.at - first}
    known = {"attempt": event.attempt, "queue": event.queue, "service": event.service, "seconds": event.seconds}
    return named | known
