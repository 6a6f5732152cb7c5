"""Find a tracked message by its id, its xid or its content, and extend its deadline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final, Literal

from redis.asyncio import Redis

from penstock.base import exact_json
from penstock.base.encoding import decoded, decoded_fields, encoded
from penstock.base.errors import Stale
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicRead
from penstock.core.script import Script
from penstock.tracking import LUA
from penstock.tracking.correlation import MAX_PLAIN_ZEROS, as_xid, correlation_of, xid_of

touch_script: Final = Script.read(LUA / "touch.lua")

By = Literal["either", "xid", "id"]
"""How to read a word that names a message."""

UNTAKEN: Final = 1e12
"""Scores in ``Keys.deadlines`` from here on mean that no worker has taken the message; the rest is its number."""

MAX_TOUCH_SECONDS: Final = 366 * 86400
"""Longest extension of a deadline."""

MAX_DELAYED_SCAN: Final = 10_000
"""How many delayed messages are searched for an xid, those due first."""

SCAN_CHUNK: Final = 1000


async def touch(redis: "Redis", keys: Keys, id: str, seconds: float | None = None, attempt: str = "") -> float | None:
    """Extend the deadline of message ``id`` to ``seconds`` from now, unless it is later already; return the deadline.

    ``seconds`` defaults to the policy's messageTimeout. The record is kept long enough for all further attempts.
    Return None if no such message is in flight. Raise ``Stale`` if a later attempt than ``attempt`` (empty: any) is
    under way, and ``ValueError`` for ``seconds`` out of range.
    """
    if seconds is not None and not (isfinite(seconds) and 0 < seconds <= MAX_TOUCH_SECONDS):
        raise ValueError(f"{seconds!r} is no time to give: expected seconds above 0, at most {MAX_TOUCH_SECONDS:,}")
    record = encoded(keys.message(id))
    xid = await redis.hget(record, "xid")  # never changes while the message lives
    deadline = await touch_script(
        redis,
        record=record,
        deadlines=encoded(keys.deadlines),
        policy=encoded(keys.policy),
        **{name: encoded(key) for name, key in keys.event_keys.items()},
        touched=encoded(keys.metric("touched")),
        xid=None if xid is None else encoded(keys.xid(decoded(xid))),
        id=id,
        seconds="" if seconds is None else repr(float(seconds)),
        attempt=attempt,
    )
    if deadline == b"":
        raise Stale(f"attempt {attempt} of message {id} of {keys.namespace} is over: a younger one is under way")
    return None if deadline is None else float(deadline)


@dataclass(frozen=True)
class FoundMessage:
    """A message that was found, and others of the same name."""

    id: str
    others: tuple[str, ...] = ()
    """Ids of younger messages with the same xid, in flight or delayed, the oldest first."""
    namesake: str = ""
    """The id of another tracked message, if the word is the xid of this one and the id of that one."""


async def find_message(redis: "Redis", keys: Keys, word: str, by: By = "either") -> FoundMessage | None:
    """Return the tracked message (or the tombstone of one) that ``word`` names; None if there is none.

    As in ``done``, a number is the xid of the oldest message in flight that has it, else an id; ``by`` limits it to one
    of them. ``word`` may also be the message itself, byte for byte.
    """
    id = canonical_number(word)
    is_id = by != "xid" and is_number(word) and await _is_id(redis, keys, id)
    if by == "id":
        return FoundMessage(id) if is_id else None
    xids = xids_of(word)
    for xid in xids:
        if found := await _by_xid(redis, keys, xid):
            return replace(found, namesake=id) if is_id and found.id != id else found
    return FoundMessage(id) if is_id else await _delayed(redis, keys, xids)


async def _is_id(redis: "Redis", keys: Keys, id: str) -> bool:
    async with AtomicRead(redis) as snapshot:
        snapshot.exists(encoded(keys.message(id)))
        snapshot.zscore(encoded(keys.deadlines), id)
        snapshot.zscore(encoded(keys.delayed), id)
        exists, deadline, delivery = await snapshot.execute()
    return bool(exists) or deadline is not None or delivery is not None


async def _by_xid(redis: "Redis", keys: Keys, xid: str) -> FoundMessage | None:
    chain = decoded_fields(await redis.hgetall(encoded(keys.xid(xid))))
    if "id" not in chain:
        return None
    others, id = list[str](), chain["id"]
    while (id := chain.get(f"next:{id}", "")) and id not in others:
        others.append(id)
    return FoundMessage(chain["id"], tuple(others))


async def _delayed(redis: "Redis", keys: Keys, xids: Sequence[str]) -> FoundMessage | None:
    """Search delayed messages: before the first delivery, no key leads from the xid to the message."""
    found: list[str] = []
    for start in range(0, MAX_DELAYED_SCAN, SCAN_CHUNK):
        ids = await redis.zrange(encoded(keys.delayed), start, start + SCAN_CHUNK - 1)
        async with redis.pipeline(transaction=False) as pipeline:
            for id in ids:
                pipeline.hget(encoded(keys.message(decoded(id))), "xid")
            replies = await pipeline.execute()
        found += [decoded(id) for id, xid in zip(ids, replies, strict=True) if xid and decoded(xid) in xids]
        if len(ids) < SCAN_CHUNK:
            break
    return FoundMessage(found[0], tuple(found[1:])) if found else None


def is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()


def canonical_number(word: str) -> str:
    """Return a number without leading zeros, as ids and xids are stored; any other word unchanged."""
    return (word.lstrip("0") or "0") if is_number(word) else word


def xids_of(word: str) -> tuple[str, ...]:
    """Return the xids that ``word`` may stand for: itself, a number in JSON, or the xid of the message ``word``."""
    names = [encoded(word), xid_of(word), correlation_of(encoded(word)).xid]
    if exact_json.NUMBER.fullmatch(word):
        names.insert(1, exact_json.canonical_number(word, MAX_PLAIN_ZEROS).encode())
    return tuple(dict.fromkeys(decoded(as_xid(name)) for name in names))
