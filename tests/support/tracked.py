"""Write tracked messages by hand, as mdispatch and monitor do (docs/keys.md): records, letters, events, a policy."""

import itertools
import json
from typing import Any

from redis.asyncio import Redis

from penstock.base.encoding import decoded
from penstock.base.keys import Keys
from penstock.tracking.dead_letters import Letter, read_letters

KEYS = Keys("demo")
SEQUENCE = itertools.count()


async def now(redis: Redis) -> float:
    seconds, micros = await redis.time()
    return float(seconds + micros / 1e6)


async def write(redis: Redis, key: str, **fields: object) -> None:
    """Write a hash, without fields that are None; strip a trailing ``_`` off field names."""
    mapping: dict[Any, Any] = {name.rstrip("_"): value for name, value in fields.items() if value is not None}
    await redis.hset(key, mapping=mapping)


async def policy(redis: Redis, keys: Keys = KEYS, **more: object) -> None:
    """Write the policy that mdispatch publishes at its start."""
    fields: dict[str, object] = {
        "messageTimeout": 10,
        "messageExpire": 60,
        "messageCapacity": 1000,
        "attempts": 3,
        "backoff": "[1, 5]",
        "eventCapacity": 100_000,
        "replyExpire": 60,
        "source": "in",
        "pending": "pending",
        "out": "out",
        "done": keys.done,
    }
    await write(redis, keys.policy, **(fields | more))


async def in_flight(
    redis: Redis,
    id: str = "3",
    xid: str = "a",
    *,
    left: float = 3600,
    age: float = 65,
    message: bytes = b"hello",
    ttl: int = 60,
    keys: Keys = KEYS,
    **more: object,
) -> None:
    """Write a message delivered ``age`` seconds ago and taken, with its deadline in ``left`` seconds."""
    moment = await now(redis)
    fields = {
        "timestamp": f"{moment - age:.3f}",
        "xid": xid,
        "deadline": f"{moment + left:.3f}",
        "service": "2",
        "attempt": 1,
        "queue": "out",
        "message": message,
    }
    await write(redis, keys.message(id), **(fields | more))
    await redis.expire(keys.message(id), ttl)
    await redis.lpush(keys.message_ids, id)
    await redis.zadd(keys.deadlines, {id: moment + left})
    await chain(redis, id, xid, ttl=ttl, keys=keys)


async def chain(redis: Redis, id: str, xid: str, *, ttl: int = 60, keys: Keys = KEYS) -> None:
    """Append ``id`` as the newest message with ``xid``."""
    key = keys.xid(xid)
    newest, only = (decoded(each or b"") for each in await redis.hmget(key, "last", "id"))
    if last := newest or only:
        await write(redis, key, last=id, **{f"next:{last}": id, f"before:{id}": last})
    else:
        await write(redis, key, id=id, type="meta")
    await redis.expire(key, ttl)


async def delayed(
    redis: Redis,
    id: str = "3",
    xid: str = "a",
    *,
    left: float = 3600,
    age: float = 65,
    keys: Keys = KEYS,
    **more: object,
) -> None:
    """Write a message registered ``age`` seconds ago, with its delivery in ``left`` seconds."""
    moment = await now(redis)
    fields = {
        "timestamp": f"{moment - age:.3f}",
        "xid": xid,
        "service": "2",
        "attempt": 0,
        "queue": "out",
        "message": "m",
    }
    await write(redis, keys.message(id), **(fields | more))
    await redis.expire(keys.message(id), 60)
    await redis.zadd(keys.delayed, {id: moment + left})


async def tombstone(redis: Redis, id: str = "3", xid: str = "a", *, age: float = 65) -> None:
    moment = await now(redis)
    stamps = {"timestamp": f"{moment - 2 * age:.3f}", "died": f"{moment - age:.3f}"}
    await write(redis, KEYS.message(id), state="dead", xid=xid, reason="timeout", attempt=3, **stamps)
    await redis.expire(KEYS.message(id), 60)
    await write(redis, KEYS.xid(xid), id=id, type="meta", dead=1)


def letter(id: str | None = "3", message: bytes = b"hello", *, at: float = 1_767_225_600, **more: object) -> bytes:
    """Return a letter as scripts write it, with bytes that are not UTF-8 unescaped; ``at`` in seconds."""
    fields: dict[str, object] = {
        "message": message.decode(errors="surrogateescape"),
        "reason": "timeout",
        "queue": "out",
        "source": "in",
        "attempts": 3,
        "at": round(at * 1000),
    }
    if id is not None:
        fields |= {"id": id, "xid": f"x{id}", "service": "2"}
    fields |= more
    kept = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(kept, ensure_ascii=False).encode(errors="surrogateescape")


async def bury(redis: Redis, *letters: bytes) -> None:
    """Write dead letters, oldest first."""
    await redis.lpush(KEYS.dead, *letters)


async def events(redis: Redis) -> list[dict[bytes, bytes]]:
    """Return the stream, one event an entry, without the fields about the entry itself."""
    entries: Any = await redis.xrange(KEYS.events)
    return [{name: word for name, word in fields.items() if name not in (b"first", b"count")} for _, fields in entries]


async def event(
    redis: Redis,
    event: str,
    id: str = "3",
    xid: str = "a",
    *,
    ago: float = 65,
    at: float | None = None,
    attempt: object = 1,
    seconds: str = "",
) -> None:
    """Write an event of ``ago`` seconds ago, or of the moment ``at``."""
    milliseconds = round((await now(redis) - ago if at is None else at) * 1000)
    fields: dict[Any, Any] = {"event": event, "id": id, "xid": xid, "at": milliseconds, "queue": "out", "service": "2"}
    fields |= {"attempt": attempt, "seconds": seconds}
    await redis.xadd(KEYS.events, fields, id=f"{milliseconds}-{next(SEQUENCE)}")


async def crowd(redis: Redis, events: int) -> None:
    """Write events of many other messages, 100 seconds old."""
    at = round((await now(redis) - 100) * 1000)
    async with redis.pipeline(transaction=False) as wire:
        for number in range(events):
            fields: dict[Any, Any] = {"event": "registered", "id": number + 1000, "xid": "x", "at": at}
            wire.xadd(KEYS.events, fields, id=f"{at}-{next(SEQUENCE)}")
        await wire.execute()


async def count(redis: Redis, **counts: object) -> None:
    """Write counters: ``taken=5`` or ``dead={"count": 1, "timeout": 1}``; ``done_late`` for ``done:late``."""
    for name, value in counts.items():
        fields = value if isinstance(value, dict) else {"count": value}
        await write(redis, KEYS.metric(name.replace("_", ":")), **fields)


async def left(redis: Redis) -> list[str]:
    """Return the ids of the dead letters, newest first."""
    return [Letter(raw).id for raw in await read_letters(redis, KEYS, 0, -1)]


async def counted(redis: Redis, metric: str) -> int:
    return int(await redis.hget(KEYS.metric(metric), "count") or 0)
