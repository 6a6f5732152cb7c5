"""Locate a message by its record, the sets that hold it, its events, and the dead letters."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from penstock.base.encoding import decoded, decoded_fields, encoded, parse_number, parse_whole
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicRead
from penstock.inspect.location import MAX_QUEUE_SCAN, Location
from penstock.inspect.namespace import instances, instances_of_service
from penstock.tracking.correlation import correlation_of
from penstock.tracking.dead_letters import Letter, newest_first
from penstock.tracking.details import Details
from penstock.tracking.events import TrackedEvent, history_extent, last_event
from penstock.tracking.policy import Policy
from penstock.tracking.record import UNTAKEN, By, find_message, xids_of


async def locate(
    redis: "Redis", service_redis: "Redis", keys: Keys, policy: Policy, word: str, by: By = "either"
) -> Location:
    """Return the location of the message that ``word`` names; ``word`` and ``by`` as in ``find_message``."""
    found = await find_message(redis, keys, word, by)
    id = found.id if found else ""
    async with AtomicRead(redis) as snapshot:
        snapshot.time()
        snapshot.hgetall(encoded(keys.message(id)))
        snapshot.zscore(encoded(keys.deadlines), id)
        snapshot.zscore(encoded(keys.delayed), id)
        (seconds, micros), fields, deadline, delivery = await snapshot.execute()
    record = decoded_fields(fields)
    known = Location(keys.namespace, word, now=seconds + micros / 1e6, attempts=policy.attempts)
    if found is None or (not record and deadline is None and delivery is None):
        return await _past(redis, keys, policy, known, by)
    known = replace(
        known,
        id=id,
        namesake=found.namesake,
        xid=record.get("xid", ""),
        others=found.others,
        attempt=parse_whole(record.get("attempt")),
        queue=record.get("queue", ""),
        service=record.get("service", ""),
        error=record.get("error", ""),
        traceparent=Details.parse(record.get("details")).traceparent,
    )
    if record.get("state") == "dead":
        died = replace(known, since=parse_number(record.get("died")), reason=record.get("reason", ""))
        return await _dead(redis, keys, died, await last_event(redis, keys, id))
    if delivery is not None:
        here = _delayed(known, record, delivery)
    elif deadline is not None:
        here = await _in_flight(redis, service_redis, keys, policy, known, record, deadline)
    else:
        return replace(known, state="stray", since=parse_number(record.get("timestamp")))
    return replace(here, monitors=await _monitors(redis, service_redis, keys)) if here.overdue else here


def _delayed(known: Location, record: dict[str, str], delivery: float) -> Location:
    since = parse_number(record.get("delivered")) or parse_number(record.get("timestamp"))
    next = "expired" if not record else "retry" if known.attempt else "delivery"
    return replace(known, state="delayed", since=since, until=delivery, next=next)


async def _in_flight(
    redis: "Redis",
    service_redis: "Redis",
    keys: Keys,
    policy: Policy,
    known: Location,
    record: dict[str, str],
    deadline: float,
) -> Location:
    attempt = known.attempt or 1
    most = min(policy.attempts, int(parse_number(record.get("attempts"), 1) or policy.attempts))
    since = parse_number(record.get("delivered")) or parse_number(record.get("timestamp"))
    last = "final" in record or attempt >= most
    next = "expired" if not record else "dead" if last else "retry"
    alive = [each for each in await instances(redis, service_redis, keys) if each.id == known.service]
    held, before, length = await _in_queue(redis, known.queue, record)
    untaken = deadline >= UNTAKEN or (held == "queue" and "number" in record and "error" not in record)
    if untaken and next != "expired":
        next = "dead" if policy.queue_timeout else ""
    return replace(
        known,
        attempts=most,
        state="in flight",
        since=since,
        until=_until_taken(policy, since) if untaken else deadline,
        waits=policy.timeout if untaken else None,
        next=next,
        backoff=policy.backoff.delay_range(attempt) if next == "retry" else None,
        held=held,
        before=before,
        length=length,
        instance=alive[0] if alive else None,
    )


def _until_taken(policy: Policy, since: float | None) -> float | None:
    """Return when a message that no worker takes becomes a dead letter; None: never, or unknown."""
    return since + policy.queue_timeout if policy.queue_timeout and since else None


async def _in_queue(redis: "Redis", queue: str, record: dict[str, str]) -> tuple[str, int | None, int]:
    """Return the holder of the message, the number of messages ahead of it, and the length of the queue."""
    if not queue or "message" not in record:
        return "", None, 0
    async with AtomicRead(redis) as snapshot:
        snapshot.llen(encoded(queue))
        snapshot.lpos(encoded(queue), encoded(record["message"]), rank=-1, maxlen=MAX_QUEUE_SCAN)  # type: ignore[arg-type]  # its stub: text
        replies: Any = await snapshot.execute(raise_on_error=False)
    length, place = replies
    if not isinstance(length, int):  # the queue is not a list any more
        return "", None, 0
    if isinstance(place, int):
        return "queue", length - place - 1, length
    return ("unsure" if length > MAX_QUEUE_SCAN else "worker"), None, length


async def _past(redis: "Redis", keys: Keys, policy: Policy, known: Location, by: By) -> Location:
    """Locate a message that is not tracked, or not any more."""
    event = await last_event(redis, keys, known.asked, by)
    if event is None:
        return await _without_events(redis, keys, policy, known)
    known = replace(
        known,
        id=event.id,
        xid=event.xid,
        since=event.at,
        attempt=event.attempt,
        queue=event.queue,
        service=event.service,
        traceparent=event.details.traceparent,
        seconds=event.seconds,
        late=event.event == "late",
    )
    match event.event:
        case "done" | "late":
            return replace(known, state="done")
        case "expired":
            return replace(known, state="expired")
        case "dead" | "revived" | "buried":
            return await _dead(redis, keys, known, event)
    return replace(known, state="stray")


async def _dead(redis: "Redis", keys: Keys, known: Location, event: TrackedEvent | None) -> Location:
    """Locate a dead message by its letter, or by what became of the letter."""
    if letter := await _letter(redis, keys, known.id):
        return _of_letter(known, letter)
    if event is not None and event.id == known.id and event.event in ("revived", "buried"):
        return replace(known, state=event.event, since=event.at, queue=event.queue)
    return replace(known, state="removed")


async def _without_events(redis: "Redis", keys: Keys, policy: Policy, known: Location) -> Location:
    """Locate a message without events by its letter: it was never tracked, or died long ago."""
    if letter := await _letter(redis, keys, known.asked, xids_of(known.asked)):
        return _of_letter(replace(known, id=letter.id), letter)
    length, oldest = await history_extent(redis, keys)
    waiting = await redis.llen(encoded(policy.source))
    return replace(known, queue=policy.source, length=waiting, reach=oldest if length else None)


def _of_letter(known: Location, letter: Letter) -> Location:
    return replace(
        known,
        state="dead",
        xid=letter.text("xid") or known.xid,
        since=letter.at or known.since,
        reason=letter.text("reason"),
        error=letter.text("error"),
        attempt=parse_whole(letter.text("attempts")),
        queue=letter.destination or "",
        service=letter.text("service"),
        traceparent=Details.of(correlation_of(letter.message or b"").meta).traceparent,
    )


async def _letter(redis: "Redis", keys: Keys, id: str, xids: Sequence[str] = ()) -> Letter | None:
    async for chunk in newest_first(redis, keys):
        for letter in chunk:
            if letter.id == id or _xid_of(letter, xids) in xids:
                return letter
    return None


def _xid_of(letter: Letter, xids: Sequence[str]) -> str:
    """Return the xid of a letter; if it has none, as one of ``poison``, that of its message, if ``xids`` are wanted."""
    if (xid := letter.text("xid")) or not xids:
        return xid
    return decoded(correlation_of(letter.message or b"").xid)


async def _monitors(redis: "Redis", service_redis: "Redis", keys: Keys) -> tuple[str, ...]:
    """Return the live monitors of the namespace: each has a pending list of its own for it."""
    watching = []
    for namespace, one in await instances_of_service(redis, service_redis, "monitor"):
        lists = await redis.hkeys(encoded(Keys(namespace).lists))
        if any(decoded(name).endswith(f":pending:{keys.namespace}") for name in lists):
            late = ", late" if one.late else ""
            watching.append(f"{namespace}:{one.id} (pid {one.pid} on {one.host}{late})")
    return tuple(watching)
